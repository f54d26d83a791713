# SPDX-License-Identifier: GPL-3.0-or-later
"""Frozen dataclasses to JSON values and back. Unknown keys are ignored, missing ones take their defaults."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def encode(value: Any) -> Any:
    """A JSON value for a dataclass of plain values, tuples, dicts and dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[T], value: Any) -> T:
    """The dataclass that `encode` made the value of. Raises ValueError where the value cannot be one."""
    result = _decode(kind, value)
    return typing.cast(T, result)


def _decode(kind: Any, value: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        rest = [one for one in arguments if one is not types.NoneType]
        return _decode(rest[0], value)
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ValueError(f"{kind.__name__} must be an object")
        hints = typing.get_type_hints(kind)
        given = {f.name: _decode(hints[f.name], value[f.name]) for f in fields(kind) if f.name in value}
        try:
            return kind(**given)
        except TypeError as error:
            raise ValueError(str(error)) from None
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError("a list is needed")
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ValueError("an object is needed")
        return {str(key): _decode(arguments[1], item) for key, item in value.items()}
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("a number is needed")
        try:
            number = float(value)
        except OverflowError:
            raise ValueError("a number of that size is none of ours") from None
        if math.isnan(number):
            raise ValueError("a number is needed, and this is none")
        return number
    if kind in (int, str, bool):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ValueError(f"{value!r} is not {kind.__name__}")
        return value
    return value
