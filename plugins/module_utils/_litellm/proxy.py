# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A LiteLLM config.yaml as the rules see it: its sections, its deployments, and which of them are servers of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from .._gate.config import GateConfig
from .beside import Beside

#: Longest answer taken for legal when nobody says otherwise: a 32k-token answer at 40 tokens/s is 820 s.
LONGEST_ANSWER_S = 900.0
#: What ``callbacks`` must name for the gate's hook to be loaded.
GATE_CALLBACK = "usage_gate.usage_gate"

#: Providers that are servers of one's own whatever their address.
OWN_PROVIDERS = frozenset(
    {"hosted_vllm", "vllm", "ollama", "ollama_chat", "lm_studio", "llamafile", "xinference", "infinity", "triton"}
)
#: Providers that are whatever api_base points at.
OPENAI_LIKE = frozenset({"openai", "text-completion-openai", "custom_openai", "openai_like", "os.environ"})
#: Hosts that speak OpenAI's protocol and are somebody else's fleet: retries and cool-downs are right there.
CLOUDS = (
    "openai.com", "openai.azure.com", "openrouter.ai", "deepseek.com", "mistral.ai", "groq.com", "together.xyz",
    "fireworks.ai", "x.ai", "anthropic.com", "googleapis.com", "moonshot.cn", "moonshot.ai", "aliyuncs.com", "z.ai",
    "bigmodel.cn", "siliconflow.cn", "siliconflow.com", "minimax.io", "minimaxi.com", "nvidia.com", "cerebras.ai",
    "perplexity.ai", "deepinfra.com", "huggingface.co", "amazonaws.com", "volces.com", "baidubce.com",
)  # fmt: skip
#: Modes in which an answer takes seconds, not minutes.
SHORT_MODES = frozenset({"embedding", "rerank", "moderation", "audio_transcription", "audio_speech"})


@dataclass(frozen=True)
class Deployment:
    """One entry of model_list."""

    group: str
    params: Mapping[str, Any]
    info: Mapping[str, Any]
    where: str  # model_list[2], after the file where that is an included one

    @property
    def cools_down(self) -> bool:
        """A cool-down of 0 s of its own is none; model_info's is read first."""
        said = [place.get("cooldown_time") for place in (self.info, self.params)]
        return next((number(value) != 0 for value in said if value is not None), True)

    @property
    def provider(self) -> str:
        """The part of LiteLLM that speaks to it."""
        said, model = self.params.get("custom_llm_provider"), self.params.get("model")
        if isinstance(said, str):
            return said
        return model.split("/", 1)[0] if isinstance(model, str) and "/" in model else "openai"

    @property
    def own(self) -> bool:
        """A server of one's own: few slots, nobody else's fleet behind it."""
        base = self.params.get("api_base") or self.params.get("base_url")
        if self.provider in OWN_PROVIDERS:
            return True
        if self.provider not in OPENAI_LIKE or not isinstance(base, str) or not base:
            return False
        try:
            host = (urlsplit(base).hostname or "").lower()
        except ValueError:
            host = ""
        return not any(host == cloud or host.endswith("." + cloud) for cloud in CLOUDS)


@dataclass(frozen=True)
class Proxy:
    """Everything one configuration is judged by."""

    deployments: tuple[Deployment, ...] = ()
    router: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    general: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # holds keys
    hooks: Mapping[str, str] = field(default_factory=dict, repr=False)  # callback -> its source, where it lies beside
    models: tuple[tuple[str, int], ...] = ()  # see includes.Merged
    gate: GateConfig | None = None
    beside: tuple[Beside, ...] = ()
    longest_answer_s: float | None = None  # None: nobody said

    def where(self, index: int) -> str:
        """Where an entry of the whole model_list is written."""
        return _where(self.models, index)

    @property
    def own(self) -> tuple[Deployment, ...]:
        return tuple(deployment for deployment in self.deployments if deployment.own)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """What goes with each request."""
        return mapping(self.router.get("default_litellm_params"))

    @property
    def own_groups(self) -> dict[str, list[Deployment]]:
        """Groups all of whose deployments are servers of one's own."""
        groups: dict[str, list[Deployment]] = {}
        for deployment in self.deployments:
            groups.setdefault(deployment.group, []).append(deployment)
        return {name: members for name, members in groups.items() if all(member.own for member in members)}

    @property
    def callbacks(self) -> tuple[str, ...]:
        named = self.settings.get("callbacks")
        if isinstance(named, str):
            return (named,)
        return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()

    @property
    def workers(self) -> int | None:
        """How many workers serve, where a file beside says it."""
        said = [beside.workers for beside in self.beside if beside.workers is not None]
        return max(said) if said else None

    def first(self, key: str, *sections: str) -> tuple[str, Any]:
        """Where a key is set first, and its value; ``("", None)`` where it is not."""
        for name in sections:
            section: Mapping[str, Any] = getattr(self, name)
            if section.get(key) is not None:
                return f"{SECTIONS[name]}.{key}", section[key]
        return "", None


SECTIONS = {
    "router": "router_settings",
    "settings": "litellm_settings",
    "general": "general_settings",
    "defaults": "router_settings.default_litellm_params",
}


def mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one: LiteLLM refuses or ignores what is malformed."""
    return value if isinstance(value, Mapping) else {}


def number(value: Any) -> float | None:
    """The number that a setting holds, as LiteLLM reads it; None for what cannot be known here (os.environ/…)."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def _where(models: tuple[tuple[str, int], ...], index: int) -> str:
    file, there = models[index] if index < len(models) else ("", index)
    return f"{file}: model_list[{there}]" if file else f"model_list[{there}]"


def read_proxy(
    document: Mapping[str, Any],
    *,
    models: tuple[tuple[str, int], ...] = (),
    gate: GateConfig | None = None,
    hooks: Mapping[str, str] | None = None,
    beside: tuple[Beside, ...] = (),
    longest_answer_s: float | None = None,
) -> Proxy:
    """The description of a config.yaml. ``models`` says where the entries of its model_list are written."""
    entries = document.get("model_list")
    deployments = tuple(
        Deployment(
            group=str(entry.get("model_name", "")),
            params=mapping(entry.get("litellm_params")),
            info=mapping(entry.get("model_info")),
            where=_where(models, index),
        )
        for index, entry in enumerate(entries if isinstance(entries, list) else [])
        if isinstance(entry, Mapping)
    )
    return Proxy(
        deployments=deployments,
        router=mapping(document.get("router_settings")),
        settings=mapping(document.get("litellm_settings")),
        general=mapping(document.get("general_settings")),
        environment=mapping(document.get("environment_variables")),
        document=document,
        hooks=hooks or {},
        models=models,
        gate=gate,
        beside=beside,
        longest_answer_s=longest_answer_s,
    )
