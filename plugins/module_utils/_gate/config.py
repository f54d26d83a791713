# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The gate's configuration: described by tables, validated as a whole, frozen.

Every problem is one sentence that begins with the file and the key. Arithmetic that cannot work is refused here,
with the sum that shows why, so that no request ever finds out.
"""

from __future__ import annotations

import difflib
import ipaddress
import math
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from .endpoint import Endpoint
from .errors import ConfigError, GateError
from .shown import one_line, shown, without_user
from .token_file import read_token
from .yaml_file import need_regular, read_yaml

DEFAULT_CONFIG_FILE = "/etc/gb10-serving/usage-gate.yml"


class OnFailure(StrEnum):
    """What happens to a request for which no verdict, fresh or remembered, was to be had."""

    OPEN = "open"  # serve it unchecked and count it: not serving would be worse
    CLOSED = "closed"  # refuse it and count it


@dataclass(frozen=True)
class StaticEndpoints:
    """Endpoints written down one by one."""

    endpoints: tuple[Endpoint, ...]


@dataclass(frozen=True)
class DnsEndpoints:
    """A name with one A/AAAA record per replica, or (a name that begins with ``_``) SRV records."""

    name: str
    port: int | None  # None: SRV, the records carry the port
    refresh_s: float
    scheme: str


@dataclass(frozen=True)
class KubernetesEndpoints:
    """The EndpointSlices of a service."""

    namespace: str
    service: str
    port: str  # the name of the port, or its number as text
    scheme: str
    api_url: str | None  # None: the cluster this runs in
    token_file: str | None
    ca_file: str | None


# In quotes: ansible-test's pylint takes the bar between classes for arithmetic.
Source: TypeAlias = "StaticEndpoints | DnsEndpoints | KubernetesEndpoints"


@dataclass(frozen=True)
class Request:
    """How the question is put."""

    path: str = "/v1/usage/check"
    unchecked_path: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold secrets
    token_file: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True)
class Limits:
    """Time and extra load one question may cost."""

    connect_s: float = 0.25
    attempt_s: float = 0.5
    budget_s: float = 1.0
    retries: int = 1
    hedge_after_s: float = 0.05
    hedge_share: float = 0.1
    hedge_burst: int = 32


@dataclass(frozen=True)
class Ejection:
    """When an endpoint is left out, and for how long before a probe asks for it again."""

    after_errors: int = 1
    after_5xx: int = 3
    cooldown_s: float = 2.0
    cooldown_max_s: float = 10.0


@dataclass(frozen=True)
class VerdictCache:
    """How long a last-known verdict may stand in when no endpoint gives one."""

    denied_s: float = 300.0
    allowed_s: float = 30.0
    allowed_uses: int = 20


@dataclass(frozen=True)
class GateConfig:
    """One valid configuration."""

    source: Source
    capped_models: tuple[str, ...]
    request: Request = Request()
    limits: Limits = Limits()
    ejection: Ejection = Ejection()
    verdict_cache: VerdictCache = VerdictCache()
    on_failure: OnFailure = OnFailure.OPEN
    metrics_prefix: str = "usage_gate"


@dataclass(frozen=True)
class _Number:
    """A number's bounds; ``whole`` for integers. The upper bounds are where a value must be a mistake of unit."""

    low: float
    high: float
    whole: bool = False


_LIMITS: Mapping[str, _Number] = {
    "connect_s": _Number(0.001, 60),
    "attempt_s": _Number(0.001, 60),
    "budget_s": _Number(
        0.001, 120
    ),  # a client waits for this before its first token: minutes are milliseconds mistyped
    "retries": _Number(0, 10, whole=True),
    "hedge_after_s": _Number(0.001, 60),
    "hedge_share": _Number(0, 1),  # above 1 every question would be asked twice and more
    "hedge_burst": _Number(0, 10_000, whole=True),
}
_EJECTION: Mapping[str, _Number] = {
    # 0: never
    "after_errors": _Number(0, 1_000, whole=True),
    "after_5xx": _Number(0, 1_000, whole=True),
    "cooldown_s": _Number(0.01, 3_600),
    "cooldown_max_s": _Number(0.01, 3_600),
}
_VERDICT_CACHE: Mapping[str, _Number] = {
    "denied_s": _Number(0, 31 * 86_400),  # a monthly cap's reset is the longest sensible memory
    "allowed_s": _Number(0, 3_600),
    "allowed_uses": _Number(0, 1_000_000, whole=True),
}
_REFRESH_S = _Number(0.5, 3_600)

