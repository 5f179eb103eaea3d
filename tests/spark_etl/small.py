"""Many small histories of transactions with known versions, as the frames of one run, and a brute-force judge.

A history is a list of `Txn`; versions are numbers from 1, by which keys are written; version 0: absent. Case c of a
batch has keys, ids, versions and a file of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from multicast.types import Timestamp
from spark_etl.checks import sessions
from spark_etl.frames import edges

STRIDE = 1000


class Txn(NamedTuple):
    """complete None: of unknown outcome."""

    process: int
    version: int
    invoke: int
    complete: int | None
    reads: dict[str, int]
    writes: frozenset[str]


History = Sequence[Txn]


def txn(process: int, version: int, at: tuple[int, int | None], words: str) -> Txn:
    """`words`: rx1 reads x at version 1, wx writes x."""
    reads = {word[1]: int(word[2:]) for word in words.split() if word[0] == "r"}
    return Txn(process, version, *at, reads, frozenset(word[1] for word in words.split() if word[0] == "w"))


def gts(case: int, version: int) -> bytes:
    return Timestamp((case + 1) * STRIDE + version, 0).encode() if version else bytes(16)


class Batch(NamedTuple):
    """Frames as the audit makes them."""

    steps: Any
    ordered: Any
    writes: Any


def batch(spark: Any, histories: Sequence[History]) -> Batch:
    """One frame for all of them."""
    steps: list[Any] = []
    reads: list[Any] = []
    writes: list[Any] = []
    for case, history in enumerate(histories):
        for line, t in enumerate(sorted(history, key=lambda t: t.invoke)):
            who, own = (case * STRIDE + t.version).to_bytes(16, "big"), gts(case, t.version)
            ok = t.complete is not None
            steps.append((f"case {case}", t.process, line, who, "txn", own, ok, t.invoke, t.complete))
            reads += [(f"{case} {k}".encode(), own, who, gts(case, v), 0, 0) for k, v in t.reads.items()]
            writes += [(f"{case} {k}".encode(), own, who, False, b"", False, 0) for k in t.writes]
    columns = "process bigint, line bigint, id binary, f string, gts binary, ok boolean, invoke_us bigint"
    step_frame = spark.createDataFrame(steps, f"file string, {columns}, complete_us bigint")
    read_columns = "key binary, gts binary, id binary, version binary, shard int, replica int"
    read_frame = spark.createDataFrame(reads, read_columns)
    write_columns = "key binary, gts binary, id binary, deleted boolean, value binary, digested boolean, replica int"
    write_frame = spark.createDataFrame(writes, write_columns)
    return Batch(step_frame, edges.reads_in_order(read_frame, write_frame).cache(), write_frame)


def violations(frames: Batch) -> dict[int, set[str]]:
    """Case -> the names of the broken guarantees, by the audit's checks."""
    seen = sessions.seen(frames.ordered, frames.writes, None, [])
    touched = sessions.accesses(frames.steps, seen, frames.writes).cache()
    views = sessions.views(seen, frames.steps, frames.writes)
    found = (
        sessions.monotonic_reads(touched)
        .unionByName(sessions.monotonic_writes(touched, views))
        .unionByName(sessions.read_your_writes(touched))
        .unionByName(sessions.writes_follow_reads(touched, views))
        .unionByName(sessions.linearizable(touched, frames.ordered, frames.writes, []))
    )
    out: dict[int, set[str]] = {}
    for row in found.select("name", "transactions").distinct().collect():
        case = int(row.transactions[0].replace("-", ""), 16) // STRIDE
        out.setdefault(case, set()).add("not-linearizable" if row.name in _PER_KEY else row.name)
    return out


_PER_KEY = ("key-went-back", "lost-update")


# -- brute force -------------------------------------------------------------------------------------------------------


def before_in_time(a: Txn, b: Txn) -> bool:
    return a.complete is not None and a.complete < b.invoke


def before_in_session(a: Txn, b: Txn) -> bool:
    return a.process == b.process and a.invoke < b.invoke and a.complete is not None


