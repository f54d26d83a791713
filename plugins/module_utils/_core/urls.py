# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of servers: checked once, written one way, and never shown with a password in them."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit, urlunsplit


def problem_with(url: object) -> str | None:
    """Why `url` is no server's address (a clause that follows "url: "), or None."""
    if not isinstance(url, str) or not url.strip():
        return "an address such as http://127.0.0.1:8000 is needed"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        why = "" if "@" in url else f" ({error})"  # the parser repeats what may be a password
        return f"{redacted(url)!r} is not an address{why}"
    if parts.scheme not in ("http", "https"):
        return f"{redacted(url)!r} must begin with http:// or https://"
    if not parts.hostname:
        return f"{redacted(url)!r} names no host"
    if any(ch.isspace() or ord(ch) < 32 for ch in url.strip()):
        return f"{redacted(url)!r} has white space in it"
    if port == 0:
        return f"{redacted(url)!r} has port 0"
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{redacted(url)!r} has an @ behind its host; in a password write / as %2F, ? as %3F and # as %23"
    if not _is_host(parts.hostname):
        return f"{redacted(url)!r} names no host that can be looked up"
    return None


def _is_host(name: str) -> bool:
    """An address, or a name of labels of 1 to 63 letters, as DNS takes them; a dot at the end is allowed."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
        return True
    except ValueError:
        pass
    try:
        plain = name.encode("idna").decode("ascii").removesuffix(".")
    except UnicodeError:
        return False
    return len(plain) <= 253 and all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in plain.split("."))


def address(url: str) -> str:
    """The address in one spelling: two that are equal are one server's. A path keeps its case."""
    parts = urlsplit(base(url))
    host, port = host_and_port(url)
    host = "localhost" if host in ("127.0.0.1", "::1") else host.removesuffix(".")
    return f"{parts.scheme}://{host} {port} {parts.path}"


def has_user(url: str) -> bool:
    """A user, with or without a password, is part of the address."""
    return "@" in urlsplit(url.strip()).netloc


def base(url: str) -> str:
    """The server's root without a trailing slash; a trailing /v1, as clients are given it, is dropped."""
    parts = urlsplit(url.strip())
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        path = path[: -len("/v1")].rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def redacted(url: str) -> str:
    """The address without user, password and query, for logs and results."""
    try:
        parts: SplitResult = urlsplit(url.strip())
        host = parts.hostname or ""
        port = parts.port
    except ValueError:
        return url.split("@")[-1].split("?")[0]
    if not parts.scheme or not host:
        return url.split("@")[-1].split("?")[0]
    if "@" in parts.path:
        return url.split("@")[-1].split("?")[0]  # a password with a / in it
    if ":" in host:
        host = f"[{host}]"
    netloc = f"{host}:{port}" if port is not None else host
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def host_and_port(url: str) -> tuple[str, int]:
    """Host name or address, and port (80 or 443 where none is given)."""
    parts = urlsplit(url.strip())
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
