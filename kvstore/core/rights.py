"""Rights: whether the holder of a token may do what a transaction does. Pure.

Every shard keeps all tokens and roles, as notes in its store. A change of them (`Rule`) is a transaction of all shards.
Whoever has not only root's rights has the token's id in his transactions (`Transaction.by`), and every shard checks the
*whole* transaction when it executes it, keys of other shards among it, by the rights that it has then. All shards of a
transaction come to the same end without telling one another: they deliver it and each change of rights, which goes to
all of them, in one order. So what is ordered after a change has been executed is judged by it, whatever the replica
where it entered knew. What is read without an order is checked where it is read.

A token that a shard does not know may do nothing, as one that was taken back. A shard that was added is given all
rights with the first move to it, which is ordered, too, and is asked for nothing before (`kvstore.core.moves`).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from kvstore.api.model import (
    FIRST_KEY,
    NUMBERS,
    RANGES,
    Append,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    NoneNewer,
    Operation,
    Put,
    Range,
    Revoke,
    Rule,
    Transaction,
    bounds,
    compares_of,
    operations_of,
)
from kvstore.api.rights import Permission, Role, Token
from kvstore.core.messages import Refused
from kvstore.core.state import State

RULES = b"rule/"
ROLE, TOKEN = b"role/", b"token/"
_NEEDS: dict[type, tuple[str, ...]] = {
    Get: ("read",),
    Range: ("read",),
    Put: ("write",),
    Delete: ("write",),
    DeleteRange: ("write",),
    **dict.fromkeys(NUMBERS, ("read", "write")),
    Append: ("read", "write"),
    LeasedPut: ("write",),
    Revoke: ("lease",),
    NoneNewer: ("read",),
}
"""What an operation needs on its keys: those that tell of a value need to read it. Any other one needs "admin"."""

_decode_token = lru_cache(4096)(msgspec.msgpack.Decoder(Token).decode)
_decode_role = lru_cache(4096)(msgspec.msgpack.Decoder(Role).decode)
encode = msgspec.msgpack.Encoder().encode


class Rights:
    """Those that a shard knows at its place of the log."""

    def __init__(self, store: State):
        self._store = store

    def change(self, rule: Rule) -> None:
        """A change of rights takes effect."""
        self._store.set_note(RULES + rule.name, rule.record or None)

    def given(self) -> list[tuple[bytes, bytes]]:
        """All rights, by name, for a shard that knows none."""
        return [(name[len(RULES) :], record) for name, record in self._store.notes(RULES)]

    def take(self, rules: Iterable[tuple[bytes, bytes]]) -> None:
        """Have these rights, and no others."""
        for name, _ in self.given():
            self.change(Rule(name, b""))
        for name, record in rules:
            self.change(Rule(name, record))

    def token(self, token_id: str) -> Token | None:
        """This token; None: there is none, or no longer."""
        note = self._store.note(RULES + TOKEN + token_id.encode())
        return None if note is None else _decode_token(note)

    def tokens(self) -> dict[str, Token]:
        """All tokens, by id."""
        begin = RULES + TOKEN
        return {name[len(begin) :].decode(): _decode_token(note) for name, note in self._store.notes(begin)}

    def roles(self) -> dict[str, Role]:
        """All roles, by name."""
        begin = RULES + ROLE
        return {name[len(begin) :].decode(): _decode_role(note) for name, note in self._store.notes(begin)}

    def permissions(self, token_id: str) -> list[Permission]:
        """What the holder of this token may do."""
        token = self.token(token_id)
        notes = [self._store.note(RULES + ROLE + role.encode()) for role in token.roles] if token else []
        return [permission for note in notes if note is not None for permission in _decode_role(note).permissions]

    def allows(self, token_id: str, access: str) -> bool:
        """Whether the holder may do this, which concerns no keys."""
        return any([permission.access == access for permission in self.permissions(token_id)])

    def denied(self, transaction: Transaction) -> tuple[str, bytes] | None:
        """What is missing, and on which key; None: nothing is."""
        if not transaction.by:
            return None
        permissions = self.permissions(transaction.by)
        for compare in compares_of(transaction):
            access = "lease" if compare.key < FIRST_KEY else "read"
            if not _covers(permissions, access, compare.key, compare.key + b"\0"):
                return _lacking(access), compare.key
        for operation in operations_of(transaction):
            first, end = _keys_of(operation)
            for access in _needed(operation, first, end):
                if not _covers(permissions, access, first, end):
                    return _lacking(access), first
        return None

    def denied_range(self, token_id: str, first: bytes, end: bytes) -> tuple[str, bytes] | None:
        """The same for a read of all keys first <= key < end (b"": no end)."""
        if not token_id or _covers(self.permissions(token_id), "read", first, end):
            return None
        return _lacking("read"), first


def _needed(operation: Operation, first: bytes, end: bytes) -> tuple[str, ...]:
    """first, end: of its keys. Ids of leases are kept by those who know them: only "admin" sees all."""
    if isinstance(operation, RANGES) and b"" < end <= FIRST_KEY:
        return ("admin",)
    own = not isinstance(operation, RANGES) and first < FIRST_KEY and type(operation) in _NEEDS
    return ("lease",) if own else _NEEDS.get(type(operation), ("admin",))


def _keys_of(operation: Operation) -> tuple[bytes, bytes]:
    if isinstance(operation, RANGES):
        return bounds(operation)
    if type(operation) in _NEEDS and not isinstance(operation, Revoke):
        return operation.key, operation.key + b"\0"  # type: ignore[union-attr]
    return b"", b""


def _covers(permissions: list[Permission], access: str, first: bytes, end: bytes) -> bool:
    """Whether one of these permissions is for all of these keys."""
    for permission in permissions:
        within = not permission.end or (bool(end) and end <= permission.end)
        if permission.access == access and permission.first <= first and within:
            return True
    return False


def forbidden(denied: tuple[str, bytes]) -> Refused:
    """What the client is told."""
    return Refused("forbidden", denied[0], False, "not_applied")


DENIED = "forbidden: "
"""The failure of a transaction begins with this if its client has no right to it."""


def _lacking(access: str) -> str:
    return f"{DENIED}this token may not {access} there" if access in ("read", "write") else f"{DENIED}only for {access}"
