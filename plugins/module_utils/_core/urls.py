# SPDX-License-Identifier: GPL-3.0-or-later
"""Addresses of servers: checked once, written one way, and never shown with a password in them."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit, urlunsplit


def problem_with(url: object) -> str | None:
    """Why `url` is no server's address (a clause that follows "url: "), or None."""
    if not isinstance(url, str) or not url.strip():
        return "an address such as http://127.0.0.1:8000 is needed"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        return f"{redacted(url)!r} is not an address ({error})"
    if parts.scheme not in ("http", "https"):
        return f"{redacted(url)!r} must begin with http:// or https://"
    if not parts.hostname:
        return f"{redacted(url)!r} names no host"
    if any(ch.isspace() or ord(ch) < 32 for ch in url.strip()):
        return f"{redacted(url)!r} has white space in it"
    if port == 0:
        return f"{redacted(url)!r} has port 0"
    return None


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
    if ":" in host:
        host = f"[{host}]"
    netloc = f"{host}:{port}" if port is not None else host
    return urlunsplit((parts.scheme, netloc, parts.path, "", ""))


def host_and_port(url: str) -> tuple[str, int]:
    """Host name or address, and port (80 or 443 where none is given)."""
    parts = urlsplit(url.strip())
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
