"""Changing a config.yaml that people edit too: what they wrote beside the values is still there."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._litellm import edit as editor
from ansible_collections.gb10.serving.plugins.module_utils._litellm.edit import edit
from ansible_collections.gb10.serving.plugins.module_utils._litellm.merge import Wanted, merge, plain

NULL = None
#: What the role litellm sets on a file that has other ideas.
ROLE = {
    "router_settings": {"allowed_fails": NULL, "num_retries": 0},
    "general_settings": {"background_health_checks": NULL},
}
TUNED = """\
router_settings:
  allowed_fails: 3          # tuned in May

# --- DO NOT TOUCH: agreed with security, ticket SEC-114 ---
general_settings:
  master_key: os.environ/LITELLM_MASTER_KEY
  background_health_checks: true
  # database_url: os.environ/DATABASE_URL   (switch on after the migration)

# litellm_settings we had before the outage:
#   request_timeout: 600
"""
PROXY = """\
# top
model_list:
  - model_name: a   # the first
    litellm_params:
      model: openai/a
      api_base: http://a/v1
      # api_key: not yet
  # the second
  - model_name: b
    litellm_params: {model: openai/b, # b
      api_base: http://b/v1}

# ---- router ----
router_settings:
  num_retries: 3
  fallbacks:
    - a: [b]   # why a
    - b: [a]   # why b

# ---- settings ----
litellm_settings:
  callbacks:
    # first the thing
    - prometheus   # metrics
    # then our gate
    - usage_gate.usage_gate # gate
    - z.z # last one

# ---- general ----
general_settings:
  master_key: os.environ/K  # the key
  # tail of general
# tail of the file
"""
C = {"model_name": "c", "litellm_params": {"model": "openai/c", "api_base": "http://c/v1"}}
ADDED = "  - model_name: c\n    litellm_params:\n      model: openai/c\n      api_base: http://c/v1\n"


def without(text: str, *gone: str) -> str:
    for part in gone:
        assert text.count(part) == 1, part
        text = text.replace(part, "")
    return text


def instead(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


B_LINES = "  - model_name: b\n    litellm_params: {model: openai/b, # b\n      api_base: http://b/v1}\n"
FALLBACKS = "  fallbacks:\n    - a: [b]   # why a\n    - b: [a]   # why b\n"
#: (what happens, what is there, what is asked for, what is then there, letter by letter)
CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("the role on a tuned file", TUNED, {"sections": ROLE},
     without(instead(TUNED, "  allowed_fails: 3          # tuned in May\n", "  num_retries: 0\n"), "  background_health_checks: true\n")),
    ("the last deployment goes", PROXY, {"present": False, "deployments": ({"model_name": "b"},)}, without(PROXY, B_LINES)),
    ("the first deployment goes, its comment stays", PROXY, {"present": False, "deployments": ({"model_name": "a"},)},
     instead(PROXY, "  - model_name: a   # the first\n    litellm_params:\n      model: openai/a\n      api_base: http://a/v1\n      # api_key: not yet\n", "  # api_key: not yet\n")),
    ("a deployment comes, above the next heading", PROXY, {"deployments": (C,)}, instead(PROXY, B_LINES, B_LINES + ADDED)),
    ("a list is replaced", PROXY, {"sections": {"router_settings": {"fallbacks": [{"a": ["b"]}, {"b": ["c"]}, {"c": ["a"]}]}}},
     instead(PROXY, "    - b: [a]   # why b\n", "    - b: [c]   # why b\n    - c:\n        - a\n")),
    ("a list goes", PROXY, {"sections": {"router_settings": {"fallbacks": NULL}}}, without(PROXY, FALLBACKS)),
    ("callbacks change places", PROXY, {"callbacks": ("z.z", "usage_gate.usage_gate")},
     instead(without(PROXY, "    - z.z # last one\n"), "    # then our gate\n    - usage", "    - z.z # last one\n    # then our gate\n    - usage")),
    ("the last callback goes", PROXY, {"present": False, "callbacks": ("z.z",)}, without(PROXY, "    - z.z # last one\n")),
    ("all callbacks go", PROXY, {"present": False, "callbacks": ("z.z", "usage_gate.usage_gate", "prometheus")},
     without(instead(instead(PROXY, "    # first the thing\n", "# first the thing\n"), "    # then our gate\n", "# then our gate\n"),
             "litellm_settings:\n  callbacks:\n", "    - prometheus   # metrics\n", "    - usage_gate.usage_gate # gate\n", "    - z.z # last one\n")),
    ("a value within many lines of brackets", PROXY, {"deployments": ({"model_name": "b", "litellm_params": {"model": "openai/B", "api_base": "http://b/v1"}},)},
     instead(PROXY, "openai/b, # b", "openai/B, # b")),
    ("a head above ---, and an end", "# head\n---\n" + TUNED + "...\n", {"sections": {"router_settings": {"allowed_fails": 5}}},
     "# head\n---\n" + instead(TUNED, "fails: 3", "fails: 5") + "...\n"),
    ("a section comes before the end", "---\nmodel_list: []\n...\n", {"sections": {"router_settings": {"num_retries": 0}}},
     "---\nmodel_list: []\nrouter_settings:\n  num_retries: 0\n...\n"),
    ("nothing but comments is left", "# a\nrouter_settings:\n  # b\n  num_retries: 1\n# c\n", {"present": False, "sections": {"router_settings": {"num_retries": 0}}},
     "# a\n# b\n# c\n"),
    ("an empty list, and a word on it", "model_list: []  # none yet\n\n# router\nrouter_settings: {}\n", {"deployments": (C,)},
     "model_list:  # none yet\n" + ADDED + "\n# router\nrouter_settings: {}\n"),
    ("no room before dashes", "model_list:\n- model_name: a\n  litellm_params: {model: x}\n# ---- router ----\nrouter_settings: {}\n", {"deployments": (C,)},
     "model_list:\n- model_name: a\n  litellm_params: {model: x}\n- model_name: c\n  litellm_params:\n    model: openai/c\n    api_base: http://c/v1\n"
     "# ---- router ----\nrouter_settings: {}\n"),
    ("no break at the end", "router_settings:\n  num_retries: 3 # x", {"sections": {"router_settings": {"timeout": 5}}},
     "router_settings:\n  num_retries: 3 # x\n  timeout: 5\n"),
    ("a key of a list's entry goes", "router_settings:\n  fallbacks:\n    - a: [b]   # why a\n      # and\n      c: [d]\n", {"sections": {"router_settings": {"fallbacks": [{"c": ["d"]}]}}},
     "router_settings:\n  fallbacks:\n    -   # why a\n      # and\n      c: [d]\n"),
    ("brackets get another kind of value", "router_settings:\n  a: [1, # one\n    # two\n    2] # all\n", {"sections": {"router_settings": {"a": 5}}},
     "router_settings:\n  # one\n  # two\n  a: 5 # all\n"),
    ("a text of many lines goes", "general_settings:\n  a: |  # a\n    # no comment\n    x\n\n  # b\n  b: 1\n", {"sections": {"general_settings": {"a": 1}}},
     "general_settings:\n  a: 1  # a\n\n  # b\n  b: 1\n"),
    ("what another place shares is written out there only", "x: &d {timeout: 5} # d\nrouter_settings: *d # too\n", {"sections": {"router_settings": {"timeout": 6}}},
     "x: &d {timeout: 5} # d\nrouter_settings: # too\n  timeout: 6\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted", "then"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_comments_stay_where_they_are(text, wanted, then):
    assert edit(text, Wanted(**wanted), "f").after == then
    assert not edit(then, Wanted(**wanted), "f").changed


WHOLE = {
    "deployments": (C,),
    "callbacks": ("new.new",),
    "sections": {"router_settings": {"timeout": 5}, "litellm_settings": {"request_timeout": 9}, "other": {"a": {"b": 1}}},
}  # fmt: skip


@pytest.mark.parametrize("text", [PROXY, PROXY.replace("\n", "\r\n"), "\ufeff" + PROXY, f"---\n{PROXY}...\n"])
def test_what_was_put_in_and_taken_out_again_has_left_no_trace(text):
    put = edit(text, Wanted(**WHOLE), "f").after
    assert set(text.splitlines(keepends=True)) <= set(put.splitlines(keepends=True))
    assert ("\r\n" in put) == ("\r\n" in text)
    assert edit(put, Wanted(present=False, **WHOLE), "f").after == text


def test_a_comment_that_would_be_lost_stops_everything(monkeypatch):
    def odd(*_given):
        raise editor.Unsplicable

    monkeypatch.setattr(editor, "splice", odd)
    with pytest.raises(ConfigError, match=r"without losing or moving the comment in line \d"):
        edit(TUNED, Wanted(sections=ROLE), "f")
    assert "# 1" in edit("router_settings:\n  a: 1 # 1\n", Wanted(sections={"router_settings": {"b": 2}}), "f").after


# -- many documents ----------------------------------------------------------------------------------------------


class Writer:
    """Writes a document as people do, with comments in every odd place, each of them another."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.number = dice, 0
        self.indentless = dice.random() < 0.3
        self.deep = dice.choice([2, 2, 3, 4])

    def comment(self) -> str:
        self.number += 1
        return f"# {self.number}: {self.dice.choice(['[x', 'a: 1', '- b', '}', '#', 'why'])} {self.number}!"

    def end(self) -> str:
        return self.dice.choice(["", "", " ", "  "]) + ("  " + self.comment() if self.dice.random() < 0.3 else "")

    def between(self, column: int) -> list[str]:
        """Lines that say nothing."""
        lines = []
        while self.dice.random() < 0.25:
            depth = self.dice.choice([0, column, column, column + 2, max(column - 2, 0)])
            lines.append("" if self.dice.random() < 0.4 else " " * depth + self.comment())
        return lines

    def scalar(self, value: Any) -> str:
        if isinstance(value, str) and self.dice.random() < 0.3:
            return self.dice.choice([f'"{value}"', f"'{value}'"])
        return yaml.safe_dump(value).removesuffix("\n").removesuffix("\n...")

    def flow(self, value: Any, column: int, many: bool) -> str:
        if not isinstance(value, (dict, list)):
            return self.scalar(value)
        parts = [
            f"{key}: {self.flow(item, column, many)}" if isinstance(value, dict) else self.flow(item, column, many)
            for key, item in (value.items() if isinstance(value, dict) else enumerate(value))
        ]
        text = ""
        for place, part in enumerate(parts):
            text += part + ("," if place < len(parts) - 1 or self.dice.random() < 0.1 else "")
            if many and self.dice.random() < 0.5:
                text += "  " + self.comment() if self.dice.random() < 0.5 else ""
                text += "\n" + " " * (column + 2)
                if self.dice.random() < 0.2:
                    text += self.comment() + "\n" + " " * (column + 2)
            else:
                text += " "
        return ("{" + text.rstrip(" ") + "}") if isinstance(value, dict) else ("[" + text.rstrip(" ") + "]")

    def lines(self, value: Any, column: int) -> list[str]:
        lines: list[str] = []
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            lines += self.between(column)
            head = " " * column + (f"{key}:" if isinstance(value, dict) else "-")
            if not isinstance(item, (dict, list)) or not item or self.dice.random() < 0.3:
                if isinstance(item, str) and self.dice.random() < 0.1:
                    lines += [f"{head} |-{self.end()}", " " * (column + 3) + item]
                elif item is None and self.dice.random() < 0.5:
                    lines += [head + self.end()]
                else:
                    many = self.dice.random() < 0.4
                    lines += f"{head} {self.flow(item, column, many)}{self.end()}".split("\n")
                continue
            if isinstance(value, dict):
                depth = 0 if self.indentless and isinstance(item, list) else self.deep
                lines += [head + self.end(), *self.lines(item, column + depth)]
            elif self.dice.random() < 0.8:
                first, *rest = self.lines(item, column + 2)
                while not first.strip() or first.lstrip().startswith("#"):
                    first, *rest = rest
                lines += [head + " " + first.lstrip(), *rest]
            else:
                lines += [head, *self.lines(item, column + 2)]
        return lines + self.between(column)

    def text(self, document: dict[str, Any]) -> str:
        head = self.dice.choice(["", "", "", "# head\n---\n", "---\n"])
        tail = self.dice.choice(["\n", "\n", "\n", "", "\n...\n"])
        newline = self.dice.choice(["\n", "\n", "\r\n"])
        text = head + "\n".join([*self.between(0), *self.lines(document, 0)]) + tail
        return self.dice.choice(["", "", "\ufeff"]) + text.replace("\n", newline)


def tree(dice: random.Random, depth: int = 2) -> Any:
    kind = dice.random()
    if depth and kind < 0.25:
        return [tree(dice, depth - 1) for dummy in range(dice.randrange(4))]
    if depth and kind < 0.5:
        return section(dice, depth - 1)
    return dice.choice([0, 1, 2, True, False, None, "x", "yes", "a b", "1", "os.environ/K"])


def section(dice: random.Random, depth: int = 2) -> dict[str, Any]:
    return {name: tree(dice, depth) for name in dice.sample("abcd", dice.randrange(4))}


def callbacks(dice: random.Random) -> list[str]:
    return dice.sample(["p.p", "q.q", "r.r", "s.s"], dice.randrange(5))


def deployments(dice: random.Random, most: int) -> list[dict[str, Any]]:
    return [
        {
            "model_name": dice.choice("gh"),
            "litellm_params": {"model": "m", "api_base": f"http://{base}/v1", **section(dice)},
        }
        for base in dice.sample(range(4), dice.randrange(most))
    ]


def a_document(dice: random.Random) -> dict[str, Any]:
    document = {"model_list": deployments(dice, 4), "x_own": tree(dice)}
    for name in ("router_settings", "general_settings"):
        if dice.random() < 0.7:
            document[name] = section(dice) if dice.random() < 0.8 else None
    if dice.random() < 0.7:
        document["litellm_settings"] = {**section(dice), "callbacks": callbacks(dice)}
    return {name: document[name] for name in dice.sample(list(document), len(document))}


def a_wish(dice: random.Random) -> Wanted:
    names = [name for name in ("router_settings", "general_settings") if dice.random() < 0.6]
    return Wanted(
        present=dice.random() < 0.6,
        deployments=tuple(deployments(dice, 3)),
        callbacks=tuple(callbacks(dice)),
        sections={name: section(dice) for name in names},
    )


def comments_in(text: str) -> list[tuple[str, str]]:
    """Of each line with a comment of the writer's: what stands before it, and the comment."""
    return [
        (line[: line.index("# ")].strip(), line[line.index("# ") :].strip())
        for line in text.replace("\r\n", "\n").split("\n")
        if line.rstrip().endswith("!")
    ]


@pytest.mark.parametrize("seed", [f"{n}.{number}" for n in range(8) for number in range(60)])
def test_however_it_is_written_only_what_is_named_changes(seed):
    dice = random.Random(seed)
    document, wanted = a_document(dice), a_wish(dice)
    text = Writer(dice).text(document)
    assert yaml.safe_load(text) == document, text
    expected = plain(document)
    merge(expected, wanted, "f")
    edited = edit(text, wanted, "f")  # never refused
    assert (yaml.safe_load(edited.after) or {}) == expected
    assert not edit(edited.after, wanted, "f").changed
    assert edited.after.startswith("\ufeff") == text.startswith("\ufeff")
    if "\r\n" in text:
        assert "\n" not in edited.after.replace("\r\n", "")
    before, after = comments_in(text), [comment for dummy, comment in comments_in(edited.after)]
    own = [comment for code, comment in before if not code]
    assert [comment for comment in after if comment in own] == own
    lines = [line.strip() for line in edited.after.replace("\r\n", "\n").split("\n")]
    for code, comment in before:
        if comment not in after:  # it stood at the end of a line that went
            assert code
            if text.count(code) == 1 and code not in yaml.safe_dump(expected):
                assert code not in lines, comment
