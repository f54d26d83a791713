# SPDX-License-Identifier: GPL-3.0-or-later
"""What each engine calls things: one row an engine, and nothing else in the collection knows a series name.

Sources: real pages of vLLM 0.32 and llama.cpp b11434 (tests/fixtures/captures), the engines' own code and documentation
for the others (docs/limits.md names what was read and what was run).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .._core.servers import ENGINE_ALIASES

# What a series means to us. A row maps the engine's names onto these; `reading` adds up what several labels hold.
GAUGES = ("running", "waiting", "kv_usage")
COUNTERS = (
    "heartbeat",
    "steps",
    "generation_tokens",
    "prompt_tokens",
    "finished",
    "aborted",
    "preemptions",
    "flops",
)
# A rise of any of these is progress. Aborts are made by clients, preemptions by pressure: neither is a sign of life.
PROGRESS_COUNTERS = ("heartbeat", "steps", "generation_tokens", "prompt_tokens", "finished", "flops")


@dataclass(frozen=True)
class Series:
    """One sample name (`:` written as `_`, without Ray's `ray_`), what it means, and which of its samples count."""

    name: str
    meaning: str
    label: str | None = None
    values: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Engine:
    """One engine: where its page is, what is on it, and what may be asked of it.

    `page`: path of the Prometheus page, None when it has none. `health`: a path that is free to ask (no request slot),
    None when there is none. `dead_status`: the status by which /health says the engine is dead.
    `loading_status`: the status by which any page says it is still loading.
    `provable`: False where silence alone convicts nobody (no counter is certain to move every step).
    `running_by_step`: its running gauge is set at the end of a step and by nothing else, so a rise shows one.
    `loaded`: a path that lists the models in memory; where there is one, a request to any other model loads it.
    """

    name: str
    page: str | None
    prefix: tuple[str, ...] = ()
    series: tuple[Series, ...] = ()
    engine_label: str | None = None
    health: str | None = None
    dead_status: int | None = None
    loading_status: int | None = None
    load: str | None = None
    paused: str | None = None
    props: str | None = None
    owned_by: tuple[str, ...] = ()
    rank_header: str | None = None
    provable: bool = True
    true_steps: bool = False
    running_by_step: bool = False
    loaded: str | None = None
    no_evidence: str | None = None
    pages_also: tuple[str, ...] = field(default=())

    @property
    def speaks(self) -> bool:
        """Without a page too it may say of itself that it is dead, loading, paused or asleep."""
        says_state = self.dead_status is not None or self.loading_status is not None
        return bool((self.health and says_state) or self.paused or self.props)


# Our plug-in's series, on the page of any engine that loads it (role engine_heartbeat).
HEARTBEAT_STEPS = "llm_engine_steps_total"
HEARTBEAT_INFO = "llm_heartbeat_info"  # 0: the plug-in has turned itself off, and what it counted stands still
HEARTBEAT_LAST_STEP = "llm_engine_last_step_timestamp_seconds"
HEARTBEAT_STEP_BUCKET = "llm_engine_step_seconds_bucket"

_FINISHED = frozenset({"stop", "length", "repetition"})
_ABORTED = frozenset({"abort", "error"})

_VLLM_SERIES = (
    Series("vllm_num_requests_running", "running"),
    Series("vllm_num_requests_waiting", "waiting"),
    Series("vllm_num_requests_swapped", "waiting"),  # V0 only
    Series("vllm_kv_cache_usage_perc", "kv_usage"),
    Series("vllm_gpu_cache_usage_perc", "kv_usage"),  # its name before 0.10
    Series("vllm_iteration_tokens_total_count", "steps"),
    Series("vllm_generation_tokens_total", "generation_tokens"),
    Series("vllm_prompt_tokens_total", "prompt_tokens"),
    Series("vllm_request_success_total", "finished", "finished_reason", _FINISHED),
    Series("vllm_request_success_total", "aborted", "finished_reason", _ABORTED),
    Series("vllm_num_preemptions_total", "preemptions"),
    Series("vllm_estimated_flops_per_gpu_total", "flops"),
    Series("vllm_engine_sleep_state", "awake", "sleep_state", frozenset({"awake"})),
)

_BARE_SERIES = tuple(Series(s.name.removeprefix("vllm_"), s.meaning, s.label, s.values) for s in _VLLM_SERIES)

ENGINES: tuple[Engine, ...] = (
    Engine(
        name="vllm",
        page="/metrics",
        prefix=("vllm_",),
        series=_VLLM_SERIES,
        engine_label="engine",
        health="/health",  # reads a flag, costs nothing; 503 means EngineDeadError
        dead_status=503,
        load="/load",
        paused="/is_paused",
        owned_by=("vllm",),
        rank_header="X-data-parallel-rank",
        running_by_step=True,  # an engine frozen while idle shows 0 whatever is sent to it; the others count at once
    ),
    Engine(
        name="sglang",
        page="/metrics",
        prefix=("sglang_",),
        series=(
            Series("sglang_num_running_reqs", "running"),
            Series("sglang_num_queue_reqs", "waiting"),
            Series("sglang_token_usage", "kv_usage"),
            Series("sglang_realtime_tokens_total", "heartbeat"),
            Series("sglang_generation_tokens_total", "generation_tokens"),
            Series("sglang_prompt_tokens_total", "prompt_tokens"),
            Series("sglang_num_aborted_requests_total", "aborted"),
            Series("sglang_num_retracted_reqs_total", "preemptions"),
        ),
        engine_label="dp_rank",
        # its /health sends a real request through the scheduler: never asked
        owned_by=("sglang",),
        true_steps=True,
    ),
    Engine(
        name="llamacpp",
        page="/metrics",
        prefix=("llamacpp_",),
        series=(
            Series("llamacpp_requests_processing", "running"),
            Series("llamacpp_requests_deferred", "waiting"),
            Series("llamacpp_kv_cache_usage_ratio", "kv_usage"),
            Series("llamacpp_n_decode_total", "heartbeat"),
            Series("llamacpp_tokens_predicted_total", "generation_tokens"),
            Series("llamacpp_prompt_tokens_total", "prompt_tokens"),
        ),
        health="/health",
        loading_status=503,
        props="/props",  # says is_sleeping and does not wake the server; /slots would
        owned_by=("llamacpp", "llama.cpp"),
        true_steps=True,
    ),
    Engine(
        name="ik_llamacpp",
        page="/metrics",
        prefix=("llamacpp_",),
        series=(
            Series("llamacpp_requests_processing", "running"),
            Series("llamacpp_requests_deferred", "waiting"),
            Series("llamacpp_kv_cache_usage_ratio", "kv_usage"),
            Series("llamacpp_tokens_predicted_total", "generation_tokens"),
            Series("llamacpp_prompt_tokens_total", "prompt_tokens"),
        ),
        # /health blocks during a prefill, up to an hour: neither asked nor is silence a proof
        loading_status=503,
        owned_by=("ik_llama.cpp",),
        provable=False,
    ),
    Engine(
        name="tgi",
        page="/metrics",
        prefix=("tgi_",),
        series=(
            Series("tgi_batch_current_size", "running"),
            Series("tgi_queue_size", "waiting"),
            Series("tgi_batch_inference_success", "heartbeat"),
            Series("tgi_request_generated_tokens_sum", "generation_tokens"),
            Series("tgi_request_input_length_sum", "prompt_tokens"),
            Series("tgi_request_success", "finished"),
        ),
        # its /health is unhealthy when the queue is full: never asked
        owned_by=("huggingface", "text-generation-inference"),
    ),
    Engine(
        name="tensorrt_llm",
        page="/prometheus/metrics",  # /metrics is JSON and a destructive read: never touched
        prefix=("trtllm_",),
        series=(
            Series("trtllm_num_requests_running", "running"),
            Series("trtllm_num_requests_waiting", "waiting"),
            Series("trtllm_kv_cache_utilization", "kv_usage"),
            Series("trtllm_generation_tokens_total", "generation_tokens"),
            Series("trtllm_prompt_tokens_total", "prompt_tokens"),
            Series("trtllm_request_success_total", "finished"),
        ),
        health="/health",
        owned_by=("tensorrt_llm", "tensorrt-llm", "trtllm"),
        provable=False,
    ),
    Engine(
        name="lmdeploy",
        page="/metrics",
        prefix=("lmdeploy_",),
        series=(
            Series("lmdeploy_num_requests_running", "running"),
            Series("lmdeploy_num_requests_waiting", "waiting"),
            Series("lmdeploy_gpu_cache_usage_perc", "kv_usage"),
            Series("lmdeploy_iteration_tokens_total_count", "steps"),
            Series("lmdeploy_generation_tokens_total", "generation_tokens"),
            Series("lmdeploy_prompt_tokens_total", "prompt_tokens"),
            Series("lmdeploy_request_success_total", "finished"),
        ),
        engine_label="engine",
        health="/health",  # watches a scheduler tick
        owned_by=("lmdeploy",),
    ),
    Engine(
        name="nim",
        page="/v1/metrics",
        prefix=("vllm_", "num_requests_", "iteration_tokens_", "generation_tokens_", "prompt_tokens_"),
        series=_VLLM_SERIES + _BARE_SERIES,
        engine_label="engine",
        health="/v1/health/ready",
        owned_by=("nim", "nvidia"),
    ),
    Engine(
        name="ollama",
        page=None,
        owned_by=("library", "ollama"),
        loaded="/api/ps",
        no_evidence="Ollama publishes no counters, and asking a model may load it: nothing can be known without a probe",
    ),
    Engine(
        name="tabbyapi",
        page=None,
        owned_by=("tabbyapi",),
        no_evidence="TabbyAPI publishes no counters: nothing can be known without a probe",
    ),
)

BY_NAME: dict[str, Engine] = {engine.name: engine for engine in ENGINES}


def engine_named(name: str) -> Engine | None:
    """The row for a name as people write it, or None."""
    plain = name.strip().lower()
    return BY_NAME.get(ENGINE_ALIASES.get(plain, plain))


@dataclass(frozen=True)
class Proxy:
    """A known proxy and how it is recognised: a response header's beginning, /models' owner, or a series on a page."""

    name: str
    header_prefix: str | None = None
    server_header: str | None = None
    owned_by: tuple[str, ...] = ()
    series_prefix: str | None = None
    series_label: str | None = None


PROXIES: tuple[Proxy, ...] = (
    Proxy("litellm", header_prefix="x-litellm-", series_prefix="litellm_"),
    Proxy("llama-swap", owned_by=("llama-swap",), server_header="llama-swap"),
    # the production-stack router exports the engines' gauges again, with the backend's address in `server`
    Proxy("vllm-router", series_prefix="vllm_", series_label="server"),
    Proxy("sglang-router", series_prefix="sgl_router_", owned_by=("sglang-router",)),
    Proxy("sglang-router", series_prefix="smg_"),
)
