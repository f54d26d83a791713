"""What is wrong with a file of ours is said with line and column."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.yaml_file import load, parse


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2024-13-45\n", "f: line 2, column 4: month must be in 1..12; mend the file there"),
        ('a: 1\nb: "x\x07"\n', "f: line 2, column 6: the character #x07 is not allowed; mend the file there"),
        ('a: !!int ""\n', "f: line 1, column 4: this is no int; mend the file there"),
        ("a: !!bool maybe\n", "f: line 1, column 4: this is no bool; mend the file there"),
        ("a: !!timestamp soon\n", "f: line 1, column 4: this is no timestamp; mend the file there"),
        (
            "a: &a {x: 1}\nb: {<<: *a, y: 1, y: 2}\n",
            "f: line 2, column 19: the key 'y' is given twice; mend the file there",
        ),
        ("a: 1\na: 2\n", "f: line 2, column 1: the key 'a' is given twice; mend the file there"),
    ],
)
def test_a_fault_has_a_place(text, said):
    with pytest.raises(ConfigError) as failed:
        parse(text, "f")
    assert failed.value.faults == (said,) or failed.value.faults == [said]


MERGED = """
first: &first {x: 1, y: 1}
inner: {deeper: &second {<<: *first, y: 2}}
third: {<<: *second, z: 3}
"""


def test_a_merge_is_taken_and_its_keys_may_be_given_anew():
    found = parse(MERGED, "f")
    assert found["inner"]["deeper"] == {"x": 1, "y": 2}
    assert set(found["third"]) == {"x", "y", "z"}


def test_a_path_that_is_none():
    with pytest.raises(ConfigError, match="is not a file's path"):
        load("a\0b")
