"""What the role litellm would write, for tests that run a proxy with it."""

from __future__ import annotations

from typing import Any


def role_settings(model_list: list[dict[str, Any]], timeout_s: float) -> dict[str, Any]:
    return {
        "model_list": [
            {
                **deployment,
                "litellm_params": {**deployment["litellm_params"], "timeout": timeout_s, "stream_timeout": timeout_s},
                "model_info": {"disable_background_health_check": True},
            }
            for deployment in model_list
        ],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True, "routing_strategy": "simple-shuffle"},
        "litellm_settings": {},
        "general_settings": {"health_check_skip_disabled_background_models": True},
    }
