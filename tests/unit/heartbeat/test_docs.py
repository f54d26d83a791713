"""What docs/heartbeat.md and the role's README tell people to do is done here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[3]
ROLE = CHECKOUT / "roles" / "engine_heartbeat"
PAGES = (CHECKOUT / "docs" / "heartbeat.md", ROLE / "README.md")


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a language, their indentation taken away."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return ["\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_plays_use_variables_that_the_role_has(page: Path) -> None:
    options = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    plays = [
        play for text in blocks(page, "yaml") if isinstance(document := yaml.safe_load(text), list) for play in document
    ]
    assert plays
    for role in (role for play in plays for role in play["roles"]):
        assert role["role"] == "gb10.serving.engine_heartbeat"
        for name, value in role["vars"].items():
            allowed = options[name].get("options", {})
            assert all(set(item) <= set(allowed) for item in value), name


def test_the_folder_made_by_hand_is_one_a_server_finds_the_plug_in_in(tmp_path: Path) -> None:
    [script] = [text for text in blocks(PAGES[0], "sh") if "cp -r" in text]
    script = script.replace("sudo ", "").replace("/opt/gb10-serving", str(tmp_path / "opt"))
    subprocess.run(["sh", "-euc", script], cwd=CHECKOUT, check=True)
    look = "from importlib.metadata import entry_points; [e] = entry_points(group='vllm.stat_logger_plugins'); print(e.value)"
    environment = {"PYTHONPATH": str(tmp_path / "opt" / "heartbeat")}
    found = subprocess.run([sys.executable, "-c", look], env=environment, text=True, capture_output=True)
    assert found.stdout == "gb10_heartbeat:Heartbeat\n", found.stderr


def test_the_settings_by_hand_are_those_of_the_role() -> None:
    text = PAGES[0].read_text()
    [compose] = [document for block in blocks(PAGES[0], "yaml") if "services" in (document := yaml.safe_load(block))]
    [service] = compose["services"].values()
    folder = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())["engine_heartbeat_folder"]
    assert service == {"environment": {"PYTHONPATH": folder}, "volumes": [f"{folder}:{folder}:ro"]}
    assert f'Environment="PYTHONPATH={folder}"' in "\n".join(blocks(PAGES[0], "ini"))
    assert f"-v {folder}:{folder}:ro -e PYTHONPATH={folder}" in text


def test_every_series_is_described() -> None:
    source = (ROLE / "files" / "gb10_heartbeat" / "gb10_heartbeat.py").read_text()
    named = set(re.findall(r"^``(llm_\w+)", source, flags=re.MULTILINE))
    assert len(named) == 4
    assert named <= set(re.findall(r"`(llm_\w+)", PAGES[0].read_text()))
