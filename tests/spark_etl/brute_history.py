"""Transactions of small runs, and what holds of them: models and session guarantees by enumeration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

from tests.spark_etl.brute_cycles import closure, cyclic
from tests.spark_etl.brute_majority import judged
from tests.spark_etl.brute_run import APPLIED, Run


@dataclass
class Txn:
    """What all accounts together say. reads: (key, version). writes: (key, time). invoke None: in no history."""

    id: int
    time: int
    reads: set[tuple[str, int]] = field(default_factory=set)
    writes: set[tuple[str, int]] = field(default_factory=set)
    file: str = ""
    process: int = -1
    ok: bool = False
    invoke: int | None = None
    complete: int | None = None
    told: dict[str, int] = field(default_factory=dict)


@dataclass
class History:
    txns: list[Txn]
    deleted: set[tuple[str, int]]
    clear: bool
    """Every transaction has one version, and no version two."""
    invented: bool
    """Somebody read what nobody wrote."""

    def sources(self, key: str, version: int) -> set[int]:
        """What a read of this version may have seen: an absent key may never have been there, or be deleted."""
        return {version} if version else {0, *(time for k, time in self.deleted if k == key)}


def history(run: Run) -> History:
    """The transactions that took effect."""
    run = judged(run)
    txns: dict[int, Txn] = {}
    rows = run.rows()
    for a in (row.account for row in rows if row.taken and row.account.status == APPLIED):
        txn = txns.setdefault(a.id, Txn(a.id, a.version))
        txn.time = min(txn.time, a.version)
    applied = [a for a in run.all_accounts() if a.status == APPLIED]
    for a in applied:
        txn = txns.setdefault(a.id, Txn(a.id, a.version))
        # what a transaction wrote itself is no read from outside
        txn.reads |= {(k, v) for k, v in a.reads.items() if v != a.version}
        txn.writes |= {(key, a.version) for key in a.writes}
    pairs = {(a.id, a.version) for a in applied} | {(t.id, t.time) for t in txns.values()}
    pairs |= {(row.account.id, row.account.version) for row in rows if row.taken}
    messages = {(d.id, d.time) for _, r, d in run.everywhere() if not d.expired}
    messages |= {(row.delivery.id, row.account.time) for row in rows}
    clear = all(len(p) == len({one for one, _ in p}) == len({time for _, time in p}) for p in (pairs, messages))
    clear &= not any(row.delivery.expired and row.account.status == APPLIED for row in rows)  # it has no place
    deleted = {(key, a.version) for a in applied for key, value in a.writes.items() if value is None}
    kept = {(key, a.version) for a in applied for key, value in a.writes.items() if value is not None}
    for op in run.ops:
        if txn_ := txns.get(op.id):
            txn_.file, txn_.process, txn_.ok = op.file, op.process, op.type == "ok"
            txn_.invoke, txn_.complete = op.invoke, op.complete if op.type == "ok" else None
            txn_.told = op.reads if op.type == "ok" else {}
    invented = any(v and (k, v) not in kept for a in run.all_accounts() for k, v in a.reads.items())
    return History(sorted(txns.values(), key=lambda t: t.time), deleted, clear and not deleted & kept, invented)


def before_in_time(a: Txn, b: Txn) -> bool:
    """Real time, by one clock."""
    if a.file != b.file or a.complete is None or b.invoke is None:
        return False
    return a.complete < b.invoke


def before_in_session(a: Txn, b: Txn) -> bool:
    """Of one process, and the first one was acknowledged."""
    if (a.file, a.process) != (b.file, b.process) or a.invoke is None or b.invoke is None:
        return False
    return a.ok and a.invoke < b.invoke


def before_in_both(a: Txn, b: Txn) -> bool:
    """Where an answer and the next invocation are at one time, real time does not order what its session does."""
    return before_in_time(a, b) or before_in_session(a, b)


Before = Callable[[Txn, Txn], bool]


def nothing(a: Txn, b: Txn) -> bool:
    """No order but that of the data."""
    return False


def serializable(h: History, before: Before = nothing) -> bool:
    """Some serial order that respects `before`, in which every read returns the last version and versions rise."""
    return _serial(h, h.txns, before, None)


def linearizable(h: History, key: str) -> bool:
    """Herlihy and Wing 1990, of one key, its versions in their order; real time between operations of one clock."""
    mine = [t for t in h.txns if any(k == key for k, _ in t.writes) or any(k == key for k, _ in t.reads)]
    mine = [t for t in mine if any(k == key for k, _ in t.writes) or t.ok or not t.file]
    return _serial(h, mine, before_in_time, key)


def _serial(h: History, txns: list[Txn], before: Before, only: str | None) -> bool:
    pred = [{i for i, a in enumerate(txns) if a is not b and before(a, b)} for b in txns]
    stuck: set[frozenset[int]] = set()

    def fits(done: frozenset[int], n: int) -> bool:
        last: dict[str, int] = defaultdict(int)
        for i in done:
            for key, time in txns[i].writes:
                last[key] = max(last[key], time)
        for key, version in txns[n].reads:
            there = 0 if (key, last[key]) in h.deleted else last[key]
            if (only is None or key == only) and there != version:
                return False
        return all(last[key] < time for key, time in txns[n].writes if only is None or key == only)

    def extend(done: frozenset[int]) -> bool:
        if len(done) == len(txns):
            return True
        if done in stuck:
            return False
        for n in range(len(txns)):
            if n not in done and pred[n] <= done and fits(done, n) and extend(done | {n}):
                return True
        stuck.add(done)
        return False

    return extend(frozenset())


def snapshots(h: History, before: Before, conflicts: bool) -> bool:
    """Some execution in which every transaction reads from a snapshot of a prefix of the commits: it starts after all
    that are before it have committed, and versions rise with the commits. conflicts: nobody commits who writes a key
    that was written since he started (snapshot isolation), or else he does (prefix consistency)."""
    txns = h.txns
    pred = [{i for i, a in enumerate(txns) if a is not b and before(a, b)} for b in txns]
    stuck = set()

    def last(done: Iterable[int]) -> dict[str, int]:
        out: dict[str, int] = defaultdict(int)
        for i in done:
            for key, time in txns[i].writes:
                out[key] = max(out[key], time)
        return out

    def extend(done: frozenset[int], open_: frozenset[tuple[int, frozenset[int]]]) -> bool:
        if len(done) == len(txns):
            return True
        if (done, open_) in stuck:
            return False
        now = last(done)
        for n, since in open_:
            rising = all(now[key] < time for key, time in txns[n].writes)
            clash = conflicts and any(now[key] != last(since)[key] for key, _ in txns[n].writes)
            if rising and not clash and extend(done | {n}, open_ - {(n, since)}):
                return True
        begun = done | {n for n, _ in open_}
        for n in range(len(txns)):
            if n in begun or not pred[n] <= done:
                continue
            seen = {key: 0 if (key, now[key]) in h.deleted else now[key] for key, _ in txns[n].reads}
            if all(seen[key] == version for key, version in txns[n].reads) and extend(done, open_ | {(n, done)}):
                return True
        stuck.add((done, open_))
        return False

    return extend(frozenset(), frozenset())


# -- dependencies ------------------------------------------------------------------------------------------------------

Labelled = tuple[int, int, str]
"""Source and target (ids), and ww, wr, rw or so."""


def dependencies(h: History, choice: Mapping[tuple[int, str, int], int]) -> set[Labelled]:
    """Adya's edges; choice: what reads of absent keys saw (`choices`)."""
    writer = {version: t.id for t in h.txns for version in t.writes}
    versions = defaultdict(list)
    for key, time in sorted(writer):
        versions[key].append(time)
    out: set[Labelled] = set()
    for key, times in versions.items():
        out |= {(writer[key, a], writer[key, b], "ww") for a, b in pairwise(times)}
    for t in h.txns:
        for key, version in t.reads:
            seen = choice.get((t.id, key, version), version)
            if seen and (key, seen) in writer:
                out.add((writer[key, seen], t.id, "wr"))
            later = [time for time in versions[key] if time > seen]
            if later and (not seen or (key, seen) in writer):
                out.add((t.id, writer[key, later[0]], "rw"))
    return {(a, b, kind) for a, b, kind in out if a != b}


