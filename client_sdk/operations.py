"""What a transaction compares and does, as its user writes it: keys and values are bytes, or text, which stands for its
UTF-8. An argument of another type is a TypeError that names it, where the mistake is made. `plain` is the same as the
server knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import msgspec

from client_sdk.errors import InvalidRequest
from kvstore.api import model
from kvstore.api.model import Operator, Target, Transaction
from multicast.types import Timestamp

T = TypeVar("T")


def of_type(name: str, value: T, *kinds: type) -> T:
    """`value`, which is of one of these types; a bool is no number. TypeError otherwise, with the argument's name."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names, other = [kind.__name__ for kind in kinds], type(value)
        namesake = f"{other.__module__}." if other.__name__ in names else ""
        raise TypeError(f"{name}: {' or '.join(names)}, not {namesake}{other.__name__}")
    return value


def as_bytes(name: str, text: bytes | str) -> bytes:
    """The bytes of a key or value. TypeError if it is neither bytes nor text, InvalidRequest if it is text that has
    none: half of a surrogate pair."""
    if not isinstance(text, str):
        return of_type(name, text, bytes, str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: text that is no Unicode", code="invalid", field=name) from None


class _Part(msgspec.Struct):
    """Of a transaction."""

    def __post_init__(self) -> None:
        self.plain()

    def plain(self) -> Any:
        """As the server knows it."""
        raise NotImplementedError


class Compare(_Part):
    """target "value": `operand` is a value, and an absent key satisfies nothing but "!=". "version", "create_version":
    a Timestamp; those of an absent key are ZERO. "exists": bool, with "==" or "!="."""

    key: bytes | str
    target: Target
    op: Operator
    operand: bytes | str | bool | Timestamp

    def plain(self) -> model.Compare:
        of_type("target", self.target, str)
        of_type("op", self.op, str)
        operand = of_type("operand", self.operand, bytes, str, bool, Timestamp)
        plain = as_bytes("operand", operand) if isinstance(operand, str) else operand
        return model.Compare(as_bytes("key", self.key), self.target, self.op, plain)


class Get(_Part):
    """Reads. The result has `found`, a KeyValue or None."""

    key: bytes | str

    def plain(self) -> model.Get:
        return model.Get(as_bytes("key", self.key))


class Put(_Part):
    """Writes. lease: the id of one: the key goes when that goes. Without it the key is attached to none."""

    key: bytes | str
    value: bytes | str
    lease: bytes | None = None

    def plain(self) -> model.Put | model.LeasedPut:
        key, value = as_bytes("key", self.key), as_bytes("value", self.value)
        if self.lease is None:
            return model.Put(key, value)
        return model.LeasedPut(key, value, of_type("lease", self.lease, bytes))


class Delete(_Part):
    """Deletes. The result says in `deleted` whether the key was there."""

    key: bytes | str

    def plain(self) -> model.Delete:
        return model.Delete(as_bytes("key", self.key))


class Add(_Part):
    """Adds to a decimal signed 64-bit integer; an absent key counts as 0. Anything else fails the whole transaction.
    The result has `value`, the sum."""

    key: bytes | str
    delta: int

    def plain(self) -> model.Add:
        return model.Add(as_bytes("key", self.key), of_type("delta", self.delta, int))


class Min(_Part):
    """The lesser of a decimal signed 64-bit integer and `value`; an absent key gets `value`. Anything else fails the
    whole transaction. The result has `value`, what stands there now."""

    key: bytes | str
    value: int

    def plain(self) -> model.Min:
        return model.Min(as_bytes("key", self.key), of_type("value", self.value, int))


class Max(_Part):
    """The greater of the two, else as `Min`."""

    key: bytes | str
    value: int

    def plain(self) -> model.Max:
        return model.Max(as_bytes("key", self.key), of_type("value", self.value, int))


class Append(_Part):
    """Appends; an absent key counts as empty. Beyond the value limit the whole transaction fails. The result has
    `length`, the new one in bytes."""

    key: bytes | str
    value: bytes | str

    def plain(self) -> model.Append:
        return model.Append(as_bytes("key", self.key), as_bytes("value", self.value))


class Range(_Part):
    """Reads the first `limit` keys that begin with `prefix`, are greater than `after`, not less than `start` and less
    than `end` (each empty: any); with `reverse` the last ones, falling. The result has `entries` and `more`; it ends
    early, with `more`, where they are large. `keys_only`: without values. `count_only`: the result has `value`, how
    many there are, whatever the limit; at least so many if it has `more`."""

    prefix: bytes | str = b""
    limit: int = model.SCAN_LIMIT_DEFAULT
    after: bytes | str = b""
    start: bytes | str = b""
    end: bytes | str = b""
    reverse: bool = False
    keys_only: bool = False
    count_only: bool = False

    def plain(self) -> model.Range:
        limit = of_type("limit", self.limit, int)
        bounds = [as_bytes(name, getattr(self, name)) for name in ("prefix", "after", "start", "end")]
        flags = [of_type(name, getattr(self, name), bool) for name in ("reverse", "keys_only", "count_only")]
        return model.Range(bounds[0], limit, bounds[1], bounds[2], bounds[3], *flags)


class DeleteRange(_Part):
    """Deletes all keys that begin with `prefix`, are not less than `start` and less than `end` (each empty: any). The
    result has `value`, how many there were. More than RANGE_KEYS_MAX in one shard fail the whole transaction."""

    prefix: bytes | str = b""
    start: bytes | str = b""
    end: bytes | str = b""

    def plain(self) -> model.DeleteRange:
        return model.DeleteRange(*[as_bytes(name, getattr(self, name)) for name in ("prefix", "start", "end")])


class NoneNewer(_Part):
    """Fails the whole transaction if any key that begins with `prefix`, is not less than `start` and less than `end`
    (each empty: any) was written after `version`, by anybody else; and if there are more than RANGE_KEYS_MAX in one
    shard. Of a deleted key nothing is known: compare the versions of those that were there."""

    prefix: bytes | str
    version: Timestamp
    start: bytes | str = b""
    end: bytes | str = b""

    def plain(self) -> model.NoneNewer:
        prefix, *others = [as_bytes(name, getattr(self, name)) for name in ("prefix", "start", "end")]
        return model.NoneNewer(prefix, of_type("version", self.version, Timestamp), *others)


class Txn(_Part):
    """A transaction nested in a branch of another one: in its place one of its branches runs. It compares what was
    there before the whole transaction. The result is a TxnResult: `succeeded`, and `results` of the branch that ran."""

    compare: Sequence[Compare] = ()
    success: Sequence[Operation] = ()
    failure: Sequence[Operation] = ()

    def plain(self) -> model.Txn:
        return model.Txn(*_parts(self.compare, self.success, self.failure))


Operation = Get | Put | Delete | Add | Min | Max | Append | Range | DeleteRange | NoneNewer | Txn


def transaction(
    compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> Transaction:
    """As the server knows it. TypeError for what is no comparison, or no operation; limits are not checked."""
    return Transaction(*_parts(compare, success, failure))


def _parts(
    compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    kinds = get_args(Operation)
    return (
        _plain("compare", compare, (Compare,)), _plain("success", success, kinds), _plain("failure", failure, kinds)
    )  # fmt: skip


def _plain(name: str, parts: Sequence[Any], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    of_type(name, parts, list, tuple)
    return tuple([of_type(f"{name}[{i}]", part, *kinds).plain() for i, part in enumerate(parts)])
