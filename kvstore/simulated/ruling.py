"""Clients of a simulated cluster that have tokens, and one who changes what they may do: `serial` judges all of it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

import msgspec

from kvstore.api.model import (
    FIRST_KEY,
    KEY_BYTES_MAX,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    LeasedPut,
    Max,
    Min,
    NoneNewer,
    Operation,
    Put,
    Range,
    Revoke,
    Rule,
    Transaction,
    bounds,
    compares_of,
    only_reads,
    operations_of,
)
from kvstore.api.rights import Permission, Role, Token
from kvstore.core.rights import ROLE, RULES, TOKEN, encode
from kvstore.core.state import State
from kvstore.simulated.clients import Client, Operated, Workload

HOLDERS = 3
TOKENS = ("ann", "bob")
_ROLES = (
    (Permission("read"), Permission("write")),
    (Permission("read"), Permission("write", b"account/", b"account0")),
    (Permission("read", b"key/", b"key0"), Permission("write")),
)
PROMOTED = "cal"
"""A token of which nobody else knows."""
_PERMISSIONS = (
    Permission("read"), Permission("write"), Permission("lease"), Permission("read", b"key/", b"key/3"),
    Permission("write", b"key/2", b"key/22"), Permission("read", b"key/3"), Permission("write", b"key/22", b""),
)  # fmt: skip
_TAKEN_BACK = 0.3
"""Of the changes: so many take a token or a role back."""


class Ruler(Client):
    """Changes roles and tokens, all the time."""

    def _choose(self) -> None:
        rng = self._rng
        role = rng.random() < 0.5
        name = ROLE + b"some" if role else TOKEN + rng.choice(TOKENS).encode()
        record = encode(Role(rng.choice(_ROLES)) if role else Token("", b"", ("some",)))
        rule = Rule(name, b"" if rng.random() < _TAKEN_BACK else record)
        self.operate("rule", Transaction(success=(rule,)), self._ruled)

    def _ruled(self, operation: Operated) -> None:
        for told in self._workload.when_ruled if operation.result is not None else ():
            told()
        self.go_on(operation)


class Promoter(Ruler):
    """Changes another role, and a token with one role, two or none."""

    def _choose(self) -> None:
        rng = self._rng
        permissions = tuple(rng.sample(_PERMISSIONS, rng.randint(2, 4)))
        roles = tuple(rng.sample(("some", "more"), rng.choice((0, 1, 2, 2, 2, 2))))
        rules = (ROLE + b"more", encode(Role(permissions))), (TOKEN + PROMOTED.encode(), encode(Token("", b"", roles)))
        self.operate("rule", Transaction(success=(Rule(*rng.choice(rules)),)), self._ruled)


class Holder(Client):
    """Writes what others write, with a token."""

    def _choose(self) -> None:
        f, drawn = self.drawn()
        while only_reads(drawn):
            f, drawn = self.drawn()
        asked = Transaction(drawn.compare, drawn.success, drawn.failure, self._rng.choice(TOKENS))
        self.operate(f, asked, self.go_on)


def start(workload: Workload, seed: str) -> None:
    """They begin at once."""
    for number in range(1 + HOLDERS):
        workload.running += 1
        kind = Holder if number else Ruler
        kind(workload, random.Random(f"{seed}/rights {number}")).go_on(None)


class Ruled:
    """Who may do what, by a serial execution or by what a replica has noted: judged here once more, by what the
    permissions mean. rules: name -> record."""

    def __init__(self, rules: Mapping[bytes, bytes] | None = None) -> None:
        self._rules = dict(rules or {})

    @classmethod
    def at(cls, store: State) -> Ruled:
        """As this replica has it."""
        return cls({name.removeprefix(RULES): record for name, record in store.notes(RULES)})

    def denies(self, transaction: Transaction) -> bool:
        """Whether it has no effect for want of rights; a Rule among what has takes one."""
        if self.forbids(transaction):
            return True
        for operation in transaction.success:
            if isinstance(operation, Rule):
                self._rules[operation.name] = operation.record
        return False

    def forbids(self, transaction: Transaction) -> bool:
        """Whether its client has no right to some part of it."""
        parts = [*map(_of_compare, compares_of(transaction)), *map(_of_operation, operations_of(transaction))]
        return bool(transaction.by) and any([self._lacks(transaction.by, *part) for part in parts])

    def forbids_range(self, token: str, first: bytes, end: bytes) -> bool:
        """Whether the holder may not read all these keys."""
        return bool(token) and self._lacks(token, ("read",), first, end)

    def _lacks(self, token: str, accesses: Iterable[str], first: bytes, end: bytes) -> bool:
        """Whether one of these is not given for all these keys by any one permission."""
        record = self._rules.get(TOKEN + token.encode())
        roles = msgspec.msgpack.decode(record, type=Token).roles if record else ()
        records = [self._rules.get(ROLE + role.encode()) for role in roles]
        given = [p for one in records if one for p in msgspec.msgpack.decode(one, type=Role).permissions]
        last = end or _BEYOND
        whole = {p.access for p in given if p.first <= first and last <= (p.end or _BEYOND)}
        return not whole.issuperset(accesses)


_Part = tuple[tuple[str, ...], bytes, bytes]
"""What is needed, from which key on, up to which."""
_BEYOND = b"\xff" * (KEY_BYTES_MAX + 1)
"""Greater than any key."""
_ALL_KEYS = b"", b""


def _of_compare(compare: Compare) -> _Part:
    return ("lease" if compare.key < FIRST_KEY else "read",), compare.key, compare.key + b"\0"


def _of_operation(operation: Operation) -> _Part:
    if isinstance(operation, Range | NoneNewer | DeleteRange):
        first, end = bounds(operation)
        access = "write" if isinstance(operation, DeleteRange) else "read"
        return ("admin" if end and end <= FIRST_KEY else access,), first, end
    if isinstance(operation, Revoke):
        return ("lease",), *_ALL_KEYS
    if not isinstance(operation, Get | Put | Delete | LeasedPut | Add | Min | Max | Append):
        return ("admin",), *_ALL_KEYS
    if operation.key < FIRST_KEY:
        accesses: tuple[str, ...] = ("lease",)
    elif isinstance(operation, Get):
        accesses = ("read",)
    elif isinstance(operation, Put | Delete | LeasedPut):
        accesses = ("write",)
    else:
        accesses = ("read", "write")
    return accesses, operation.key, operation.key + b"\0"
