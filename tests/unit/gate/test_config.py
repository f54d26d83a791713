"""What a configuration may say, and one clear sentence for everything it may not."""

from __future__ import annotations

import copy
import os

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._gate import channel, config_file
from ansible_collections.gb10.serving.plugins.module_utils._gate.config import (
    DnsEndpoints,
    KubernetesEndpoints,
    Limits,
    OnFailure,
    file_problems,
    load_config,
    parse_config,
    parse_endpoint,
)
from ansible_collections.gb10.serving.plugins.module_utils._gate.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._gate.yaml_file import parse_yaml
from hypothesis import given
from hypothesis import strategies as st

GOOD = {
    "endpoints": {"static": ["http://10.0.0.1:8080", "http://10.0.0.2:8080"]},
    "capped_models": ["glm5.2"],
}


#: YAML takes it in hexadecimal, and Python writes no number so long in decimal.
HUGE = (1 << 20_000) - 1


def with_(path: str, value: object) -> dict:
    document: dict = copy.deepcopy(GOOD)
    *parents, last = path.split(".")
    place = document
    for part in parents:
        place = place.setdefault(part, {})
    place[last] = value
    return document


def problems(document: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(document, "gate.yml")
    return caught.value.problems


def test_the_shortest_configuration_gets_the_documented_defaults():
    config = parse_config(GOOD, "gate.yml")
    assert config.limits == Limits(0.25, 0.5, 1.0, 1, 0.05, 0.1, 32)
    assert (config.ejection.after_errors, config.ejection.after_5xx) == (1, 3)
    assert (config.ejection.cooldown_s, config.ejection.cooldown_max_s) == (2, 10)
    cache = config.verdict_cache
    assert (cache.denied_s, cache.allowed_s, cache.allowed_uses) == (300, 30, 20)
    assert config.request.path == "/v1/usage/check"
    assert config.on_failure is OnFailure.OPEN
    assert config.metrics_prefix == "usage_gate"


def test_every_key_the_design_shows_is_taken():
    text = """
endpoints: {static: [http://10.0.0.1:8080, http://10.0.0.2:8080]}
request: {path: /v1/usage/check, unchecked_path: null, headers: {}, token_file: null, ca_file: null}
limits: {connect_s: 0.25, attempt_s: 0.5, budget_s: 1.0, retries: 1, hedge_after_s: 0.05, hedge_share: 0.1, hedge_burst: 32}
ejection: {after_errors: 1, after_5xx: 3, cooldown_s: 2, cooldown_max_s: 10}
verdict_cache: {denied_s: 300, allowed_s: 30, allowed_uses: 20}
capped_models: [glm5.2, deepseek-v4-flash, mimo-v2.5]
on_failure: open
metrics_prefix: nan_usage_gate
"""
    assert parse_config(parse_yaml(text, "gate.yml"), "gate.yml").metrics_prefix == "nan_usage_gate"


def test_the_other_sources():
    dns = parse_config(with_("endpoints", {"dns": {"name": "api.internal", "port": 8080, "refresh_s": 5}}), "x").source
    assert dns == DnsEndpoints("api.internal", 8080, 5, "http")
    srv = parse_config(with_("endpoints", {"dns": {"name": "_http._tcp.api.internal"}}), "x").source
    assert isinstance(srv, DnsEndpoints)
    assert srv.port is None
    kubernetes = parse_config(
        with_("endpoints", {"kubernetes": {"namespace": "platform", "service": "api", "port": "http"}}), "x"
    ).source
    assert kubernetes == KubernetesEndpoints("platform", "api", "http", "http", None, None, None)


BAD = [
    # (what is given, what the one sentence must name)
    (with_("endpoints", None), ["gate.yml: endpoints: exactly one of static, dns, kubernetes"]),
    (with_("endpoints", {}), ["endpoints: exactly one of", "none given"]),
    (with_("endpoints", {"static": ["http://a:1"], "dns": {}}), ["static and dns given"]),
    (with_("endpoints", {"consul": {}, "static": ["http://a:1"]}), ["endpoints.consul: unknown key"]),
    (with_("endpoints.static", []), ["endpoints.static: the list is empty"]),
    (with_("endpoints.static", "http://a:1"), ["endpoints.static: a list of URLs is needed"]),
    (with_("endpoints.static", ["http://a:1", "http://A:1/"]), ["endpoints.static[1]: http://a:1 is already given as"]),
    (with_("endpoints.static", ["http://a", "http://a:80"]), ["endpoints.static[1]", "already given"]),
    (with_("endpoints.static", ["http://a.b:1", "http://a.b.:1"]), ["endpoints.static[1]", "already given"]),
    (with_("endpoints.static", ["http://10.0.0.1:1", "http://[::ffff:10.0.0.1]:1"]), ["static[1]", "already given"]),
    (with_("endpoints.static", ["http://[v1.a]"]), ["endpoints.static[0]", "no address"]),
    (with_("limits", {"budget_s": 10**400}), ["limits.budget_s", "out of bounds"]),
    (with_("ejection", {"after_errors": 10**400}), ["ejection.after_errors", "out of bounds"]),
    (with_("endpoints.static", ["a:8080"]), ["endpoints.static[0]", "needs http:// or https://"]),
    (with_("endpoints.static", [""]), ["endpoints.static[0]", "a URL such as"]),
    (with_("endpoints.static", [8080]), ["endpoints.static[0]", "a URL such as"]),
    (with_("endpoints.static", ["http://a:99999"]), ["endpoints.static[0]", "not a URL"]),
    (with_("endpoints.static", ["http://a:port"]), ["endpoints.static[0]", "not a URL"]),
    (with_("endpoints.static", ["http://a:0"]), ["endpoints.static[0]", "port 0"]),
    (with_("endpoints.static", ["http://[::1"]), ["endpoints.static[0]", "not a URL"]),
    (with_("endpoints.static", ["http://10.0.0.300:1"]), ["endpoints.static[0]", "no address"]),
    (with_("endpoints.static", ["http://a b:1"]), ["endpoints.static[0]", "not a URL"]),
    (with_("endpoints.static", ["http://a:1/x?y=1"]), ["endpoints.static[0]", "query or a fragment"]),
    (with_("endpoints.static", ["ftp://a:1"]), ["endpoints.static[0]", "needs http:// or https://"]),
    (with_("endpoints", {"dns": {"name": "a b", "port": 1}}), ["endpoints.dns.name: a host name is needed"]),
    (with_("endpoints", {"dns": {"name": "a"}}), ["endpoints.dns.port: a port between"]),
    (with_("endpoints", {"dns": {"name": "a", "port": 70000}}), ["endpoints.dns.port: a port between"]),
    (with_("endpoints", {"dns": {"name": "_h._tcp.a", "port": 80}}), ["endpoints.dns.port: SRV records carry"]),
    (with_("endpoints", {"dns": {"name": "a", "port": 1, "refresh_s": 0}}), ["endpoints.dns.refresh_s: 0 is out of"]),
    (with_("endpoints", {"kubernetes": {"service": "a", "port": "h"}}), ["endpoints.kubernetes.namespace"]),
    (with_("endpoints", {"kubernetes": {"namespace": "A/b", "service": "a", "port": "h"}}), ["kubernetes.namespace"]),
    (with_("endpoints", {"kubernetes": {"namespace": "n", "service": "a"}}), ["endpoints.kubernetes.port"]),
    *(
        (
            with_("endpoints", {"kubernetes": {"namespace": "n", "service": "a", "port": port}}),
            ["kubernetes.port: the name", said],
        )
        for port, said in (
            (-1, "-1"),
            (0, "not 0"),
            (65_536, "65536"),
            ("-1", "'-1'"),
            ("0", "'0'"),
            ("99999", "99999"),
            ("a b", "'a b'"),
            ("HTTP", "'HTTP'"),
            ("http\n", "not 'http"),
            (True, "True"),
            (8.5, "8.5"),
        )
    ),
    *(
        (with_("endpoints.static", [url]), ["endpoints.static[0]", "a request line cannot carry"])
        for url in (
            "http://a:1/x y",
            "http://a:1/x\ty",
            "http://a:1/x\r\nX-A: b",
            "http://a:1/\u00e9",
            "http://a\n:1",
            "http://a:1/\x7f",
        )
    ),
    (with_("endpoints.static", ["http://a:1/?"]), ["endpoints.static[0]", "query or a fragment"]),
    (with_("endpoints", {"dns": {"name": "api.internal\n", "port": 1}}), ["endpoints.dns.name: a host name"]),
    (
        with_("endpoints", {"kubernetes": {"namespace": "n\n", "service": "a", "port": "h"}}),
        ["kubernetes.namespace: a"],
    ),
    (with_("request.headers", {"X-A\n": "1"}), ["request.headers: 'X-A\\n' is not a header name"]),
    (with_("request.path", "/a b"), ["request.path: a path that begins with /"]),
    (with_("request.path", "/\u00e9"), ["request.path: a path", "visible ASCII"]),
    (with_("request.unchecked_path", "/a\x00"), ["request.unchecked_path: a path"]),
    (with_("request.headers", {"Idempotency-Key": "1"}), ["Idempotency-Key: the gate sets this header itself"]),
    (with_("request.token_file", "/x\0y"), ["request.token_file: the path has a character"]),
    (with_("request.ca_file", "/x\ud800"), ["request.ca_file: the path has a character"]),
    (with_("capped_models", ["a\nb"]), ["capped_models[0]: the name of a model group"]),
    (with_("a\nb", 1), ["gate.yml: a b: unknown key"]),
    (with_("\ud800", 1), ["gate.yml: '\\ud800': unknown key"]),
    *(
        (with_(key, HUGE), [key, "thousands of digits"])
        for key in (
            "limits",
            "limits.retries",
            "on_failure",
            "metrics_prefix",
            "request.path",
            "verdict_cache.denied_s",
        )
    ),
    (with_("capped_models", [HUGE]), ["capped_models[0]", "thousands of digits"]),
    (
        with_("endpoints", {"kubernetes": {"namespace": "n", "service": "a", "port": HUGE}}),
        ["kubernetes.port", "thousands of digits"],
    ),
    ({**GOOD, HUGE: 1}, ["0xffff", "unknown key"]),
    (with_("metrics_prefix", "x\n"), ["metrics_prefix: 'x\\n' is not a Prometheus name"]),
    (with_("limits.budget_s", 0.9), ["limits.budget_s", "0.5 × 2 = 1 s does not fit into budget_s 0.9 s"]),
    (with_("limits.retries", 2), ["limits.budget_s", "0.5 × 3 = 1.5 s does not fit"]),
    (with_("limits.connect_s", 0.6), ["limits.connect_s", "0.6 s", "attempt_s 0.5 s"]),
    (with_("limits.hedge_after_s", 0.5), ["limits.hedge_after_s", "attempt_s 0.5 s"]),
    (with_("limits.retries", -1), ["limits.retries: -1 is out of bounds"]),
    (with_("limits.retries", 1.5), ["limits.retries: a whole number"]),
    (with_("limits.retries", 1e9), ["limits.retries"]),
    (with_("limits.attempt_s", -0.5), ["limits.attempt_s: -0.5 is out of bounds"]),
    (with_("limits.attempt_s", 0), ["limits.attempt_s: 0 is out of bounds"]),
    (with_("limits.attempt_s", "0.5s"), ["limits.attempt_s: a number is needed"]),
    (with_("limits.attempt_s", True), ["limits.attempt_s: a number is needed"]),
    (with_("limits.attempt_s", float("nan")), ["limits.attempt_s: a number is needed"]),
    (with_("limits.budget_s", float("inf")), ["limits.budget_s: a number is needed"]),
    (with_("limits.budget_s", 1000), ["limits.budget_s: 1000 is out of bounds"]),
    (with_("limits.hedge_share", 2), ["limits.hedge_share: 2 is out of bounds"]),
    (with_("limits.hedge_burst", -3), ["limits.hedge_burst"]),
    (with_("limits.atempt_s", 1), ["limits.atempt_s: unknown key; did you mean attempt_s?"]),
    (with_("limits", [1]), ["limits: a mapping is needed"]),
    (with_("ejection.cooldown_s", 20), ["ejection.cooldown_s", "20 s", "cooldown_max_s 10 s"]),
    (with_("ejection.after_errors", -1), ["ejection.after_errors"]),
    (with_("verdict_cache.denied_s", -1), ["verdict_cache.denied_s"]),
    (with_("verdict_cache.allowed_uses", 0.5), ["verdict_cache.allowed_uses: a whole number"]),
    (with_("capped_models", []), ["capped_models: a list of at least one"]),
    (with_("capped_models", "glm5.2"), ["capped_models: a list of at least one"]),
    (with_("capped_models", ["a", "a"]), ["capped_models[1]: 'a' is given twice"]),
    (with_("capped_models", [5.2]), ["capped_models[0]: the name of a model group"]),
    (with_("on_failure", "maybe"), ["on_failure: one of open, closed"]),
    (with_("on_failure", True), ["on_failure: one of open, closed"]),
    (with_("metrics_prefix", "usage-gate"), ["metrics_prefix: 'usage-gate' is not a Prometheus name"]),
    (with_("request.path", "v1"), ["request.path: a path that begins with /"]),
    (with_("request.path", None), ["request.path: a path that begins with /"]),
    (with_("request.unchecked_path", 3), ["request.unchecked_path"]),
    (with_("request.headers", {"X-A": "1", "x-a": "2"}), ["request.headers.x-a: is there twice, in other letters"]),
    (
        with_("request", {"headers": {"authorization": "Basic x"}, "token_file": "/t"}),
        ["request.headers.Authorization: request.token_file makes this header"],
    ),
    (with_("request.headers", {"X Y": "1"}), ["request.headers: 'X Y' is not a header name"]),
    (with_("request.headers", {"Host": "a"}), ["request.headers.Host: the gate sets this"]),
    (with_("request.headers", {"X-A": "a\r\nb: c"}), ["request.headers.X-A: the value has characters"]),
    (with_("request.token_file", "token"), ["request.token_file: an absolute path"]),
    (with_("capped_modles", ["a"]), ["capped_modles: unknown key; did you mean capped_models?"]),
    ([], ["gate.yml: a mapping of settings is needed"]),
    (None, ["gate.yml: the file is empty"]),
    ("endpoints", ["gate.yml: a mapping of settings is needed"]),
]


@pytest.mark.parametrize(("document", "parts"), BAD, ids=[parts[0] for _, parts in BAD])
def test_bad_input_gets_one_sentence_that_names_it(document, parts):
    found = problems(document)
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0]
    assert found[0].startswith("gate.yml: ")
    assert "\n" not in found[0]


