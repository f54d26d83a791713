"""What of a configuration may be shown: every secret, wherever people put it, is hidden; nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.serving.plugins.module_utils._litellm.secrets import secrets_in, without_secrets

S = "S3CRETtok-9f8e7d6c5b4a"
HOLDS = [
    "api_base: https://h/v1?api-key=%s",
    "api_base: h/v1?%s",
    "litellm_params: {api_base: 'https://h/v1?x=1&code=%s'}",
    "pass_through_endpoints: [{path: /x, target: 'https://h/?token=%s', headers: {Authorization: 'Bearer %s'}}]",
    "database_url: postgresql://h/db?user=u&password=%s",
    "database_url: postgresql://u:%s@h/db?password=%s",
    "database_connection_pool: host=h password=%s",
    "mcp_servers: {gh: {url: 'https://h/mcp?key=%s', auth_value: '%s', authentication_token: '%s', env: {GH_PAT: '%s'}}}",
    "mcp_servers: {gh: {args: ['--token', '%s', '--api-key=%s']}}",
    "api_keys: ['%s']",
    "tokens: ['%s']",
    "passwords: {a: '%s'}",
    "api-key: '%s'",
    "subscription-key: '%s'",
    "apiKey: '%s'",
    "clientSecret: '%s'",
    "AWSSecretAccessKey: '%s'",
    "extra_query: {code: '%s'}",
    "headers: x-honeycomb-team=%s",
    "key_alias_map: {'sk-%s': bob}",
    "note: send Authorization: Bearer %s",
    "note: use hf_%s",
    "extra_body: {auth: '%s'}",
    "slack_webhook: '%s'",
    "credential_list: [{credential_name: a, credential_values: {anything: '%s'}}]",
    "litellm_license: '%s'",
    "smtp_pass: '%s'",
    "private_key_pem: '%s'",
    "api_key_2: '%s'",
    "OPENAI_API_KEY_BACKUP: '%s'",
    "db_secret_value: '%s'",
    "passcode: '%s'",
    "vertex_credentials_json: '%s'",
    "prompt: AIza%s",
    "prompt: eyJhbGciOiJIUzI1NiJ9.%s.abc",
    'prompt: "-----BEGIN PRIVATE KEY-----\\n%s\\n-----END PRIVATE KEY-----"',
]


@pytest.mark.parametrize("text", [text.replace(": Bearer", "= Bearer") if "note" in text else text for text in HOLDS])
def test_a_secret_is_hidden_and_known(text):
    document = yaml.safe_load(text.replace("%s", S))
    assert S not in json.dumps(without_secrets(document))
    printed = json.dumps(document)
    for found in sorted(secrets_in(document), key=len, reverse=True):
        printed = printed.replace(found, "*")
    assert S not in printed


SHOWN: dict[str, Any] = {
    "model_list": [
        {
            "model_name": "qwen",
            "litellm_params": {"model": "hosted_vllm/q", "api_base": "http://h:8000/v1", "max_tokens": 4096, "api_key": "os.environ/K"},
            "model_info": {"input_cost_per_token": 0, "output_cost_per_token": 1e-06, "max_input_tokens": 32000},
        }
    ],
    "litellm_settings": {"callbacks": ["usage_gate.usage_gate"], "cache_params": {"type": "redis", "host": "redis"}, "sort_keys": True},
    "general_settings": {"custom_auth": "mine.user_api_key_auth", "litellm_key_header_name": "X-Key", "note": "what? a=1 #3"},
    "mcp_servers": {"gh": {"command": "npx", "args": ["--verbose", "x"], "auth_type": "bearer_token"}},
}  # fmt: skip


def test_what_is_no_secret_is_shown():
    assert without_secrets(SHOWN) == SHOWN
    assert list(secrets_in(SHOWN)) == []
