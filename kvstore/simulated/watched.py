"""Watches in a simulated cluster, through any replica and from anywhere in the order; and what they should have been
told: what the journals' transactions have changed, each once and whole, in the order of versions."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from kvstore.api.model import (
    Append,
    Delete,
    DeleteRange,
    LeasedPut,
    Number,
    Put,
    Range,
    between,
    bounds,
    only_reads,
)
from kvstore.api.nesting import ran
from kvstore.core.audit import APPLIED, Write, watch_asked, watch_told
from kvstore.core.messages import Follow, Followed, Refused
from kvstore.core.state import Changed
from kvstore.core.watches import PROGRESS_US
from kvstore.simulated.clients import Operated, Workload
from kvstore.simulated.cluster import Executed
from kvstore.simulated.past import is_forgotten
from kvstore.storage.history import HISTORY_US
from multicast.types import ZERO, Timestamp

SHARE = 0.4
"""Of the runs: so many have clients that watch."""
WATCHERS_MAX = 3
FOLLOWS_MAX = 400
PATIENCE_US = PROGRESS_US + 1_000_000
_PAUSES_US = (0, 0, 0, 5_000, 300_000, 1_500_000)
"""How long a client takes for what it was told."""
_BOUNDS = ((b"", b""), (b"", b""), bounds(Range(b"account/", 1)), bounds(Range(b"key/", 1)), (b"account/003", b"key/2"))
_ELSEWHERE, _FROM_BEFORE, _FORGETS = 0.1, 0.3, 0.03
"""How often a client goes on at another replica, begins at a version that somebody was told, and begins anew."""


class Watched(msgspec.Struct):
    """One watch. begun: what it was told follows this; None before it was told anything. started_us: when it was given
    that version, if it has named none. upto: to where it was told everything. refused: the code with which it ended."""

    first: bytes
    end: bytes
    begun: Timestamp | None = None
    started_us: int | None = None
    upto: Timestamp | None = None
    told: list[Changed] = []
    refused: str = ""


class Watcher:
    """One watch after the other, until it was told of everything that clients were."""

    def __init__(self, workload: Workload, rng: random.Random, watches: list[Watched]):
        self._workload = workload
        self._world = workload.world
        self._rng = rng
        self._watches = watches
        self._replica = rng.choice(self._world.topology.processes)
        self._live = False
        self._left = FOLLOWS_MAX
        workload.running += 1

    def begin(self) -> None:
        """Another watch."""
        rng = self._rng
        first, end = rng.choice(_BOUNDS)
        watch = self._watched = Watched(first, end)
        told = self._told()
        if told and rng.random() < _FROM_BEFORE:
            watch.begun = watch.upto = rng.choice(told)
        self._watches.append(watch)
        self._number = len(self._watches)
        self._note("begin", watch.begun, asked=watch_asked(first, end))
        self._live = False
        self._ask()

    def _note(self, f: str, version: Timestamp | None, **said: Any) -> None:
        self._workload.history.watch(self._number, self._world.now, f, version, **said)

    def _told(self) -> list[Timestamp]:
        """Versions of what was answered; where many only read, of the rest, for no watch is told of reads."""
        done = [op for op in self._workload.history.operations.values() if op.result is not None]
        reads = self._workload.reads
        return [op.result.version for op in done if op.result and not (reads and only_reads(op.transaction))]

    def _last_change(self) -> Timestamp:
        """The greatest version of what was answered and has changed something: no watch is told of anything else."""
        done = [op for op in self._workload.history.operations.values() if op.result and _has_changed(op)]
        return max([op.result.version for op in done if op.result], default=ZERO)

    def _ask(self) -> None:
        watch, self._left = self._watched, self._left - 1
        over = self._world.now >= self._workload.stop_at
        if not self._left or (over and watch.upto is not None and watch.upto >= self._last_change()):
            self._workload.running -= 1
            return
        if self._rng.random() < _ELSEWHERE:
            self._move_on()
        open_ = [True]

        def answered(answer: Any) -> None:
            if open_[0]:
                open_[0] = False
                self._answered(watch, answer)

        self._world.request(self._replica, Follow(watch.upto, watch.first, watch.end, self._live), answered)
        self._world.after(PATIENCE_US, lambda: answered(None))

    def _move_on(self) -> None:
        self._replica, self._live = self._rng.choice(self._world.topology.processes), False

    def _answered(self, watch: Watched, answer: Any) -> None:
        if isinstance(answer, Followed):
            if watch.begun is None:
                watch.begun, watch.started_us = answer.upto, self._world.now
            watch.told += answer.transactions
            for version, changes in answer.transactions:
                self._note("change", version, told=watch_told(changes))
            self._note("progress", answer.upto)
            watch.upto, self._live = answer.upto, True
        elif isinstance(answer, Refused) and answer.code == "compacted":
            watch.refused = answer.code
            if not is_forgotten(self._workload.cluster, watch.upto or ZERO, lambda store: store.changes_from):
                self._world.report("watches", f"what follows {watch.upto} is called compacted too early")
            self._note("end", None, error=answer.code)
        elif isinstance(answer, Refused) and answer.code == "lagged":
            self._live = False
        else:
            self._move_on()
        over = self._world.now >= self._workload.stop_at
        pause = self._rng.choice(_PAUSES_US) if isinstance(answer, Followed) else 50_000
        if over:  # it may have hundreds of answers before it
            pause = min(pause, 50_000)
        ends = watch.refused or (not over and self._rng.random() < _FORGETS)
        self._world.after(pause, self.begin if ends else self._ask)


def _has_changed(operation: Operated) -> bool:
    """Whether it has, or may have where its results are not known any more."""
    transaction, result = operation.transaction, operation.result
    assert result is not None
    branch = transaction.success if result.succeeded else transaction.failure
    if len(result.results) < len(branch):
        return not result.failure and not only_reads(transaction)
    return any(
        one.deleted or one.value > 0
        if isinstance(asked, Delete | DeleteRange)
        else isinstance(asked, Put | LeasedPut | Number | Append)
        for asked, one in ran(transaction, result.succeeded, result.results)
    )


def start(workload: Workload, seed: str, wanted: bool | None) -> list[Watched]:
    """Draw watchers for a run. wanted: None: whether there are any is drawn, too. Returns what they will have seen."""
    rng = random.Random(f"{seed}/watch")
    watches: list[Watched] = []
    if rng.random() < SHARE if wanted is None else wanted:
        for _ in range(rng.randint(1, WATCHERS_MAX)):
            watcher = Watcher(workload, random.Random(rng.getrandbits(64)), watches)
            workload.world.after(rng.randint(0, 500_000), watcher.begin)
    return watches


def check(
    logs: Iterable[list[Executed]], watches: Sequence[Watched], operations: Iterable[Operated], knows_all: bool
) -> list[str]:
    """Where they differ from the order. operations: of all clients. knows_all: nothing is compacted, but by time."""
    logs = list(logs)
    changes, complete_to = _changes(logs)
    newest_us = max([executed.version.time for log in logs for executed in log], default=0)
    answered = [(op.invoked_us, op.result.version) for op in operations if op.result is not None and op.unnamed is None]
    violations: list[str] = []
    for number, watch in enumerate(watches):
        name = f"watch {number} from {watch.begun}"
        asked_us = watch.upto.time if watch.upto is not None else newest_us
        if watch.refused and knows_all and newest_us - asked_us < HISTORY_US:
            violations.append(f"{name} was called compacted, and nothing was dropped")
        if watch.begun is None or watch.upto is None:
            continue
        started_us = watch.started_us
        for invoked_us, version in answered if started_us is not None else ():
            if invoked_us >= (started_us or 0) and version <= watch.begun:
                violations.append(f"{name} began after {version}, which came later")
        wanted = [
            (version, some)
            for version, all_ in changes
            if watch.begun < version <= min(watch.upto, complete_to)
            and (some := [(key, write) for key, write in all_ if between(key, watch.first, watch.end)])
        ]
        told = [one for one in watch.told if one[0] <= complete_to]
        for one, other in zip(told, wanted, strict=False):
            if not _same(one, other):
                violations.append(f"{name} was told {one}, and next came {other}")
                break
        else:
            if len(told) != len(wanted):
                more = f"{told[len(wanted)]} too much" if len(told) > len(wanted) else f"not of {wanted[len(told)]}"
                violations.append(f"{name} up to {watch.upto} was told {more}")
    return violations


def _changes(logs: Iterable[list[Executed]]) -> tuple[list[tuple[Timestamp, list[tuple[bytes, Write]]]], Timestamp]:
    """What each transaction has changed, in the order of versions; and up to which version that is known."""
    places = sorted([executed for log in logs for executed in log], key=lambda executed: executed.version)
    state: set[bytes] = set()
    found: dict[Timestamp, dict[bytes, Write]] = {}
    for executed in places:
        outcome = executed.outcome
        if outcome is None:
            return [(v, sorted(found[v].items())) for v in found if v < executed.version], executed.version
        if outcome.status != APPLIED:
            continue
        for write in outcome.writes:
            if write.value is not None or write.key in state:
                found.setdefault(executed.version, {})[write.key] = write
            (state.discard if write.value is None else state.add)(write.key)
    return [(version, sorted(writes.items())) for version, writes in found.items()], Timestamp(1 << 64, 0)


def _same(told: Changed, wanted: tuple[Timestamp, list[tuple[bytes, Write]]]) -> bool:
    if told[0] != wanted[0] or len(told[1]) != len(wanted[1]):
        return False
    pairs = zip(told[1], wanted[1], strict=True)
    return all([key == other and _holds(value, write) for (key, value), (other, write) in pairs])


def _holds(value: bytes | None, write: Write) -> bool:
    return (blake2b(value, digest_size=16).digest() if write.digest and value is not None else value) == write.value