def test_all_problems_are_said_at_once():
    document = with_("limits", {"retries": -1, "budget_s": "x"})
    document["on_failure"] = 3
    assert len(problems(document)) == 3


def test_a_secret_in_a_header_or_url_is_not_repeated():
    for document in (
        with_("request.headers", {"X-Key": ["s3cret"]}),
        with_("request.headers", {"X-Key": "s3cret\n"}),
        with_("endpoints.static", ["http://me:s3cret@a:1"]),
    ):
        assert "s3cret" not in " ".join(problems(document))
    assert "s3cret" not in repr(parse_config(with_("request.headers", {"X-Key": "s3cret"}), "x"))


#: URLs with a password, broken in every other way too; and other places where somebody may write one.
WITH_PASSWORD = [
    *(
        with_("endpoints.static", [url])
        for url in (
            "http://u:s3cret@x", "http://u:s3cret@x:99999", "u:s3cret@x:80", "ftp://u:s3cret@x", "http://u:s3cret@[::1",
            "http://u:s3cret@:1", "http://u:s3cret/LEAK@x:1", "http://u:s3cret@LEAK@x:1", "http://u:s3cret?LEAK@x", "http://u:80/s3cret@x",
            "http://s3cret@", "http://u:s3cret @x", "http://x:1/?token=s3cret", "http://x:1/#s3cret", "http://u:s3cret#LEAK@10.0.0.300",
        )
    ),
    with_("endpoints.static", "http://u:s3cret@x"),
    {**GOOD, "endpoints": {"http://u:s3cret@x": None}},
    {**GOOD, "http://u:s3cret@x": None},
    with_("endpoints.static", [["http://u:s3cret@x"]]),
    with_("endpoints", {"dns": {"name": "http://u:s3cret@x", "port": 1}}),
    with_("endpoints", {"dns": {"name": "x", "port": "u:s3cret@x"}}),
    with_("endpoints", {"kubernetes": {"namespace": "u:s3cret@x", "service": "u:s3cret@x", "port": "u:s3cret@x"}}),
    with_("endpoints", {"kubernetes": {"namespace": "n", "service": "s", "port": "p", "api_url": "https://u:s3cret/LEAK@x:y"}}),
    with_("request.path", "http://u:s3cret@x/v1"),
    with_("request.token_file", "s3cret"),
    with_("limits.budget_s", "http://u:s3cret@x"),
    with_("capped_models", [["http://u:s3cret@x"]]),
    with_("on_failure", "http://u:s3cret@x"),
    with_("metrics_prefix", "http://u:s3cret@x"),
]  # fmt: skip


