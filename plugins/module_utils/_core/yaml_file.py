# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a YAML file of ours: one clear sentence for everything that can be wrong with it, and no key given twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ConfigError

try:
    import yaml

    class _Loader(yaml.SafeLoader):
        """SafeLoader, but a key given twice is an error: the second would silently win."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self._looked_at: set[int] = set()

        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """Looks at the keys as they are written, before those of a merge (`<<`) join them: these may be given anew."""
            if id(node) not in self._looked_at:
                self._looked_at.add(id(node))
                self._refuse_twice(node)
            super().flatten_mapping(node)

        def _refuse_twice(self, node: yaml.MappingNode) -> None:
            seen: set[Any] = set()
            for key_node, dummy in node.value:
                merge = key_node.tag == "tag:yaml.org,2002:merge"
                key = "<<" if merge else self.construct_object(key_node, deep=True)
                try:
                    twice = key in seen
                    seen.add(key)
                except TypeError:
                    continue
                if twice:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark
                    )

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (ValueError, OverflowError) as error:  # 2024-13-45 looks like a day
                raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None
            except (AttributeError, LookupError, TypeError):  # !!bool maybe
                kind = node.tag.rpartition(":")[2]
                raise yaml.MarkedYAMLError(problem=f"this is no {kind}", problem_mark=node.start_mark) from None

except ImportError:  # the module or command that needs it says so
    pass


def parse(text: str, name: str) -> Any:
    """The document in `text`. `name` is the file's, for sentences. Raises ConfigError."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError([f"{name}: {where}{error.problem or 'not YAML'}; mend the file there"]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
        raise ConfigError(
            [f"{name}: {place}: the character #x{ord(text[error.position]):02x} is not allowed; mend the file there"]
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([f"{name}: not YAML ({' '.join(str(error).split())})"]) from None


def load(path: str | Path) -> Any:
    """The document in the file. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([f"{path}: there is no such file"]) from None
    except IsADirectoryError:
        raise ConfigError([f"{path}: is a folder, a file is needed"]) from None
    except UnicodeDecodeError:
        raise ConfigError([f"{path}: is not text in UTF-8"]) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read ({error.strerror})"]) from None
    except ValueError:
        raise ConfigError([f"{str(path)!r} is not a file's path"]) from None
    return parse(text, str(path))
