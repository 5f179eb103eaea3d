"""A small run: what journals and client histories say, with small numbers for ids, versions (times, from 1; 0: absent)
and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

APPLIED, EXPIRED, FAILED, MISMATCH = 1, 2, 3, 4


@dataclass
class Started:
    pass


@dataclass
class Stopped:
    delivered: int
    completed: int


@dataclass
class Submitted:
    id: int
    destinations: tuple[int, ...]


@dataclass
class Delivery:
    """position 0: optimistic."""

    position: int
    time: int
    id: int
    destinations: tuple[int, ...]
    origin: int
    expired: bool = False


@dataclass
class Account:
    """writes: key -> value, None: deleted."""

    position: int
    time: int
    id: int
    status: int = APPLIED
    succeeded: bool = True
    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int | None] = field(default_factory=dict)
    digest: int | None = None

    @property
    def content(self) -> Any:
        return self.id, self.time, self.status, self.succeeded, sorted(self.reads.items()), sorted(self.writes.items())


@dataclass
class Op:
    """A client's operation. type: "ok", "fail", "info", or "" where the history ends before it does."""

    file: str
    process: int
    id: int
    f: str
    invoke: int
    type: str
    complete: int
    version: int | None = None
    succeeded: bool | None = None
    reads: dict[str, int] = field(default_factory=dict)


@dataclass
class Run:
    """shards: number -> replicas. journals: replica -> records in their order. lost: replica -> (from, to): of these
    records the audit is not given; of none at all if that is None."""

    shards: dict[int, list[int]]
    journals: dict[int, list[Any]]
    ops: list[Op]
    lost: dict[int, tuple[int, int] | None] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for replica, records in self.journals.items():
            lost = f" without {self.lost[replica]}" if replica in self.lost else ""
            words = " | ".join(map(_words, records))
            lines.append(f"  replica {replica} of shard {self.shard_of(replica)}{lost}: {words}")
        lines += [f"  {op}" for op in sorted(self.ops, key=lambda op: op.invoke)]
        return "\n".join(lines)

    def given(self, replica: int) -> list[Any] | None:
        """The records that the audit is given; None: not even a journal."""
        if replica not in self.lost:
            return self.journals[replica]
        if (gap := self.lost[replica]) is None:
            return None
        return self.journals[replica][: gap[0]] + self.journals[replica][gap[1] :]

    def shard_of(self, replica: int) -> int:
        return next(s for s, members in self.shards.items() if replica in members)

    def deliveries(self, replica: int) -> list[Delivery]:
        return [r for r in self.journals[replica] if isinstance(r, Delivery) and r.position]

    def accounts(self, replica: int, position: int | None = None) -> list[Account]:
        found = [r for r in self.journals[replica] if isinstance(r, Account)]
        return [a for a in found if position is None or a.position == position]

    def crashed(self, replica: int) -> bool:
        """Whether some life did not end in good order."""
        kinds = [type(r) for r in self.journals[replica] if isinstance(r, (Started, Stopped))]
        return kinds != [Started, Stopped] * (len(kinds) // 2)

    def down(self, replica: int) -> bool:
        """Whether its last life did not end in good order."""
        kinds = [type(r) for r in self.journals[replica] if isinstance(r, (Started, Stopped))]
        return kinds[-1:] == [Started]

    def stop(self, replica: int) -> Stopped | None:
        return next((r for r in reversed(self.journals[replica]) if isinstance(r, Stopped)), None)

    def live(self, replica: int, d: Delivery) -> bool:
        """It may have an effect: neither expired nor, as the replica says or else any, of a used id."""
        mine = self.accounts(replica, d.position)
        told = mine or [a for r in self.journals for a in self.accounts(r) if (a.id, a.time) == (d.id, d.time)]
        return not d.expired and all(a.status != MISMATCH for a in told)

    def everywhere(self) -> Iterator[tuple[int, int, Delivery]]:
        """shard, replica, final delivery."""
        for shard, members in self.shards.items():
            for replica in members:
                for d in self.deliveries(replica):
                    yield shard, replica, d

    def all_accounts(self) -> list[Account]:
        return [a for replica in self.journals for a in self.accounts(replica)]


def _words(r: Any) -> str:
    if isinstance(r, Delivery):
        return f"{r.position}: id {r.id} time {r.time} to {r.destinations}{' expired' * r.expired}"
    if isinstance(r, Account):
        status = ("", "applied", "expired", "failed", "mismatch")[r.status]
        did = " ".join([f"r {k}={v}" for k, v in r.reads.items()] + [f"w {k}={v}" for k, v in r.writes.items()])
        return f"({r.position}: id {r.id} time {r.time} {status}{'' if r.succeeded else ' not'} {did})"
    if isinstance(r, Stopped):
        return f"stopped {r.delivered} {r.completed}"
    return f"sent {r.id}" if isinstance(r, Submitted) else "started"