@pytest.mark.parametrize("document", WITH_PASSWORD, ids=range(len(WITH_PASSWORD)))
def test_nothing_before_an_at_is_shown_however_broken_the_rest_is(document):
    told = " ".join(problems(document))
    assert "s3cret" not in told and "LEAK" not in told
    shown = config_file.render(config_file.without_secrets({"endpoints": document["endpoints"]}))
    assert "@" not in str(document["endpoints"]) or ("s3cret" not in shown and "LEAK" not in shown)


@pytest.mark.parametrize("port", [1, 65_535, "8080", "http", "http-2", "a"])
def test_ports_of_a_service(port):
    source = {"kubernetes": {"namespace": "n", "service": "a", "port": port}}
    assert parse_config(with_("endpoints", source), "x").source.port == str(port)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
        ("http://API.internal:8080/", "http://api.internal:8080"),
        ("https://api", "https://api:443"),
        ("http://[FE80:0::1]:80/base/", "http://[fe80::1]:80/base"),
        (" http://localhost:1 ", "http://localhost:1"),
    ],
)
def test_an_endpoint_has_one_spelling(text, url):
    assert parse_endpoint(text).url == url


@given(st.text(max_size=40) | st.integers() | st.none() | st.lists(st.text(), max_size=2))
def test_any_endpoint_is_taken_or_refused_with_a_reason(text):
    try:
        assert parse_endpoint(text).url.startswith("http")
    except ValueError as error:
        assert str(error)


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
TREE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("endpoints", "request", "limits", "ejection", "verdict_cache", "capped_models", "on_failure"), TREE
        ),
    )
)
def test_no_document_makes_it_crash(document):
    try:
        parse_config(document, "x")
    except ConfigError as error:
        assert error.problems


