# SPDX-License-Identifier: GPL-3.0-or-later
"""The one file that knows AnsibleModule: makes it, tells of a missing library, turns our errors into one clear failure."""

from __future__ import annotations

import importlib
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible.module_utils.common.respawn import has_respawned, respawn_module

from ._core.errors import ConfigError

#: Where the role health_check puts the libraries with `health_check_method: venv`.
VENV_PYTHON = Path("/opt/gb10-serving/venv/bin/python")


def run_module(
    argument_spec: dict[str, Any],
    work: Callable[[AnsibleModule], dict[str, Any]],
    *,
    needs: tuple[str, ...] = (),
    **rules: Any,
) -> None:
    """Runs `work` and exits with what it returns. `needs`: libraries that must be there.

    A ConfigError becomes one failure whose message is its faults; `work` may also return a key `failed` of its own.
    """
    rules.setdefault("supports_check_mode", True)
    module = AnsibleModule(argument_spec=argument_spec, **rules)
    for library in needs:
        try:
            importlib.import_module(library)
        except ImportError:
            if VENV_PYTHON.exists() and not has_respawned():
                respawn_module(str(VENV_PYTHON))
            module.fail_json(msg=missing_required_lib(library), exception=traceback.format_exc())
    try:
        result = work(module)
    except ConfigError as error:
        module.fail_json(msg="; ".join(error.faults))
    except Exception as error:
        module.fail_json(
            msg=f"this module failed by itself ({type(error).__name__}: {error}); please report it",
            exception=traceback.format_exc(),
        )
    if result.pop("failed", False):
        module.fail_json(msg=result.pop("msg"), **result)
    module.exit_json(**result)


def file_behind(path: str) -> str:
    """The file that a path leads to, through links. ConfigError when a folder is there."""
    found = os.path.realpath(path)
    if os.path.isdir(found):  # noqa: PTH112
        raise ConfigError([f"{path}: is a folder; name the file in it"])
    return found


def need_folder(path: str) -> None:
    """ConfigError when a file cannot be put there, in check mode too, since its folder is missing."""
    folder = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    if not os.path.isdir(folder):  # noqa: PTH112
        raise ConfigError([f"{path}: there is no folder {folder}; make it first"])


def write_file(module: AnsibleModule, path: str, text: str) -> None:
    """Puts a text in place at once, letter by letter. Where a link leads to the file, it stays a link."""
    with tempfile.NamedTemporaryFile("w", dir=module.tmpdir, delete=False, encoding="utf-8", newline="") as handle:
        handle.write(text)
    module.atomic_move(handle.name, file_behind(path))
