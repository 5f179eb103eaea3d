"""Unknown fields of JSON objects, with the nearest known one named. For configuration files and request bodies."""

from __future__ import annotations

import difflib
import types
import typing
from typing import Any, NamedTuple

import msgspec


class UnknownField(NamedTuple):
    """path: where, e.g. `success[2].valeu`. near: the known name most like it, or None. known: all names there."""

    path: str
    near: str | None
    known: tuple[str, ...]

    def __str__(self) -> str:
        if self.near:
            return f"{self.path}: unknown field; did you mean {self.near!r}?"
        return f"{self.path}: unknown field; known here: {', '.join(self.known)}"


def nearest(name: str, known: typing.Iterable[str]) -> str | None:
    """The known name most like this one, None if none resembles it."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def find_unknown(data: Any, expected: Any, path: str = "") -> UnknownField | None:
    """The first field of `data` (decoded JSON) that type `expected` does not have.

    Follows structs, lists, tuples and unions of structs told apart by a tag field. What has another shape than expected
    is passed over: that is for the validation that comes after.
    """
    origin = typing.get_origin(expected)
    if origin in (types.UnionType, typing.Union):
        expected = _member(data, typing.get_args(expected))
        return find_unknown(data, expected, path) if expected is not None else None
    if origin in (list, tuple):
        if not isinstance(data, list):
            return None
        inner = typing.get_args(expected)[0]
        found = (find_unknown(item, inner, f"{path}[{i}]") for i, item in enumerate(data))
        return next((f for f in found if f), None)
    if not (isinstance(expected, type) and issubclass(expected, msgspec.Struct) and isinstance(data, dict)):
        return None
    fields = {f.encode_name: f.type for f in msgspec.structs.fields(expected)}
    tag_field = expected.__struct_config__.tag_field
    known = tuple(fields) if tag_field is None else (tag_field, *fields)
    for name, value in data.items():
        here = f"{path}.{name}" if path else name
        if name in fields:
            unknown = find_unknown(value, fields[name], here)
            if unknown:
                return unknown
        elif name not in known:
            return UnknownField(here, nearest(name, known), known)
    return None


def _member(data: Any, members: tuple[Any, ...]) -> Any:
    """Which struct of a union this object claims to be; None if it does not say."""
    structs = [m for m in members if isinstance(m, type) and issubclass(m, msgspec.Struct)]
    if len(structs) == 1:
        return structs[0]
    for struct in structs:
        config = struct.__struct_config__
        if isinstance(data, dict) and config.tag_field in data and data[config.tag_field] == config.tag:
            return struct
    return None