def choices(h: History) -> Iterator[dict[tuple[int, str, int], int]]:
    """Every way in which reads of absent keys may have seen deletions."""
    open_ = [(t.id, k, v) for t in h.txns for k, v in sorted(t.reads) if len(h.sources(k, v)) > 1]
    for picked in product(*(sorted(h.sources(k, v)) for _, k, v in open_)):
        yield dict(zip(open_, picked, strict=True))


def _visible(h: History, choice: Mapping[tuple[int, str, int], int], before: Before, base: str) -> bool:
    """Biswas and Enea 2019: a commit order that holds wr, `before` and the order of versions, and in which every other
    writer of a key that a reader has seen comes before the one that he read from."""
    edges = dependencies(h, choice)
    order = {(a.id, b.id) for a in h.txns for b in h.txns if a is not b and before(a, b)}
    wr = {(a, b) for a, b, kind in edges if kind == "wr"}
    commit = order | wr | {(a, b) for a, b, kind in edges if kind == "ww"}
    past = {"read-committed": set(), "read-atomic": closure(order) | wr, "causal": closure(order | wr)}[base]
    writer = {version: t.id for t in h.txns for version in t.writes}
    for t in h.txns:
        for key, version in t.reads:
            seen = choice.get((t.id, key, version), version)
            for (k, time), other in writer.items():
                if k == key and other != t.id and (other, t.id) in past and time != seen:
                    if not seen:
                        return False
                    if writer[key, seen] != other:
                        commit.add((other, writer[key, seen]))
    return not cyclic(commit)


