# SPDX-License-Identifier: GPL-3.0-or-later
"""Looks at a server for the policy's tests: one, many, and what is decided after each."""

from __future__ import annotations

from ansible_collections.gb10.serving.plugins.module_utils._core.settings import Settings
from ansible_collections.gb10.serving.plugins.module_utils._health.observation import (
    Observation,
    Service,
)
from ansible_collections.gb10.serving.plugins.module_utils._health.reading import EngineReading, Reading
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.decide import Action, Surroundings, step
from ansible_collections.gb10.serving.plugins.module_utils._watchdog.memory import Memory

UP = Service("active", -7200.0, True)


def seen(t, moved=0.0, **more):
    """A server with two requests whose steps stand at `moved`, unless said otherwise."""
    engine = {"running": 2.0, "waiting": 0.0, "steps": 1000.0 + moved, "kv_usage": 0.3, **more.pop("engine", {})}
    start = more.pop("start", 1000.0)
    reading = Reading(engines={"0": EngineReading(**engine)}, start_time=start)
    if more.get("metrics", "ok") != "ok":
        reading = None
    return Observation(t=float(t), reading=reading, **{"metrics": "ok", "service": UP, **more})


def walk(observations, settings=None, memory=None, around=None, **more):
    """The steps of a list of observations."""
    memory, found = memory or Memory(), []
    for observation in observations:
        found.append(step(settings or Settings(), memory, observation, around or Surroundings(), **more))
        memory = found[-1].memory
    return found


def actions(observations, settings=None, **more):
    """(t, action) of every observation with one."""
    return [
        (observation.t, done.decision.action.value)
        for observation, done in zip(observations, walk(observations, settings, **more), strict=True)
        if done.decision.action is not Action.NONE
    ]


def frozen(until, start=0, every=20, **more):
    return [seen(t, **more) for t in range(start, until + 1, every)]
