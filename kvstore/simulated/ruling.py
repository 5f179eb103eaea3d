"""Clients of a simulated cluster that have tokens, and one who changes what they may do: `serial` judges all of it."""

from __future__ import annotations

import random
from collections.abc import Iterable

from kvstore.api.model import Rule, Transaction, only_reads
from kvstore.api.rights import Permission, Role, Token
from kvstore.core.rights import ROLE, TOKEN, Rights, encode
from kvstore.simulated.clients import Client, Operated, Workload

HOLDERS = 3
TOKENS = ("ann", "bob")
_ROLES = (
    (Permission("read"), Permission("write")),
    (Permission("read"), Permission("write", b"account/", b"account0")),
    (Permission("read", b"key/", b"key0"), Permission("write")),
)
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
    """The rights by a serial execution: what of a store `Rights` needs."""

    def __init__(self) -> None:
        self._notes: dict[bytes, bytes] = {}
        self._rights = Rights(self)  # type: ignore[arg-type]

    def note(self, key: bytes) -> bytes | None:
        return self._notes.get(key)

    def set_note(self, key: bytes, value: bytes | None) -> None:
        self._notes[key] = value or b""
        if value is None:
            del self._notes[key]

    def denies(self, transaction: Transaction) -> bool:
        """Whether it has no effect for want of rights; a Rule among what has takes one."""
        if self._rights.denied(transaction):
            return True
        for rule in _rules(transaction):
            self._rights.change(rule)
        return False


def _rules(transaction: Transaction) -> Iterable[Rule]:
    return [operation for operation in transaction.success if isinstance(operation, Rule)]