def models(h: History) -> dict[str, bool]:
    """Model -> whether some reading of the history satisfies it. Read committed: with the kindest order of reads."""
    out = {}
    for variant, before in (("", nothing), ("strong-session-", before_in_session), ("strong-", before_in_both)):
        order = {(a.id, b.id) for a in h.txns for b in h.txns if a is not b and before(a, b)}

        def some(test: Callable[[Mapping[tuple[int, str, int], int]], bool]) -> bool:
            return any(test(choice) for choice in choices(h))

        def no_g0(choice: Any, order: Any = order) -> bool:
            return not cyclic(order | {(a, b) for a, b, kind in dependencies(h, choice) if kind == "ww"})

        def no_g_single(choice: Any, order: Any = order) -> bool:
            edges = dependencies(h, choice)
            base = closure(order | {(a, b) for a, b, kind in edges if kind != "rw"})
            loops = any(a == b for a, b in base)
            return not loops and not any((b, a) in base for a, b, kind in edges if kind == "rw")

        out[variant + "read-uncommitted"] = some(no_g0)
        for base in ("read-committed", "read-atomic", "causal"):
            out[variant + base] = some(lambda c, b=base, f=before: _visible(h, c, f, b))  # type: ignore[misc]
        out[variant + "consistent-view"] = some(no_g_single)
        out[variant + "prefix"] = snapshots(h, before, False)
        out[variant + "snapshot-isolation"] = snapshots(h, before, True)
        out[variant + "repeatable-read"] = out[variant + "serializable"] = serializable(h, before)
    return out


# -- sessions ----------------------------------------------------------------------------------------------------------


def overlapping(run: Run) -> set[tuple[str, int]]:
    """Processes that did two things at once: they are no sessions."""
    out = set()
    for a, b in product(run.ops, run.ops):
        together = a is not b and (a.file, a.process) == (b.file, b.process) and a.type in ("ok", "fail")
        if together and (a.invoke <= b.invoke < a.complete or a.invoke == b.invoke == a.complete):
            out.add((a.file, a.process))
    return out


def turns(h: History) -> tuple[int, int]:
    """How many transactions are ordered before an earlier, acknowledged one of their session; were invoked before it
    was answered."""
    pairs = [(a, b) for a, b in product(h.txns, h.txns) if a is not b and before_in_session(a, b)]
    inverted = {b.id for a, b in pairs if b.time < a.time}
    return len(inverted), len({b.id for a, b in pairs if (b.invoke or 0) <= (a.complete or 0)})


def guarantees(h: History, no_sessions: set[tuple[str, int]]) -> set[str]:
    """The session guarantees (Terry et al. 1994) that no reading of the history satisfies."""
    names = {"non-monotonic-read", "non-monotonic-write", "own-write-missed", "write-before-read"}
    for choice in choices(h):
        names &= _broken(h, choice, no_sessions)
    return names


def _broken(h: History, choice: Mapping[tuple[int, str, int], int], no_sessions: set[tuple[str, int]]) -> set[str]:
    saw: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for t in h.txns:
        for key, version in t.reads:
            seen = choice.get((t.id, key, version), version)
            told = t.told.get(key, version)
            saw[t.id].append((key, seen if told in (version, t.time) else told))
    writer = {version: t for t in h.txns for version in t.writes}
    found = set()
    for a, b in product(h.txns, h.txns):
        if a is b or not before_in_session(a, b) or (a.file, a.process) in no_sessions:
            continue
        for had, by_reading in [*((v, True) for v in saw[a.id]), *((v, False) for v in a.writes)]:
            key, low = had
            if b.ok and any(k == key and version < low for k, version in saw[b.id]):
                found.add("non-monotonic-read" if by_reading else "own-write-missed")
            late = any(k == key and version < low for k, version in b.writes)
            for o in h.txns:
                reads_b = any(writer.get((k, version)) is b for k, version in saw[o.id])
                if o is not a and o is not b and reads_b and any(k == key and v < low for k, v in saw[o.id]):
                    late = True
            if late:
                found.add("write-before-read" if by_reading else "non-monotonic-write")
    return found


def keys(h: History) -> list[str]:
    return sorted({key for t in h.txns for key, _ in (*t.reads, *t.writes)})
