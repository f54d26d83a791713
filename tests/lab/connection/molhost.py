# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs tasks in a host of the lab, through the namespaces of its init: a host that is cut off can still be managed."""

from __future__ import annotations

DOCUMENTATION = r"""
name: molhost
short_description: Run tasks in a host of the lab
description:
  - Enters the namespaces of the host's init with C(nsenter). It needs no network.
author: The gb10.serving maintainers (@gb10-serving)
options:
  host:
    description: The host's name in the lab.
    default: inventory_hostname
    vars:
      - name: inventory_hostname
      - name: molhost_name
  command:
    description: Path of the launcher.
    default: molhost
    vars:
      - name: molhost_command
"""

import shlex
import subprocess
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.common.text.converters import to_bytes, to_text
from ansible.plugins.connection import ConnectionBase


class Connection(ConnectionBase):
    """Every command asks anew for init's pid: a reboot or a power cut in the middle of a play does no harm."""

    transport = "molhost"
    has_pipelining = True

    def _connect(self):
        self._connected = True
        return self

    def _in_host(self, command, **streams):
        argv = [self.get_option("command"), "exec", self.get_option("host"), "/bin/sh", "-c", command]
        done = subprocess.run([to_bytes(word) for word in argv], stderr=subprocess.PIPE, check=False, **streams)
        if done.returncode == 1 and done.stderr.startswith(b"molhost: "):
            raise AnsibleConnectionFailure(to_text(done.stderr).strip())
        return done

    def exec_command(self, cmd, in_data=None, sudoable=True):
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        done = self._in_host(to_text(cmd), input=in_data or b"", stdout=subprocess.PIPE)
        return done.returncode, done.stdout, done.stderr

    def put_file(self, in_path, out_path):
        super().put_file(in_path, out_path)
        with Path(in_path).open("rb") as file:
            done = self._in_host("cat > " + shlex.quote(out_path), stdin=file, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise AnsibleError(f"{out_path}: cannot be written ({to_text(done.stderr).strip()})")

    def fetch_file(self, in_path, out_path):
        super().fetch_file(in_path, out_path)
        with Path(out_path).open("wb") as file:
            done = self._in_host("cat " + shlex.quote(in_path), stdin=subprocess.DEVNULL, stdout=file)
        if done.returncode:
            raise AnsibleError(f"{in_path}: cannot be read ({to_text(done.stderr).strip()})")

    def close(self):
        self._connected = False
