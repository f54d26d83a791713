# SPDX-License-Identifier: GPL-3.0-or-later
"""Which boot it is, where a hardened unit and a shell read different files from the kernel."""

from __future__ import annotations

from ansible_collections.gb10.serving.plugins.module_utils._core.boot import boot_id


def test_ours_goes_first_so_that_unit_and_shell_agree_in_a_container(tmp_path):
    ours, kernels = tmp_path / "boot", tmp_path / "boot_id"
    kernels.write_text("the machine's\n")
    assert boot_id((ours, kernels)) == "the machine's"
    ours.write_text("")
    assert boot_id((ours, kernels)) == "the machine's"
    ours.write_text("the container's\n")
    assert boot_id((ours, kernels)) == "the container's"
    kernels.write_text("8a6c46f5-7391-466f-bf9d-a85f54b7c9b2\n")
    assert boot_id((tmp_path / "neither", kernels)) == "8a6c46f57391466fbf9da85f54b7c9b2"
    assert boot_id((tmp_path / "neither",)) is None