TOP_KEYS = (
    "endpoints",
    "request",
    "limits",
    "ejection",
    "verdict_cache",
    "capped_models",
    "on_failure",
    "metrics_prefix",
)
_REQUEST_KEYS = ("path", "unchecked_path", "headers", "token_file", "ca_file")
_DNS_KEYS = ("name", "port", "refresh_s", "scheme")
_KUBERNETES_KEYS = ("namespace", "service", "port", "scheme", "api_url", "token_file", "ca_file")
_SOURCES = ("static", "dns", "kubernetes")

# \Z, for $ lets a line break follow, which would end up in a request line or a header.
_DNS_NAME = re.compile(r"(?=.{1,253}\.?\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}))*\.?\Z")
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_METRIC_PREFIX = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z")
#: What a request line can carry of a path: visible ASCII. Everything else is written as %XX.
_VISIBLE = re.compile(r"[!-~]*\Z")
#: Headers the gate sets itself; a second value would make the question ambiguous.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "connection", "transfer-encoding", "accept-encoding", "idempotency-key"}
)


def load_config(path: str | Path) -> GateConfig:
    """The configuration in a file, its token and CA files looked at too; ConfigError with every problem found."""
    config = parse_config(read_yaml(path, "the gate's configuration"), str(path))
    problems = file_problems(config, str(path))
    if problems:
        raise ConfigError(problems)
    return config


def file_problems(config: GateConfig, where: str) -> list[str]:
    """What is wrong with the files a configuration names; an empty list when all can be read."""
    problems = []
    named = [("request", config.request.token_file, config.request.ca_file)]
    if isinstance(config.source, KubernetesEndpoints):
        named.append(("endpoints.kubernetes", config.source.token_file, config.source.ca_file))
    for section, token_file, ca_file in named:
        if token_file is not None:
            try:
                read_token(token_file)
            except GateError as error:
                problems.append(f"{where}: {section}.token_file: {error}")
            except OSError as error:
                problems.append(f"{where}: {section}.token_file: cannot read {token_file}: {error.strerror}")
        if ca_file is not None:
            try:
                need_regular(ca_file)
                ssl.create_default_context(cafile=ca_file)
            except ssl.SSLError:
                problems.append(f"{where}: {section}.ca_file: {ca_file} holds no PEM certificate")
            except OSError as error:
                problems.append(f"{where}: {section}.ca_file: cannot read {ca_file}: {error.strerror}")
    return problems


def parse_config(document: Any, where: str) -> GateConfig:
    """A configuration from parsed YAML; ConfigError lists every problem, each naming ``where`` and the key."""
    reader = _Reader(where)
    config = reader.config(document)
    if reader.problems or config is None:
        raise ConfigError(reader.problems)
    return config


