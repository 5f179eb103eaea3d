"""A small run: what journals and client histories say, with small numbers for ids, times of messages (from 1), versions
(ten times that and the place in the bundle; 0: absent) and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

APPLIED, EXPIRED, FAILED, MISMATCH, REPEATED = 1, 2, 3, 4, 5
TAKEN = (APPLIED, FAILED)


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
    payload: int = 0


@dataclass
class Account:
    """Of one transaction; the next ones of its bundle follow it. first: of a bundle's account. time: the message's, by
    this account. writes: key -> value, None: deleted. digest: of the first."""

    position: int
    time: int
    id: int
    status: int = APPLIED
    succeeded: bool = True
    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int | None] = field(default_factory=dict)
    digest: int | None = None
    first: bool = True
    index: int = 0
    truths: bytes = b""

    @property
    def version(self) -> int:
        return 10 * self.time + self.index

    @property
    def content(self) -> Any:
        branches = self.succeeded, self.truths
        return self.id, self.time, self.status, branches, sorted(self.reads.items()), sorted(self.writes.items())


@dataclass
class Row:
    """What a replica says of a transaction that it delivered."""

    shard: int
    replica: int
    delivery: Delivery
    account: Account

    @property
    def taken(self) -> bool:
        return not self.delivery.expired and self.account.status in TAKEN


@dataclass
class Op:
    """A client's operation. type: "ok", "fail", "info", or "" where the history ends before it does. place: shard and
    position of a read that stands in no journal. told: key -> value, of one that only read."""

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
    place: tuple[int, int] | None = None
    told: dict[str, int | None] | None = None


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

    def bundles(self, replica: int) -> list[list[Account]]:
        """Its accounts, bundle by bundle."""
        found: list[list[Account]] = []
        before: Any = None
        for r in self.journals[replica]:
            if isinstance(r, Account):
                if r.first or not isinstance(before, Account) or before.position != r.position:
                    found.append([])
                found[-1].append(r)
            before = r
        return found

    def number(self) -> None:
        """Say of every account where in its bundle it stands."""
        for replica in self.journals:
            for bundle in self.bundles(replica):
                for index, a in enumerate(bundle):
                    a.index, a.first = index, index == 0

    def told(self) -> list[Op]:
        """Without histories of whose acknowledged operations no journal has ever heard."""
        times = {d.time for _, _, d in self.everywhere() if not d.expired}
        ids = {row.account.id for row in self.rows()}
        known = {op.file for op in self.ops if op.id in ids or (op.type == "ok" and (op.version or 0) // 10 in times)}
        heard = known | {op.file for op in self.ops} - {op.file for op in self.ops if op.type == "ok"}
        return [op for op in self.ops if op.file in heard]

    def rows(self) -> list[Row]:
        """Of all replicas."""
        return [
            Row(shard, replica, d, a)
            for shard, replica, d in self.everywhere()
            for a in self.accounts(replica, d.position)
        ]

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
        status = ("", "applied", "expired", "failed", "mismatch", "repeated")[r.status]
        did = " ".join([f"r {k}={v}" for k, v in r.reads.items()] + [f"w {k}={v}" for k, v in r.writes.items()])
        what = f"{status}{'' if r.succeeded else ' not'} {did}"
        return f"({r.position}{':' if r.first else '+'} id {r.id} version {r.version} {what})"
    if isinstance(r, Stopped):
        return f"stopped {r.delivered} {r.completed}"
    return f"sent {r.id}" if isinstance(r, Submitted) else "started"
