"""The two forms of bodies: JSON, and MessagePack of the same types. Pure.

Bytes are not text, and JSON has only that: keys and values stand in `key` and `value` where they are valid UTF-8, else,
as base64 (RFC 4648, with padding), in `key_b64` and `value_b64`. In MessagePack they stand in `key` and `value` as they
are (bin); requests may name them by text (str), too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

T = TypeVar("T")
Member = Callable[[str, bytes], dict[str, Any]]
PARTS_MAX = 16_384
"""So many members all lists and maps of a request have together, in MessagePack: more than any request needs. Their
types are known only when all have been looked at, one by one."""


class Form(NamedTuple):
    """header: the line that says so. member(name, data): the member of an object in which these bytes stand.
    decode(body, type): msgspec.DecodeError, UnicodeDecodeError, RecursionError; of what anybody may have sent it is
    decode_request. decode_any: as it stands there."""

    name: str
    media_type: str
    header: bytes
    encode: Callable[[Any], bytes]
    member: Member
    decode: Callable[[bytes, type[Any]], Any]
    decode_request: Callable[[bytes, type[Any]], Any]
    decode_any: Callable[[bytes], Any]


def text_or_b64(name: str, data: bytes) -> dict[str, Any]:
    """The member of a JSON object in which these bytes stand."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": data}


def _in_json(body: bytes, type_: type[T]) -> T:
    return msgspec.json.decode(body, type=type_)


def _packed(body: bytes, type_: type[T]) -> T:
    return msgspec.convert(_unpacked(body), type_, builtin_types=(bytes,))


def _packed_request(body: bytes, type_: type[T]) -> T:
    tree = msgspec.msgpack.decode(body)
    if _has_more_parts(tree, PARTS_MAX):
        raise msgspec.ValidationError(f"more than {PARTS_MAX} members of lists and maps")
    return msgspec.convert(_named(tree), type_, builtin_types=(bytes,))


def _has_more_parts(tree: Any, parts_max: int) -> bool:
    parts, count = [tree], 0
    while parts and count <= parts_max:
        part = parts.pop()
        if isinstance(part, list | dict):
            count += len(part)
            parts += part if isinstance(part, list) else part.values()
    return count > parts_max


def _unpacked(body: bytes) -> Any:
    return _named(msgspec.msgpack.decode(body))


def _named(tree: Any) -> Any:
    """Members that are bytes under the names that the types have for them."""
    if isinstance(tree, list):
        return [_named(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if not all([isinstance(name, str) for name in tree]):
        raise msgspec.ValidationError("a name that is no text")
    return {f"{name}_b64" if isinstance(one, bytes) else name: _named(one) for name, one in tree.items()}


JSON = Form(
    "JSON", "application/json", b"Content-Type: application/json\r\n",
    msgspec.json.Encoder().encode, text_or_b64, _in_json, _in_json, msgspec.json.decode,
)  # fmt: skip
MSGPACK = Form(
    "MessagePack", "application/msgpack", b"Content-Type: application/msgpack\r\n",
    msgspec.msgpack.Encoder().encode, lambda name, data: {name: data}, _packed, _packed_request, _unpacked,
)  # fmt: skip


_FORMS = {form.media_type: form for form in (JSON, MSGPACK)}


def accepted(accept: str) -> Form:
    """The first of our forms that the header `Accept` names; JSON if it names none."""
    if not accept:
        return JSON
    named = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((_FORMS[name] for name in named if name in _FORMS), JSON)


def of_body(content_type: str) -> Form | None:
    """The form that the header `Content-Type` names, with text in UTF-8; None: it is none of ours."""
    media, _, parameters = content_type.lower().partition(";")
    charset = parameters.strip().removeprefix("charset=").strip('"') if "charset=" in parameters else "utf-8"
    return _FORMS.get(media.strip()) if charset in ("utf-8", "utf8", "us-ascii") else None


def bytes_of(name: str, text: str | None, data: bytes | None) -> bytes | None:
    """What stands in `name` or `name_b64`; None if neither is given. ValueError if both are."""
    if data is not None and text is not None:
        raise ValueError(f"give {name} or {name}_b64, not both")
    return data if text is None else text.encode()