def parse_endpoint(text: Any) -> Endpoint:
    """An endpoint from its URL; ValueError with the reason when it is none."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError("an endpoint is a URL such as http://10.0.0.1:8080")
    text, said = text.strip(), shown(text.strip())
    if "@" in text:
        # Before anything else is said: where a password ends in a broken URL is anybody's guess, and so is what would
        # be a password's part in the reason that urlsplit gives.
        raise ValueError(
            f"{said} carries a user name or password; use request.token_file or request.headers, and write an @ as %40"
        )
    if not _VISIBLE.match(text):
        raise ValueError(
            f"{said} is not a URL: it has a space or another character that a request line cannot carry; write it as %XX"
        )
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{said} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{said} needs http:// or https:// and a host, such as http://10.0.0.1:8080")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ValueError(f"{said} carries a query or a fragment; the path of the question is request.path")
    host = parts.hostname
    if ":" in host or "[" in parts.netloc:
        try:
            address = ipaddress.IPv6Address(host)
            host = str(address.ipv4_mapped) if address.ipv4_mapped else f"[{address}]"
        except ValueError:
            raise ValueError(f"{said} is not a URL: {parts.hostname} is no address") from None
    elif re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise ValueError(f"{said} is not a URL: {host} is no address") from None
    elif not _DNS_NAME.match(host):
        raise ValueError(f"{said} is not a URL: {host!r} is no host name")
    if port == 0:
        raise ValueError(f"{said} has port 0")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return Endpoint(url=f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}")


class _Reader:
    """Walks one document and gathers problems. Methods give back a usable value even after a problem."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str] = []

    def say(self, key: str, sentence: str) -> None:
        self.problems.append(f"{self.where}: {key}: {sentence}" if key else f"{self.where}: {sentence}")

    def config(self, document: Any) -> GateConfig | None:
        if document is None:
            self.say("", "the file is empty; endpoints and capped_models are needed")
            return None
        if not isinstance(document, dict):
            self.say("", f"a mapping of settings is needed, not {_kind(document)}")
            return None
        self.unknown_keys("", document, TOP_KEYS)
        source = self.source(document.get("endpoints"), "endpoints" in document)
        capped = self.capped_models(document)
        request = self.request(document.get("request"))
        limits = self.limits(document.get("limits"))
        ejection = self.ejection(document.get("ejection"))
        cache_numbers = self.numbers("verdict_cache", document.get("verdict_cache"), _VERDICT_CACHE)
        on_failure = self.choice("on_failure", document.get("on_failure", "open"), ("open", "closed"))
        prefix = document.get("metrics_prefix", "usage_gate")
        if not isinstance(prefix, str) or not _METRIC_PREFIX.match(prefix):
            self.say(
                "metrics_prefix",
                f"{shown(prefix)} is not a Prometheus name; letters, digits, _ and : only, no digit first",
            )
            prefix = "usage_gate"
        if source is None or self.problems:
            return None
        return GateConfig(
            source=source,
            capped_models=capped,
            request=request,
            limits=limits,
            ejection=ejection,
            verdict_cache=VerdictCache(**cache_numbers),
            on_failure=OnFailure(on_failure),
            metrics_prefix=prefix,
        )

    def source(self, value: Any, given: bool) -> Source | None:
        if not given or value is None:
            self.say(
                "endpoints", f"exactly one of {', '.join(_SOURCES)} is needed: where the gate finds the platform API"
            )
            return None
        if not isinstance(value, dict):
            self.say("endpoints", f"a mapping with exactly one of {', '.join(_SOURCES)} is needed, not {_kind(value)}")
            return None
        self.unknown_keys("endpoints", value, _SOURCES)
        given_sources = [name for name in _SOURCES if name in value]
        if len(given_sources) != 1:
            which = " and ".join(given_sources) or "none"
            self.say("endpoints", f"exactly one of {', '.join(_SOURCES)} is needed, {which} given")
            return None
        name = given_sources[0]
        if name == "static":
            return self.static(value[name])
        return self.dns(value[name]) if name == "dns" else self.kubernetes(value[name])

    def static(self, value: Any) -> StaticEndpoints | None:
        key = "endpoints.static"
        if not isinstance(value, list):
            self.say(key, f"a list of URLs is needed, not {_kind(value)}")
            return None
        if not value:
            self.say(key, "the list is empty: with no endpoint every request would go unchecked; name at least one")
            return None
        endpoints: list[Endpoint] = []
        for position, item in enumerate(value):
            try:
                endpoint = parse_endpoint(item)
            except ValueError as error:
                self.say(f"{key}[{position}]", str(error))
                continue
            same = [place for place, other in enumerate(endpoints) if other.place == endpoint.place]
            if same:
                self.say(
                    f"{key}[{position}]",
                    f"{endpoint.url} is already given as {key}[{same[0]}]; a retry must reach another machine",
                )
            endpoints.append(endpoint)
        return StaticEndpoints(tuple(endpoints))

    def dns(self, value: Any) -> DnsEndpoints | None:
        key = "endpoints.dns"
        if not isinstance(value, dict):
            self.say(key, f"a mapping with name and port is needed, not {_kind(value)}")
            return None
        self.unknown_keys(key, value, _DNS_KEYS)
        name = value.get("name")
        if not isinstance(name, str) or not _DNS_NAME.match(name):
            self.say(f"{key}.name", f"a host name is needed, not {shown(name)}")
            name = "invalid"
        port = value.get("port")
        if name.startswith("_"):
            if port is not None:
                self.say(f"{key}.port", "SRV records carry their own port; leave it out")
        elif isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65_535:
            self.say(f"{key}.port", f"a port between 1 and 65535 is needed, not {shown(port)}")
        refresh_s = self.number(f"{key}.refresh_s", value.get("refresh_s", 5), _REFRESH_S, 5)
        scheme = self.choice(f"{key}.scheme", value.get("scheme", "http"), ("http", "https"))
        return DnsEndpoints(name=name, port=port, refresh_s=refresh_s, scheme=scheme)

    def kubernetes(self, value: Any) -> KubernetesEndpoints | None:
        key = "endpoints.kubernetes"
        if not isinstance(value, dict):
            self.say(key, f"a mapping with namespace, service and port is needed, not {_kind(value)}")
            return None
        self.unknown_keys(key, value, _KUBERNETES_KEYS)
        names = {}
        for part in ("namespace", "service"):
            text = value.get(part)
            if not isinstance(text, str) or not _KUBERNETES_NAME.match(text):
                self.say(f"{key}.{part}", f"a Kubernetes name is needed, not {shown(text)}")
                text = "invalid"
            names[part] = text
        port = value.get("port")
        if not _is_port(port):
            self.say(
                f"{key}.port",
                f"the name of the service's port, or a number from 1 to 65535, is needed, not {shown(port)}",
            )
        api_url = value.get("api_url")
        if api_url is not None:
            try:
                api_url = parse_endpoint(api_url).url
            except ValueError as error:
                self.say(f"{key}.api_url", str(error))
        return KubernetesEndpoints(
            namespace=names["namespace"],
            service=names["service"],
            port=_text(port),
            scheme=self.choice(f"{key}.scheme", value.get("scheme", "http"), ("http", "https")),
            api_url=api_url,
            token_file=self.path(f"{key}.token_file", value.get("token_file")),
            ca_file=self.path(f"{key}.ca_file", value.get("ca_file")),
        )

    def capped_models(self, document: dict[str, Any]) -> tuple[str, ...]:
        key = "capped_models"
        value = document.get(key)
        if not isinstance(value, list) or not value:
            self.say(key, "a list of at least one model group is needed; without one the gate would check nothing")
            return ()
        for position, item in enumerate(value):
            if not isinstance(item, str) or not item.strip() or item != item.strip() or not item.isprintable():
                self.say(f"{key}[{position}]", f"the name of a model group is needed, not {shown(item)}")
            elif item in value[:position]:
                self.say(f"{key}[{position}]", f"{shown(item)} is given twice")
        return tuple(item for item in value if isinstance(item, str))

    def request(self, value: Any) -> Request:
        if value is None:
            return Request()
        if not isinstance(value, dict):
            self.say("request", f"a mapping is needed, not {_kind(value)}")
            return Request()
        self.unknown_keys("request", value, _REQUEST_KEYS)
        paths: dict[str, str | None] = {"path": Request.path, "unchecked_path": None}
        for part in paths:
            text = value.get(part, paths[part])
            if text is None and part == "unchecked_path":
                continue
            if not isinstance(text, str) or not text.startswith("/") or "#" in text or not _VISIBLE.match(text):
                self.say(
                    f"request.{part}",
                    f"a path that begins with /, of visible ASCII without #, is needed, not {shown(text)}",
                )
                continue
            paths[part] = text
        headers = self.headers(value.get("headers"))
        if value.get("token_file") is not None and "authorization" in {name.lower() for name, dummy in headers}:
            self.say("request.headers.Authorization", "request.token_file makes this header; leave one of them out")
        return Request(
            path=paths["path"] or Request.path,
            unchecked_path=paths["unchecked_path"],
            headers=headers,
            token_file=self.path("request.token_file", value.get("token_file")),
            ca_file=self.path("request.ca_file", value.get("ca_file")),
        )

    def headers(self, value: Any) -> tuple[tuple[str, str], ...]:
        if value is None:
            return ()
        if not isinstance(value, dict):
            self.say("request.headers", f"a mapping of header to value is needed, not {_kind(value)}")
            return ()
        headers: list[tuple[str, str]] = []
        for name, content in value.items():
            key = f"request.headers.{name}"
            if not isinstance(name, str) or not _HEADER_NAME.match(name):
                self.say("request.headers", f"{shown(name)} is not a header name")
            elif name.lower() in _OWN_HEADERS:
                self.say(key, "the gate sets this header itself; leave it out")
            elif name.lower() in {given.lower() for given, dummy in headers}:
                self.say(key, "is there twice, in other letters; leave one out")
            elif isinstance(content, bool) or not isinstance(content, (str, int, float)):
                self.say(key, f"a text is needed, not {_kind(content)}")  # the value may be a secret: never shown
            elif not (text := _text(content)).isascii() or not text.isprintable():
                self.say(key, "the value has characters a header cannot carry")
            else:
                headers.append((name, text))
        return tuple(headers)

    def limits(self, value: Any) -> Limits:
        before = len(self.problems)
        limits = Limits(**self.numbers("limits", value, _LIMITS))
        if len(self.problems) > before:
            return limits  # sums over numbers already refused would only confuse
        worst_s = limits.attempt_s * (1 + limits.retries)
        if worst_s > limits.budget_s * (1 + 1e-9):
            self.say(
                "limits.budget_s",
                f"attempt_s × (1 + retries) = {limits.attempt_s:g} × {1 + limits.retries} = {worst_s:g} s does not fit into "
                f"budget_s {limits.budget_s:g} s; raise budget_s, or lower attempt_s or retries",
            )
        if limits.connect_s > limits.attempt_s:
            self.say(
                "limits.connect_s",
                f"connecting may take {limits.connect_s:g} s, more than the whole attempt's attempt_s "
                f"{limits.attempt_s:g} s; lower connect_s",
            )
        if limits.hedge_after_s >= limits.attempt_s:
            self.say(
                "limits.hedge_after_s",
                f"a second endpoint would be asked after {limits.hedge_after_s:g} s, when the attempt has ended (attempt_s "
                f"{limits.attempt_s:g} s); lower it, or set hedge_share: 0 with a smaller hedge_after_s to never hedge",
            )
        return limits

    def ejection(self, value: Any) -> Ejection:
        before = len(self.problems)
        ejection = Ejection(**self.numbers("ejection", value, _EJECTION))
        if len(self.problems) == before and ejection.cooldown_s > ejection.cooldown_max_s:
            self.say(
                "ejection.cooldown_s",
                f"the first cool-down {ejection.cooldown_s:g} s is longer than cooldown_max_s {ejection.cooldown_max_s:g} s",
            )
        return ejection

    def numbers(self, section: str, value: Any, table: Mapping[str, _Number]) -> dict[str, Any]:
        """The numbers given in a section; those left out keep the dataclass's default."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.say(section, f"a mapping is needed, not {_kind(value)}")
            return {}
        self.unknown_keys(section, value, tuple(table))
        return {
            name: self.number(f"{section}.{name}", value[name], bounds, bounds.low)
            for name, bounds in table.items()
            if name in value
        }

    def number(self, key: str, value: Any, bounds: _Number, fallback: float) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -math.inf < value < math.inf:
            self.say(key, f"a number is needed, not {shown(value)}")
            return fallback
        if bounds.whole and value % 1:
            self.say(key, f"a whole number is needed, not {shown(value)}")
            return fallback
        if not bounds.low <= value <= bounds.high:
            limit = f"at least {bounds.low:g}" if value < bounds.low else f"at most {bounds.high:g}"
            self.say(key, f"{shown(value)} is out of bounds: {bounds.low:g} to {bounds.high:g}; {limit} is needed")
            return fallback
        return int(value) if bounds.whole else float(value)

    def choice(self, key: str, value: Any, allowed: tuple[str, ...]) -> str:
        if value not in allowed:
            self.say(key, f"one of {', '.join(allowed)} is needed, not {shown(value)}")
            return allowed[0]
        return str(value)

    def path(self, key: str, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or not value.startswith("/"):
            # It is not repeated: what stands here may be the token itself.
            self.say(key, "an absolute path is needed, one that begins with /")
            return None
        if not value.isprintable():
            self.say(key, "the path has a character that cannot be printed; no file here is meant to have one")
            return None
        return value

    def unknown_keys(self, section: str, value: dict[Any, Any], known: tuple[str, ...]) -> None:
        for key in value:
            if key in known:
                continue
            name = one_line(without_user(_text(key))) or shown(key)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            self.say(f"{section}.{name}" if section else name, f"unknown key; {hint}")


def _is_port(value: Any) -> bool:
    """Whether this names a port: a number, also written as text, or a name as Kubernetes takes it."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value) if len(value) <= 5 else 0
    if isinstance(value, str):
        return bool(_PORT_NAME.match(value))
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 65_535


def _text(value: Any) -> str:
    """A scalar as text; a number too long for Python to write as hexadecimal."""
    return hex(value) if isinstance(value, int) and abs(value) >= 1 << 10_000 else str(value)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    return {dict: "a mapping", list: "a list", str: "a text", bool: "a yes or no"}.get(type(value), shown(value))