def broken(history: History) -> set[str]:
    """The guarantees that do not hold, by their definitions."""
    found = set()
    for a in history:
        for b in history:
            if not before_in_session(a, b):
                continue
            answered = b.complete is not None
            for key in a.reads:
                if answered and b.reads.get(key, a.reads[key]) < a.reads[key]:
                    found.add("non-monotonic-read")
                if key in b.writes and b.version < a.reads[key]:
                    found.add("write-before-read")
                if any(_sees(o, b, key, a.reads[key]) for o in history if o not in (a, b)):
                    found.add("write-before-read")
            for key in a.writes:
                if answered and b.reads.get(key, a.version) < a.version:
                    found.add("own-write-missed")
                if key in b.writes and b.version < a.version:
                    found.add("non-monotonic-write")
                if any(_sees(o, b, key, a.version) for o in history if o not in (a, b)):
                    found.add("non-monotonic-write")
    keys = {key for t in history for key in (*t.reads, *t.writes)}
    if any(not linearizable(history, key) for key in keys):
        found.add("not-linearizable")
    return found


def _sees(observer: Txn, later: Txn, key: str, version: int) -> bool:
    """Whether `observer` read something that `later` wrote, and `key` at an earlier version than this."""
    return later.version in observer.reads.values() and observer.reads.get(key, version) < version


def linearizable(history: History, key: str) -> bool:
    """One key, as a register whose writes have the order of their versions."""
    touching = [t for t in history if key in t.writes or (key in t.reads and t.complete is not None)]
    return any(_plays(order, [key]) for order in _orders(touching, before_in_time))


def _orders(history: Iterable[Txn], before: Any) -> Iterable[tuple[Txn, ...]]:
    for order in permutations(history):
        if not any(before(b, a) for i, a in enumerate(order) for b in order[i + 1 :]):
            yield order


def _plays(order: Sequence[Txn], keys: Iterable[str]) -> bool:
    state = dict.fromkeys(keys, 0)
    for t in order:
        if any(t.reads[key] != state[key] for key in t.reads if key in state):
            return False
        for key in t.writes & state.keys():
            if t.version < state[key]:
                return False
            state[key] = t.version
    return True


def serializable(history: History, before: Any = None) -> bool:
    """In some order that respects `before`, with the versions of each key in their order."""
    keys = {key for t in history for key in (*t.reads, *t.writes)}
    return any(_plays(order, keys) for order in _orders(history, before or (lambda a, b: False)))


# -- at random ---------------------------------------------------------------------------------------------------------


def random_history(rng: random.Random) -> History:
    """Up to five transactions on two keys, serial in the order of their versions but for real time and, often, one
    read."""
    count, keys = rng.randint(2, 5), "xy"
    last = dict.fromkeys(keys, 0)
    made = []
    spread = rng.choice((0, 15, 40))
    for version in range(1, count + 1):
        reads = {k: last[k] for k in keys if rng.random() < 0.5}
        writes = frozenset(k for k in keys if rng.random() < 0.4)
        last.update(dict.fromkeys(writes, version))
        middle = 1000 + 20 * version + rng.randint(-spread, spread)
        complete = None if rng.random() < 0.1 else middle + rng.randint(1, 25)
        made.append(Txn(0, version, middle - rng.randint(1, 25), complete, reads, writes))
    for _ in range(rng.choice((0, 0, 1, 2))):
        n = rng.randrange(count)
        if made[n].reads:
            key = rng.choice(sorted(made[n].reads))
            choice = [0, *(t.version for t in made if key in t.writes and t is not made[n])]
            made[n].reads[key] = rng.choice(choice)
    free: dict[int, float] = {}
    out = []
    for t in sorted(made, key=lambda t: t.invoke):
        fitting = [p for p in range(len(free) + 1) if free.get(p, -1) < t.invoke]
        process = rng.choice(fitting)
        free[process] = float("inf") if t.complete is None else t.complete
        out.append(t._replace(process=process))
    return out
