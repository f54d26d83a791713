# Copyright: (c) 2026, The gb10.serving maintainers
# GNU General Public License v3.0 or later (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Just enough DNS to ask for SRV records: the standard library resolves addresses, but not these. Bytes only, no I/O."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .errors import SourceError

TYPE_SRV = 33
_TYPE_OPT = 41
_CLASS_IN = 1
#: Bytes an answer over UDP may have (DNS flag day 2020: what passes everywhere unfragmented). Longer comes over TCP.
UDP_BYTES = 1232
#: Compression pointers followed in one name; a loop of them must end.
MAX_POINTERS = 32


class NoSuchName(SourceError):
    """The server says that the name, or its records, do not exist."""


@dataclass(frozen=True, order=True)
class Service:
    """One SRV record."""

    priority: int
    weight: int
    port: int
    target: str


def srv_query(name: str, number: int) -> bytes:
    """A query for the SRV records of ``name``; ``number`` (16 bits) marks its answer."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    question = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    header = struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 1)  # recursion desired; one question, one OPT
    opt = b"\0" + struct.pack("!HHIH", _TYPE_OPT, UDP_BYTES, 0, 0)
    return header + question + struct.pack("!HH", TYPE_SRV, _CLASS_IN) + opt


def read_srv(packet: bytes, number: int) -> tuple[list[Service], bool]:
    """The records in an answer, and whether it was cut short (ask again over TCP). SourceError when it is none."""
    try:
        return _read_srv(packet, number)
    except (struct.error, IndexError, UnicodeDecodeError):
        raise SourceError("the DNS server's answer is broken") from None


def _read_srv(packet: bytes, number: int) -> tuple[list[Service], bool]:
    answer_number, flags, questions, answers, dummy1, dummy2 = struct.unpack_from("!HHHHHH", packet)
    if answer_number != number or not flags & 0x8000:
        raise SourceError("the DNS server's answer is to another question")
    code = flags & 0x000F
    if code == 3:
        raise NoSuchName("the name does not exist")
    if code:
        raise SourceError(f"the DNS server answered with error {code}")
    position = 12
    for dummy in range(questions):
        dummy_name, position = _name(packet, position)
        position += 4
    services = []
    for dummy in range(answers):
        dummy_name, position = _name(packet, position)
        kind, _class, _ttl, length = struct.unpack_from("!HHIH", packet, position)
        position += 10
        if kind == TYPE_SRV:
            priority, weight, port = struct.unpack_from("!HHH", packet, position)
            target, dummy_end = _name(packet, position + 6)
            if target and port:  # a target of "." says: decidedly not available here
                services.append(Service(priority, weight, port, target))
        position += length
    return services, bool(flags & 0x0200)


def _name(packet: bytes, position: int) -> tuple[str, int]:
    """The name at a position, and where it ends there."""
    labels: list[str] = []
    end = None
    pointers = 0
    while True:
        length = packet[position]
        if length >= 0xC0:
            end = position + 2 if end is None else end
            pointers += 1
            if pointers > MAX_POINTERS:
                raise SourceError("the DNS server's answer has a name that points to itself")
            position = struct.unpack_from("!H", packet, position)[0] & 0x3FFF
        elif length:
            labels.append(packet[position + 1 : position + 1 + length].decode("ascii"))
            position += 1 + length
        else:
            return ".".join(labels), position + 1 if end is None else end