def test_files_that_cannot_be_used(tmp_path):
    config = tmp_path / "gate.yml"
    token, authority = tmp_path / "token", tmp_path / "ca.pem"
    config.write_text(
        "endpoints: {static: ['https://a:1']}\ncapped_models: [m]\n"
        f"request: {{token_file: {token}, ca_file: {authority}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    assert len(caught.value.problems) == 2
    assert f"request.token_file: cannot read {token}: No such file" in caught.value.problems[0]
    assert f"request.ca_file: cannot read {authority}: No such file" in caught.value.problems[1]
    token.write_text("\n")
    authority.write_text("hello")
    with pytest.raises(ConfigError) as caught:
        load_config(config)
    assert "is empty" in caught.value.problems[0]
    assert "holds no PEM certificate" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"one\ntwo\n", "holds 2 lines; a token is one line"),
        (b"one\r\nX-A: b", "holds 2 lines"),
        (b"one\rtwo", "holds 2 lines"),
        (b"one\x00two", "a header cannot carry"),
        ("s\u00e9same".encode(), "a header cannot carry"),
        ("one\u2028two".encode(), "a header cannot carry"),
        (b"\xff\xfe", "is not text"),
        (None, "not a regular file"),
    ],
)
def test_a_token_that_no_header_can_carry(tmp_path, content, said):
    token = tmp_path / "token"
    os.mkfifo(token) if content is None else token.write_bytes(content)
    for key, document in (
        ("request.token_file", with_("request.token_file", str(token))),
        (
            "endpoints.kubernetes.token_file",
            with_("endpoints", {"kubernetes": {"namespace": "n", "service": "s", "port": 1, "token_file": str(token)}}),
        ),
    ):
        [sentence] = file_problems(parse_config(document, "x"), "gate.yml")
        assert sentence.startswith(f"gate.yml: {key}: ") and str(token) in sentence and said in sentence
        assert "one\n" not in sentence and "two" not in sentence


