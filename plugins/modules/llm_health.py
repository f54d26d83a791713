#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: llm_health
short_description: Say what LLM servers are doing, from their own counters
version_added: 0.1.0
description:
  - Reads the metrics page of vLLM, SGLang, llama.cpp and other servers and says whether each is busy, idle, stalled, hung or dead.
  - Takes no request slot of a server that works. Only where the counters say that nothing is in flight, one request of one token is sent.
  - Many servers are asked side by side by one call. That costs far less than one call per host.
author:
  - The gb10.serving maintainers (@gb10-serving)
extends_documentation_fragment:
  - gb10.serving.attributes
  - gb10.serving.attributes.info
requirements:
  - httpx >= 0.23
  - PyYAML
options:
  url:
    description:
      - Address of one server, such as V(http://127.0.0.1:8000).
    type: str
  servers:
    description:
      - Servers to check, described as in the variable C(llm_servers) that all roles of this collection use.
      - What only concerns restarting them is checked for faults and otherwise left alone here.
    type: list
    elements: dict
  config:
    description:
      - A file on the host this runs on that describes servers, such as V(/etc/gb10-serving/servers.yml).
    type: path
  engine:
    description:
      - Which engine serves at O(url). V(auto) finds out.
    type: str
    default: auto
    choices: [auto, vllm, sglang, llamacpp, ik_llamacpp, tgi, tensorrt_llm, lmdeploy, nim, ollama, tabbyapi]
  role:
    description:
      - Whether a server or a proxy answers at O(url). A proxy is only asked for its list of models.
    type: str
    default: auto
    choices: [auto, server, proxy]
  wait:
    description:
      - Seconds from the end of one reading to the start of the next. Two values are the two waits, one is used for both.
    type: list
    elements: float
    default: [10]
  patience:
    description:
      - Seconds without any sign of progress, with work in flight, that prove a hang.
      - Not given, it is what this host's watchdog had at its last look, else the server's own or its file's C(settings),
        else 600, or 180 for an engine whose counters move on every step.
    type: float
  connect_timeout:
    description: Seconds that connecting may take.
    type: float
    default: 3
  read_timeout:
    description: Seconds that the whole answer may take.
    type: float
    default: 15
  probe:
    description:
      - Whether and how to probe a server with nothing in flight.
      - V(auto) never probes where the counters cannot tell that the server is not full; naming a kind does, once.
      - While a busy lease is held on the host this runs on, nobody is probed.
    type: str
    choices: [auto, never, chat, completion, embedding]
  probe_timeout:
    description: Seconds to wait for the token of the probe.
    type: float
    default: 20
  api_key:
    description:
      - Key for O(url). It is sent in one header, never logged and never returned.
    type: str
  api_key_file:
    description:
      - File on the host this runs on that holds the key for O(url). Other users must not be able to read it.
    type: path
  proxy_env:
    description:
      - Use the proxies named in the environment. By default they are ignored.
    type: bool
    default: false
  fail_on:
    description:
      - States that fail the task.
    type: list
    elements: str
    default: [hung, dead]
    choices: [busy, idle, sleeping, reachable, starting, stalled, unresponsive, unknown, suspect, hung, dead]
  wait_for:
    description:
      - Check again until every server is in one of these states, as a deploy does while a model loads.
      - Servers that are there already are not asked again.
    type: list
    elements: str
    choices: [busy, idle, sleeping, reachable, starting, stalled, unresponsive, unknown, suspect, hung, dead]
  timeout:
    description:
      - Seconds after which O(wait_for) gives up and the task fails.
    type: float
    default: 1800
"""

EXAMPLES = r"""
- name: Check one server
  gb10.serving.llm_health:
    url: http://127.0.0.1:8000

- name: Check all servers of the fleet from the controller, in one call
  gb10.serving.llm_health:
    servers:
      - name: qwen
        url: http://127.0.0.1:8000
      - name: embeddings
        url: http://127.0.0.1:8001
        probe: embedding
    fail_on: []
  delegate_to: localhost
  run_once: true
  register: fleet

- name: Wait while 19 GB of weights load
  gb10.serving.llm_health:
    url: http://127.0.0.1:8000
    wait_for: [busy, idle]
    timeout: 3600
"""

RETURN = r"""
servers:
  description: One entry for each server, in the order given.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The server's name, or host and port where it was given by address.
      type: str
      sample: qwen
    url:
      description: Its address, without user or password.
      type: str
      sample: http://127.0.0.1:8000
    engine:
      description: The engine that serves there, where it is known.
      type: str
      sample: vllm
    role:
      description: V(server) or V(proxy).
      type: str
      sample: server
    state:
      description: What it is doing.
      type: str
      sample: busy
    healthy:
      description: V(true), V(false), or V(none) where it cannot be told.
      type: bool
      sample: true
    restart_justified:
      description: Whether a restart would be justified by proof. Nothing is restarted by this module.
      type: bool
      sample: false
    reason:
      description: Why, in one plain sentence.
      type: str
      sample: 4 running and 0 waiting, and progress was seen (steps, generated tokens)
    running:
      description: Requests in execution.
      type: float
      sample: 4
    waiting:
      description: Requests in the queue.
      type: float
      sample: 0
    in_flight:
      description: Requests that the front end holds, where the server counts them.
      type: float
      sample: 4
    steps_per_second:
      description: Engine steps a second between the first and the last reading.
      type: float
      sample: 20.1
    tokens_per_second:
      description: Generated tokens a second between the first and the last reading.
      type: float
      sample: 80.4
    probe_sent:
      description: Whether a request was sent to the model.
      type: bool
      sample: false
    no_progress_seconds:
      description: Seconds since the last sign of progress, where work is in flight.
      type: float
      sample: 0
    engines:
      description: The same for each engine (data-parallel rank) of the server.
      type: list
      elements: dict
      sample: [{"engine": "0", "state": "busy", "running": 4, "waiting": 0, "no_progress_seconds": 0}]
table:
  description: The same as a table that a person can read, one line for each server.
  returned: always
  type: list
  elements: str
"""

import asyncio
import time

from ansible_collections.gb10.serving.plugins.module_utils._busy import store as busy_store
from ansible_collections.gb10.serving.plugins.module_utils._core import servers as core_servers
from ansible_collections.gb10.serving.plugins.module_utils._core import yaml_file
from ansible_collections.gb10.serving.plugins.module_utils._core.errors import ConfigError, Faults
from ansible_collections.gb10.serving.plugins.module_utils._core.keys import checked_key, read_key
from ansible_collections.gb10.serving.plugins.module_utils._health import request, witness
from ansible_collections.gb10.serving.plugins.module_utils._health.check import check
from ansible_collections.gb10.serving.plugins.module_utils._health.table import table
from ansible_collections.gb10.serving.plugins.module_utils._module import run_module
from ansible_collections.gb10.serving.plugins.module_utils._watchdog import remembered

STATES = [
    "busy",
    "idle",
    "sleeping",
    "reachable",
    "starting",
    "stalled",
    "unresponsive",
    "unknown",
    "suspect",
    "hung",
    "dead",
]
# Between two rounds of waiting for a state; a load takes minutes.
ROUND_S = 5.0


def _subjects(params):
    found, faults = [], Faults()
    if params["url"]:
        with faults:
            key = checked_key(params["api_key"], "api_key") if params["api_key"] else None
            if params["api_key_file"]:
                key = read_key(params["api_key_file"], "api_key_file")
            found.append(
                request.subject_of_url(params["url"], engine=params["engine"], role=params["role"], api_key=key)
            )
    if params["servers"] is not None:
        with faults:
            found += request.subjects_of(core_servers.Description(core_servers.validate(params["servers"], "servers")))
    if params["config"]:
        with faults:
            described = core_servers.from_document(yaml_file.load(params["config"]), params["config"])
            found += request.subjects_of(described)
    faults.tell()
    if not found:
        raise ConfigError(["servers: is empty; there is nothing to check"])
    return request.with_patiences(found, remembered.patiences()) if params["patience"] is None else found


async def _rounds(subjects, options, wanted, timeout):
    reports = await check(subjects, options, witness.on_this_machine, leases=busy_store.held)
    end = time.monotonic() + timeout
    while wanted:
        late = [n for n, report in enumerate(reports) if report.verdict.state.value not in wanted]
        left = end - time.monotonic()
        if not late or left <= 0:
            break
        await asyncio.sleep(min(ROUND_S, left))
        again = await check([subjects[n] for n in late], options, witness.on_this_machine, leases=busy_store.held)
        for n, report in zip(late, again, strict=True):
            reports[n] = report
    return reports


def _work(module):
    params = module.params
    if params["timeout"] < 0:
        raise ConfigError(["timeout: must not be negative"])
    options = request.options(
        wait=params["wait"],
        patience=params["patience"],
        connect_timeout=params["connect_timeout"],
        read_timeout=params["read_timeout"],
        probe=params["probe"],
        probe_timeout=params["probe_timeout"],
        trust_env=params["proxy_env"],
    )
    wanted = params["wait_for"] or []
    reports = asyncio.run(_rounds(_subjects(params), options, wanted, params["timeout"]))
    rows = [report.as_json() for report in reports]
    result = {"changed": False, "servers": rows, "table": table(rows).splitlines()}
    bad = [row for row in rows if row["state"] in params["fail_on"] and row["state"] not in wanted]
    bad += [row for row in rows if wanted and row["state"] not in wanted and row not in bad]
    if bad:
        result["failed"] = True
        result["msg"] = "; ".join(f"{row['name']} is {row['state']}: {row['reason']}" for row in bad)
    return result


def main():
    run_module(
        {
            "url": {"type": "str"},
            "servers": {"type": "list", "elements": "dict"},
            "config": {"type": "path"},
            "engine": {
                "type": "str",
                "default": "auto",
                "choices": [
                    "auto",
                    "vllm",
                    "sglang",
                    "llamacpp",
                    "ik_llamacpp",
                    "tgi",
                    "tensorrt_llm",
                    "lmdeploy",
                    "nim",
                    "ollama",
                    "tabbyapi",
                ],
            },
            "role": {"type": "str", "default": "auto", "choices": ["auto", "server", "proxy"]},
            "wait": {"type": "list", "elements": "float", "default": [10]},
            "patience": {"type": "float"},
            "connect_timeout": {"type": "float", "default": 3},
            "read_timeout": {"type": "float", "default": 15},
            "probe": {"type": "str", "choices": ["auto", "never", "chat", "completion", "embedding"]},
            "probe_timeout": {"type": "float", "default": 20},
            "api_key": {"type": "str", "no_log": True},
            "api_key_file": {"type": "path", "no_log": False},
            "proxy_env": {"type": "bool", "default": False},
            "fail_on": {"type": "list", "elements": "str", "default": ["hung", "dead"], "choices": STATES},
            "wait_for": {"type": "list", "elements": "str", "choices": STATES},
            "timeout": {"type": "float", "default": 1800},
        },
        _work,
        needs=("httpx", "yaml"),
        required_one_of=[("url", "servers", "config")],
        mutually_exclusive=[("api_key", "api_key_file")],
    )


if __name__ == "__main__":
    main()
