"""What is wrong with a file of ours is said with line and column."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError
from ansible_collections.gb10.serving.plugins.module_utils._core.yaml_file import parse


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2024-13-45\n", "f: line 2, column 4: month must be in 1..12; mend the file there"),
        ('a: 1\nb: "x\x07"\n', "f: line 2, column 6: the character #x07 is not allowed; mend the file there"),
        ("a: 1\na: 2\n", "f: line 2, column 1: the key 'a' is given twice; mend the file there"),
    ],
)
def test_a_fault_has_a_place(text, said):
    with pytest.raises(ConfigError) as failed:
        parse(text, "f")
    assert failed.value.faults == (said,) or failed.value.faults == [said]