def test_a_token_rotated_into_a_broken_one_leaves_the_last_in_use(tmp_path, monkeypatch):
    file = tmp_path / "token"
    file.write_text("one\n")
    token = channel.Token(str(file))
    monkeypatch.setattr(channel, "TOKEN_REREAD_S", 0)
    for broken in ("", "two\nX-Evil: 1\n", "\x07"):
        file.write_text(broken)
        assert token.value() == "one"
    file.write_text("three\n")
    assert token.value() == "three"


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, said in (
        (pipe, "not a regular file"),
        ("/dev/zero", "not a regular file"),
        (tmp_path, "Is a directory"),
        ("", "the path of the gate's configuration is empty"),
        (" ", "is empty"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_config(path)
    [sentence] = file_problems(parse_config(with_("request.ca_file", str(pipe)), "x"), "gate.yml")
    assert sentence == f"gate.yml: request.ca_file: cannot read {pipe}: not a regular file"
    assert config_file.read_existing(str(pipe)).shown == "# cannot be read: OSError\n"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"endpoints: [", "line 1, column 13: not valid YAML"),
        (b"a: 1\na: 2\n", "line 2, column 1: not valid YAML: the key 'a' is given twice"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"a: \x07", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_yaml(tmp_path, content, part):
    file = tmp_path / "gate.yml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert len(caught.value.problems) == 1
    assert part in caught.value.problems[0]


def test_what_merge_keys_bring_is_given_once():
    """A key that wins over a merged one, in a node that lies deeper than the one that merges it again."""
    text = "l: [{m: {p: {a: &slow {<<: &base {t: 1, u: 2}, t: 3}}}}]\nx: {<<: *slow, u: 4}\n"
    assert parse_yaml(text, "x") == yaml.safe_load(text), "as LiteLLM reads it"
    with pytest.raises(ConfigError, match="column 30: not valid YAML: the key 't' is given twice"):
        parse_yaml(text.replace("t: 3", "t: 3, t: 4").replace("<<: &base {t: 1, u: 2}", "t: 1"), "x")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the gate's configuration: No such file"):
        load_config(tmp_path / "absent.yml")
