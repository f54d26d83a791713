"""The engine tests need a real vLLM: ``./dev test engines`` makes it; without it they are skipped, and say why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.vllm_server import Bed, VllmServer, only_one_vllm

CHECKOUT = Path(__file__).resolve().parents[2]


def _folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or CHECKOUT / ".dev" / default)


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """The real vLLM; one test session at a time has it."""
    found = Bed(_folder("GB10_VLLM_VENV", "vllm"), _folder("GB10_VLLM_MODELS", "vllm-models"))
    if not (found.venv / "bin" / "vllm").exists():
        pytest.skip(f"no real vLLM at {found.venv} (GB10_VLLM_VENV): make one with tests/engines/install_vllm")
    if not all((found.models / model).is_dir() for model in ("tiny", "mid")):
        pytest.skip(f"no test models at {found.models} (GB10_VLLM_MODELS): make them with tests/engines/make_model")
    with only_one_vllm():
        yield found


@pytest.fixture(scope="module")
def vllm(bed: Bed, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., VllmServer]:
    """Makes a server description; ``with vllm("--flag", model="mid") as server:`` runs it."""
    logs = tmp_path_factory.mktemp("vllm")

    def make(*flags: str, **options: object) -> VllmServer:
        return VllmServer(bed, *flags, log_folder=logs, **options)  # type: ignore[arg-type]

    return make
