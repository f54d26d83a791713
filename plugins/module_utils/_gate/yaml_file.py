# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Reading a YAML file so that what is wrong with it is said in one sentence with line and column."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

from .errors import ConfigError

try:
    import yaml

    class _StrictLoader(yaml.SafeLoader):
        """SafeLoader that refuses a key given twice: YAML would silently keep the last one."""

        # as it is written: merge keys (<<) put others' keys into it later, which its own ones win over
        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            seen: set[str] = set()
            for key_node, _value in node.value:
                if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                if key_node.value in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                    )
                seen.add(key_node.value)
            return node

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep=deep)
            except (ValueError, OverflowError) as error:  # 2024-13-45 looks like a day
                raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None

except ImportError:  # the module or command that needs it says so
    pass

#: Bytes. The largest public LiteLLM configuration seen is below 200 kB; a wrong path (a log, an image) is told at once.
MAX_FILE_BYTES = 4_000_000


def parse_yaml(text: str, source: str) -> Any:
    """The document in ``text``; ConfigError naming ``source``, line and column when it is not YAML."""
    try:
        # A SafeLoader by inheritance: it builds plain data only.
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError([f"{source}:{where} not valid YAML: {error.problem or error}"]) from None
    except yaml.reader.ReaderError as error:
        line, column = place_of(text, error.position)
        raise ConfigError(
            [
                f"{source}: line {line}, column {column}: not valid YAML: the character #x{ord(text[error.position]):02x} is not allowed"
            ]
        ) from None
    except RecursionError:
        raise ConfigError([f"{source}: not valid YAML for LiteLLM or the gate: it is nested too deeply"]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError([f"{source}: not valid YAML: {' '.join(str(error).split())}"]) from None


def place_of(text: str, position: int) -> tuple[int, int]:
    """Line and column of a character, from 1."""
    before = text[:position].replace("\r\n", "\n")
    return before.count("\n") + 1, len(before) - before.rfind("\n")


def need_regular(path: str | Path) -> int:
    """The size of a file; OSError when it is none. A pipe or a device may never end: whoever reads it waits for ever."""
    found = Path(path).stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    return found.st_size


def read_text(path: str | Path, what: str, newline: str | None = None) -> str:
    """The text of a file; ConfigError with the reason when it cannot be read. ``what`` names its purpose.

    ``newline`` is that of ``open``: with "" the ends of lines stay what they are.
    """
    if isinstance(path, str) and not path.strip():
        raise ConfigError([f"the path of {what} is empty; name a file"])
    file = Path(path)
    try:
        if need_regular(file) > MAX_FILE_BYTES:
            raise ConfigError([f"{file}: larger than {MAX_FILE_BYTES} bytes, so this is hardly {what}"])
        with file.open(encoding="utf-8", newline=newline) as handle:
            return handle.read()
    except OSError as error:
        raise ConfigError([f"{file}: cannot read {what}: {error.strerror or error}"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{file}: {what} is not UTF-8 text"]) from None


def read_yaml(path: str | Path, what: str) -> Any:
    """The document in a file; ConfigError as the two functions above."""
    return parse_yaml(read_text(path, what), str(path))
