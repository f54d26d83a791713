# SPDX-License-Identifier: GPL-3.0-or-later
"""The servers to watch, described once for every role and command, and validated whole: every fault with its path."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import urls
from .errors import ConfigError
from .settings import Settings, is_number, said, with_values

ENGINES = (
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
)
# What people write for them.
ENGINE_ALIASES = {
    "llama.cpp": "llamacpp",
    "llama-cpp": "llamacpp",
    "llama_cpp": "llamacpp",
    "ik_llama.cpp": "ik_llamacpp",
    "ik_llama": "ik_llamacpp",
    "trtllm": "tensorrt_llm",
    "tensorrt-llm": "tensorrt_llm",
    "trt-llm": "tensorrt_llm",
    "tabby": "tabbyapi",
}
ROLES = ("auto", "server", "proxy")
LIFECYCLES = ("always", "on_demand")
MODES = ("act", "observe")
PROBES = ("auto", "never", "chat", "completion", "embedding")
RESTARTERS = ("systemd", "docker", "podman", "compose", "command")
# Loading takes up to 30 minutes on one GB10, and longer where several must find each other.
START_CEILING_S = 1800.0
START_CEILING_RANKS_S = 3600.0

_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$")
_UNIT = re.compile(r"^[A-Za-z0-9:_.\\@-]+\.(service|scope)$")
_USER = re.compile(r"^[a-z_][a-z0-9_-]*\$?$|^[0-9]+$")
_CONTAINER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")


@dataclass(frozen=True)
class Restart:
    """What restarts a server. `kind`: one of RESTARTERS; `target`: unit or container; the rest where the kind has it."""

    kind: str
    target: str = ""
    user: str | None = None
    socket: str | None = None
    project: str | None = None
    service: str | None = None
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    run_as: str | None = None


@dataclass(frozen=True)
class RankSpec:
    """One rank of a multi-node server; the first is the head."""

    host: str
    restart: Restart | None = None
    memory_needed_gib: float | None = None


@dataclass(frozen=True)
class Server:
    """One server. Sizes in GiB, times in seconds. `restart` None: watched, never restarted."""

    name: str  # how the watchdog's commands and metrics call it
    url: str  # its own address, not a balancer's; a watched server is asked on its own host
    engine: str = "auto"  # vllm, sglang, llamacpp and so on; auto: told by its pages
    role: str = "auto"  # proxy: only /models is asked, and nothing is restarted
    lifecycle: str = "always"  # on_demand: nothing listens is not loaded, and not dead
    restart: Restart | None = None  # what restarts it (units-and-containers.md); null: watched, never restarted
    mode: str = "act"  # observe: decide and record, touch nothing
    group: str | None = None  # replicas of one model share one: not restarted while a sister is down
    api_key_file: str | None = None  # of a server with --api-key: on its host, for root alone, put there before
    probe: str = "auto"  # the kind of the one-token request for an idle server; never: none
    memory_needed_gib: float | None = None  # a start waits for this much; judged only with the server stopped
    drop_caches: bool = False  # on GB10 page cache counts against CUDA's free memory: drop it before the start
    start_ceiling_s: float = START_CEILING_S  # its own longest load; 3600 with ranks
    patience_s: float | None = None  # null: the policy's own
    ranks: tuple[RankSpec, ...] = ()  # multi-node, head first (two-nodes.md); only the head's watchdog acts


class _Faults:
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def add(self, path: str, sentence: str) -> None:
        self.sentences.append(f"{path}: {sentence}")


def _choice(value: Any, choices: tuple[str, ...], path: str, faults: _Faults) -> str:
    if isinstance(value, str) and value in choices:
        return value
    faults.add(path, f"{value!r} is none of {', '.join(choices)}")
    return choices[0]


def _number(value: Any, path: str, faults: _Faults, *, least: float, most: float) -> float | None:
    if value is None:
        return None
    if not is_number(value):
        faults.add(path, f"{said(value)} is not a number")
        return None
    if not least <= value <= most:
        faults.add(path, f"{value:g} is not between {least:g} and {most:g}")
        return None
    return float(value)


def _text(value: Any, path: str, faults: _Faults, pattern: re.Pattern[str], what: str) -> str:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    faults.add(path, f"{value!r} is not {what}")
    return ""


def _argv(value: Any, path: str, faults: _Faults) -> tuple[str, ...]:
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        if not value[0].startswith("/"):
            faults.add(path, f"{value[0]!r} must be the full path of a program")
        return tuple(value)
    faults.add(path, "a list of words is needed, the program's full path first")
    return ()


def _unknown_keys(value: Mapping[str, Any], known: tuple[str, ...], path: str, faults: _Faults) -> None:
    for key in value:
        if key not in known:
            faults.add(f"{path}.{key}", f"is not known here; known are {', '.join(known)}")


def _restart_systemd(value: Mapping[str, Any], path: str, faults: _Faults) -> Restart:
    _unknown_keys(value, ("systemd", "user"), path, faults)
    unit = value["systemd"]
    if isinstance(unit, str) and "." not in unit:
        unit += ".service"
    unit = _text(unit, f"{path}.systemd", faults, _UNIT, "the name of a unit such as vllm-qwen.service")
    user = value.get("user")
    if user is not None:
        user = _text(user, f"{path}.user", faults, _USER, "a user's name")
    return Restart("systemd", unit, user=user)


def _restart_docker(value: Mapping[str, Any], path: str, faults: _Faults) -> Restart:
    _unknown_keys(value, ("docker", "host"), path, faults)
    name = _text(value["docker"], f"{path}.docker", faults, _CONTAINER, "a container's name")
    return Restart("docker", name, socket=_socket(value, path, faults))


def _socket(value: Mapping[str, Any], path: str, faults: _Faults) -> str | None:
    host = value.get("host")
    if host is None or (isinstance(host, str) and host.startswith("unix:///")):
        return host
    faults.add(f"{path}.host", f"{host!r} is not a socket such as unix:///run/user/1000/docker.sock")
    return None


def _restart_podman(value: Mapping[str, Any], path: str, faults: _Faults) -> Restart:
    _unknown_keys(value, ("podman", "user"), path, faults)
    name = _text(value["podman"], f"{path}.podman", faults, _CONTAINER, "a container's name")
    user = value.get("user")
    if user is not None:
        user = _text(user, f"{path}.user", faults, _USER, "a user's name")
    return Restart("podman", name, user=user)


def _restart_compose(value: Mapping[str, Any], path: str, faults: _Faults) -> Restart:
    _unknown_keys(value, ("compose", "host"), path, faults)
    inner = value["compose"]
    if not isinstance(inner, Mapping):
        faults.add(f"{path}.compose", "needs project and service")
        return Restart("compose")
    _unknown_keys(inner, ("project", "service"), f"{path}.compose", faults)
    project = _text(inner.get("project"), f"{path}.compose.project", faults, _CONTAINER, "a compose project's name")
    service = _text(inner.get("service"), f"{path}.compose.service", faults, _CONTAINER, "a compose service's name")
    socket = _socket(value, path, faults)
    return Restart("compose", f"{project}/{service}", project=project, service=service, socket=socket)


def _restart_command(value: Mapping[str, Any], path: str, faults: _Faults) -> Restart:
    _unknown_keys(value, ("command",), path, faults)
    inner = value["command"]
    if not isinstance(inner, Mapping):
        faults.add(f"{path}.command", "needs stop and start, each a list of words")
        return Restart("command")
    _unknown_keys(inner, ("stop", "start", "run_as"), f"{path}.command", faults)
    stop = _argv(inner.get("stop"), f"{path}.command.stop", faults)
    start = _argv(inner.get("start"), f"{path}.command.start", faults)
    run_as = inner.get("run_as")
    if run_as is not None:
        run_as = _text(run_as, f"{path}.command.run_as", faults, _USER, "a user's name")
    return Restart("command", " ".join(start[:1]), stop=stop, start=start, run_as=run_as)


_RESTART: dict[str, Callable[[Mapping[str, Any], str, _Faults], Restart]] = {
    "systemd": _restart_systemd,
    "docker": _restart_docker,
    "podman": _restart_podman,
    "compose": _restart_compose,
    "command": _restart_command,
}


def _restart(value: Any, path: str, faults: _Faults) -> Restart | None:
    if value is None:
        return None
    kinds = [kind for kind in RESTARTERS if isinstance(value, Mapping) and kind in value]
    if len(kinds) != 1:
        found = f"{' and '.join(kinds)} together" if kinds else "none"
        faults.add(
            path,
            f"one of {', '.join(RESTARTERS)} is needed ({found} given); without `restart` the server is only watched",
        )
        return None
    return _RESTART[kinds[0]](value, path, faults)


def _rank(value: Any, path: str, faults: _Faults) -> RankSpec | None:
    if not isinstance(value, Mapping):
        faults.add(path, "needs host and restart")
        return None
    _unknown_keys(value, ("host", "restart", "memory_needed_gib"), path, faults)
    host = value.get("host")
    if not isinstance(host, str) or not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._:@-]*[A-Za-z0-9])?", host):
        faults.add(f"{path}.host", f"{host!r} is not a host's name")
        host = ""
    restart = _restart(value.get("restart"), f"{path}.restart", faults)
    memory = _number(value.get("memory_needed_gib"), f"{path}.memory_needed_gib", faults, least=0, most=100_000)
    return RankSpec(host, restart, memory)


_KEYS = tuple(Server.__dataclass_fields__)


def _server(value: Any, path: str, faults: _Faults) -> Server | None:
    if not isinstance(value, Mapping):
        faults.add(path, "needs at least name and url")
        return None
    _unknown_keys(value, _KEYS, path, faults)
    name = _text(
        value.get("name"), f"{path}.name", faults, _NAME, "a name (letters, digits, . _ : - and at most 64 of them)"
    )
    url = value.get("url")
    problem = urls.problem_with(url)
    if problem:
        faults.add(f"{path}.url", problem)
        url = ""
    engine = value.get("engine", "auto")
    if isinstance(engine, str):
        engine = ENGINE_ALIASES.get(engine.lower(), engine.lower())
    ranks_given = value.get("ranks")
    if ranks_given is None:
        ranks_given = []
    if not isinstance(ranks_given, list):
        faults.add(f"{path}.ranks", "must be a list of {host, restart}")
        ranks_given = []
    ranks = [_rank(rank, f"{path}.ranks[{n}]", faults) for n, rank in enumerate(ranks_given)]
    for n, rank in enumerate(ranks):
        if rank is not None and rank.restart is None and n > 0:
            faults.add(f"{path}.ranks[{n}].restart", "is needed: a pair is only ever restarted whole")
    restart = _restart(value.get("restart"), f"{path}.restart", faults)
    if restart is None and len(ranks) > 1 and ranks[0] is not None:
        restart = ranks[0].restart  # the first rank is the head, and the head is what `url` is served by
    group, key_file = value.get("group"), value.get("api_key_file")
    if group is not None:
        group = _text(group, f"{path}.group", faults, _NAME, "a group's name")
    if key_file is not None and not (isinstance(key_file, str) and key_file):
        faults.add(f"{path}.api_key_file", f"{key_file!r} is not a file's path")
        key_file = None
    if key_file is not None and url and urls.has_user(str(url)):
        faults.add(f"{path}.url", "has a user in it, and api_key_file is given too; only one can be sent: keep one")
    drop = value.get("drop_caches", False)
    if not isinstance(drop, bool):
        faults.add(f"{path}.drop_caches", f"{drop!r} is neither true nor false")
    ceiling = _number(value.get("start_ceiling_s"), f"{path}.start_ceiling_s", faults, least=1, most=86_400)
    return Server(
        name=name,
        url=url if isinstance(url, str) else "",
        engine=_choice(engine, ENGINES, f"{path}.engine", faults),
        role=_choice(value.get("role", "auto"), ROLES, f"{path}.role", faults),
        lifecycle=_choice(value.get("lifecycle", "always"), LIFECYCLES, f"{path}.lifecycle", faults),
        restart=restart,
        mode=_choice(value.get("mode", "act"), MODES, f"{path}.mode", faults),
        group=group,
        api_key_file=key_file,
        probe=_choice(value.get("probe", "auto"), PROBES, f"{path}.probe", faults),
        memory_needed_gib=_number(
            value.get("memory_needed_gib"), f"{path}.memory_needed_gib", faults, least=0, most=100_000
        ),
        drop_caches=drop is True,
        start_ceiling_s=ceiling or (START_CEILING_RANKS_S if ranks else START_CEILING_S),
        patience_s=_number(value.get("patience_s"), f"{path}.patience_s", faults, least=1, most=86_400),
        ranks=tuple(rank for rank in ranks if rank is not None),
    )


def validate(value: Any, path: str = "llm_servers") -> tuple[Server, ...]:
    """The servers described by a list of mappings. Raises ConfigError with every fault, each with its path."""
    faults = _Faults()
    if not isinstance(value, list):
        raise ConfigError([f"{path}: a list of servers is needed, each with name and url"])
    found = ((n, _server(item, f"{path}[{n}]", faults)) for n, item in enumerate(value))
    servers = {n: server for n, server in found if server is not None}
    names: dict[str, int] = {}
    addresses: dict[str, int] = {}
    for n, server in servers.items():
        if server.name and server.name in names:
            faults.add(f"{path}[{n}].name", f"{server.name!r} is {path}[{names[server.name]}]'s name too")
        names.setdefault(server.name, n)
        if server.url:
            address = urls.address(server.url)
            if address in addresses:
                faults.add(
                    f"{path}[{n}].url", f"{urls.redacted(server.url)} is {path}[{addresses[address]}]'s address too"
                )
            addresses.setdefault(address, n)
    if faults.sentences:
        raise ConfigError(faults.sentences)
    return tuple(servers.values())


# The keys under which a file may hold the list.
LIST_KEYS = ("llm_servers", "servers")


@dataclass(frozen=True)
class Description:
    """A servers.yml. `settings`: the policy's, by name, not yet validated. `notify_command`: argv, or empty."""

    servers: tuple[Server, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    notify_command: tuple[str, ...] = ()


def from_document(document: Any, name: str) -> Description:
    """What a servers.yml's document describes. `name` is the file's. Raises ConfigError with every fault."""
    if document is None:
        raise ConfigError([f"{name}: is empty; it needs llm_servers, a list of servers"])
    if isinstance(document, list):
        document = {"servers": document}
    if not isinstance(document, Mapping):
        raise ConfigError([f"{name}: needs llm_servers, a list of servers"])
    keys = [key for key in LIST_KEYS if key in document]
    known = (*LIST_KEYS, "settings", "notify_command")
    faults = [
        f"{name}: {key}: is not known here; known are llm_servers, settings and notify_command"
        for key in document
        if key not in known
    ]
    if len(keys) != 1:
        faults.append(f"{name}: needs llm_servers, a list of servers")
    settings = document.get("settings")
    if settings is None:
        settings = {}
    if not isinstance(settings, Mapping):
        faults.append(f"{name}: settings: must be a mapping of setting names to values")
        settings = {}
    try:
        with_values(Settings(), settings, f"{name}: settings")
    except ConfigError as error:
        faults += error.faults
    words = _Faults()
    notify: tuple[str, ...] = ()
    if document.get("notify_command") not in (None, []):
        notify = _argv(document["notify_command"], f"{name}: notify_command", words)
    faults += words.sentences
    servers: tuple[Server, ...] = ()
    if len(keys) == 1:
        try:
            servers = validate(document[keys[0]], keys[0])
        except ConfigError as error:
            faults += [f"{name}: {fault}" for fault in error.faults]
    if faults:
        raise ConfigError(faults)
    return Description(servers, settings, notify)
