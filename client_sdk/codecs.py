"""Values that are not bytes: how `with_codec` of the clients writes and reads them.

    from client_sdk import Client, codecs

    class Account(msgspec.Struct):                              # or a dataclass, dict[str, int], list[str], ...
        owner: str
        balance: int

    accounts = client.namespace("account/").with_codec(codecs.json(Account))
    accounts.put("ann", Account("Ann", 100))
    found = accounts.get("ann")                                 # found.value is an Account
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from json import JSONEncoder
from typing import Generic, TypeVar

import msgspec
import msgspec.inspect

from client_sdk.errors import InvalidRequest, Undecodable
from client_sdk.operations import as_bytes, of_type

T = TypeVar("T")

_FINITE = JSONEncoder(allow_nan=False)


@dataclass(frozen=True)
class Codec(Generic[T]):
    """encode: a value's bytes; TypeError for a value of another type. decode: the reverse; ValueError."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]

    def read(self, key: bytes, data: bytes) -> T:
        """The value of a key. Undecodable names the key."""
        try:
            return self.decode(data)
        except ValueError as error:
            raise Undecodable(f"{key!r}: {error}", field="value") from error


def json(kind: type[T]) -> Codec[T]:
    """As JSON: whatever msgspec knows to read as this type, which may be any: `dict[str, int]`, `int | None`."""
    encoder = msgspec.json.Encoder()

    def encode(value: T) -> bytes:
        data = encoder.encode(value)
        if b"null" in data:  # as which msgspec writes what JSON has no number for
            _FINITE.encode(msgspec.to_builtins(value, str_keys=True, enc_hook=repr))
        return data

    return _checking(kind, encode, msgspec.json.Decoder(kind).decode)


def msgpack(kind: type[T]) -> Codec[T]:
    """The same as MessagePack, which is shorter and takes bytes as they are."""
    return _checking(kind, msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(kind).decode)


def _checking(kind: type[T], encode: Callable[[T], bytes], decode: Callable[[bytes], T]) -> Codec[T]:
    """What would not be read again is not written."""
    own = isinstance(kind, type) and (msgspec.inspect.is_struct_type(kind) or is_dataclass(kind))

    def checked(value: T) -> bytes:
        if own:
            of_type("value", value, kind)  # what has the same members is still not one
        try:
            data = encode(value)
            decode(data)
        except UnicodeEncodeError:
            raise InvalidRequest("value: text that is no Unicode", code="invalid", field="value") from None
        except (ValueError, OverflowError) as error:
            raise TypeError(f"value: {error}") from None
        return data

    return Codec(checked, decode)


TEXT: Codec[str] = Codec(lambda text: as_bytes("value", of_type("value", text, str)), bytes.decode)
RAW: Codec[bytes] = Codec(lambda data: of_type("value", data, bytes), bytes)
