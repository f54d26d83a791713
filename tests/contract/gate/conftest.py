from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.contract.gate.servers import Api

COLLECTION = Path(__file__).resolve().parents[3]
LLM_GATE = COLLECTION / "roles/usage_gate/files/llm-gate"


@pytest.fixture
def api():
    with Api(3) as servers:
        yield servers


@pytest.fixture
def write_config(tmp_path):
    """Writes a usage-gate.yml for these endpoints; keyword arguments replace sections."""

    def write(urls, name="usage-gate.yml", **sections):
        document = {"endpoints": {"static": list(urls)}, "capped_models": ["glm5.2", "mimo-v2.5"], **sections}
        file = tmp_path / name
        file.write_text(yaml.safe_dump(document))
        return str(file)

    return write


@pytest.fixture
def llm_gate():
    """Runs the command as a user would."""

    def run(*arguments, stdin="", timeout=60):
        done = subprocess.run(
            [sys.executable, str(LLM_GATE), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


@pytest.fixture
def ask(llm_gate):
    """``llm-gate ask`` with JSON: the exit status and the document."""

    def run(config, *arguments, model="glm5.2", key="sk-1", **more):
        done = llm_gate(
            "ask", "--config", config, "--model", model, "--key", key, "--format", "json", *arguments, **more
        )
        assert done.stdout, done.stderr
        result = json.loads(done.stdout)
        assert sum(result["outcomes"].values()) == result["asked"]
        return done.returncode, result

    return run
