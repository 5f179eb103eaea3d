"""The properties of small runs by their definitions, in plain loops and enumeration: nothing here is the audit's.

A run is what journals and client histories say, with small numbers for ids, versions (times, from 1; 0: absent) and
clocks. Property names and violation names are those of the audit's report.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from typing import Any

from tests.spark_etl.brute_cycles import closure, cyclic
from tests.spark_etl.brute_majority import judged

APPLIED, EXPIRED, FAILED, MISMATCH = 1, 2, 3, 4

MULTICAST = (
    "integrity", "validity", "agreement in a shard", "prefix order", "one order across shards",
    "results complete and equal", "reads return what the order says", "exactly once",
    "clients saw what the journals say",
)  # fmt: skip


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


def violations(run: Run) -> dict[str, set[str]]:
    """Property -> names of violations, of the properties of MULTICAST."""
    found: dict[str, set[str]] = {name: set() for name in MULTICAST}
    _integrity(run, found["integrity"])
    majority = judged(run)
    _validity(run, majority, found["validity"])
    _agreement(run, found["agreement in a shard"])
    _prefix(run, found["prefix order"])
    _one_order(majority, found["one order across shards"])
    _results(run, found["results complete and equal"])
    _branches(majority, found["results complete and equal"])
    _reads(majority, found["reads return what the order says"])
    for replica in run.journals:
        effects = [a.id for a in run.accounts(replica) if a.status == APPLIED and a.writes]
        if len(effects) != len(set(effects)):
            found["exactly once"].add("effect-twice")
    _clients(majority, found["clients saw what the journals say"])
    return found


def _integrity(run: Run, found: set[str]) -> None:
    for replica in run.journals:
        alive = [d.id for d in run.deliveries(replica) if run.live(replica, d)]
        if len(alive) != len(set(alive)):
            found.add("duplicate-delivery")
        for d in run.deliveries(replica):
            if d.expired and any(a.status == APPLIED for a in run.accounts(replica, d.position)):
                found.add("expired-with-effect")


def _validity(run: Run, majority: Run, found: set[str]) -> None:
    multicast = {r.id for records in run.journals.values() for r in records if isinstance(r, Submitted)}
    origins = defaultdict(set)
    for _, _, d in majority.everywhere():
        origins[d.id].add(d.origin)
    if any(shard not in d.destinations for shard, _, d in run.everywhere()):
        found.add("wrong-destination")
    invoked = {op.id for op in run.ops}
    for one in origins.keys() - multicast - invoked:
        if not any(o in run.journals and run.crashed(o) for o in origins[one]):
            found.add("never-submitted")


def _agreement(run: Run, found: set[str]) -> None:
    for members in run.shards.values():
        at = defaultdict(list)
        for replica in members:
            for d in run.deliveries(replica):
                at[d.position].append((d.id, d.time, d.destinations, d.expired))
        if any(len(set(ones)) > 1 for ones in at.values()):
            found.add("position-disagreement")
        for replica in members:
            positions = {d.position for d in run.deliveries(replica)}
            stop = run.stop(replica)
            if positions != set(range(1, max(positions, default=0) + 1)):
                found.add("lost-delivery")
            if stop and stop.delivered > max(positions, default=0):
                found.add("lost-delivery")


def _prefix(run: Run, found: set[str]) -> None:
    for replica in run.journals:
        for a, b in pairwise(run.deliveries(replica)):
            if b.position == a.position:
                found.add("position-repeated")
            elif b.position < a.position:
                found.add("delivered-out-of-order")
            elif b.time <= a.time:
                found.add("timestamp-not-rising")


def _one_order(run: Run, found: set[str]) -> None:
    times, destinations, at = defaultdict(set), defaultdict(set), defaultdict(set)
    passed: dict[int, int] = defaultdict(int)
    before: set[tuple[int, int]] = set()
    for shard, replica, d in run.everywhere():
        at[d.id].add(shard)
        if run.live(replica, d):
            times[d.id].add(d.time)
            destinations[d.id].add(d.destinations)
            passed[shard] = max(passed[shard], d.time)
    for replica in run.journals:
        alive = sorted((d for d in run.deliveries(replica) if run.live(replica, d)), key=lambda d: d.position)
        before |= {(a.id, b.id) for a, b in combinations(alive, 2) if a.id != b.id}
    if any(len(ones) > 1 for ones in times.values()):
        found.add("timestamp-disagreement")
    if any(len(ones) > 1 for ones in destinations.values()):
        found.add("destination-disagreement")
    if any(min(times[a]) == min(times[b]) for a, b in combinations(times, 2)):
        found.add("timestamp-shared")
    for one in times:
        for shard in min(destinations[one]):
            if shard not in at[one] and min(times[one]) < passed[shard]:
                found.add("missed-delivery")
    if cyclic(before):
        found.add("order-cycle")


def _branches(run: Run, found: set[str]) -> None:
    statuses, branches = defaultdict(set), defaultdict(set)
    for _, replica, d in run.everywhere():
        for a in run.accounts(replica, d.position) if run.live(replica, d) else ():
            statuses[d.id].add(a.status)
            if a.status == APPLIED:
                branches[d.id].add(a.succeeded)
    if any(len(ones) > 1 for ones in (*statuses.values(), *branches.values())):
        found.add("branch-disagreement")


def _results(run: Run, found: set[str]) -> None:
    for members in run.shards.values():
        contents, digests = defaultdict(set), defaultdict(set)
        for replica in members:
            positions = {d.position for d in run.deliveries(replica)}
            stop = run.stop(replica)
            reached = max([a.position for a in run.accounts(replica)] + [stop.completed if stop else 0])
            for d in run.deliveries(replica):
                accounts = run.accounts(replica, d.position)
                if not accounts and d.position <= reached:
                    found.add("outcome-missing")
                for a in accounts:
                    if (a.id, a.time) != (d.id, d.time):
                        found.add("outcome-of-another-delivery")
            for a in run.accounts(replica):
                if a.position not in positions:
                    found.add("outcome-without-delivery")
                contents[a.position].add(str(a.content))
                if a.digest is not None:
                    digests[a.position].add(a.digest)
        if any(len(ones) > 1 for ones in contents.values()):
            found.add("outcome-disagreement")
        if any(len(ones) > 1 for ones in digests.values()):
            found.add("state-digest-disagreement")


def _all_accounts(run: Run) -> list[Account]:
    return [a for replica in run.journals for a in run.accounts(replica)]


def _reads(run: Run, found: set[str]) -> None:
    accounts = _all_accounts(run)
    written = {(k, a.time): v for a in accounts if a.status == APPLIED for k, v in a.writes.items()}
    for a in accounts:
        for key, version in a.reads.items():
            earlier = [time for k, time in written if k == key and time < a.time]
            last = max(earlier, default=0)
            expected = 0 if not last or written[key, last] is None else last
            if version == expected:
                continue
            if version and written.get((key, version)) is None:
                found.add("unwritten-version")
            elif version >= a.time:
                found.add("future-read")
            else:
                found.add("stale-read")


def settled(run: Run) -> int | None:
    """Where replicas crashed a transaction may be under way that no delivery shows: at the end of each such shard."""
    ends = []
    for members in run.shards.values():
        if any(run.crashed(r) for r in members):
            ends.append(max((d.time for r in members for d in run.deliveries(r) if run.live(r, d)), default=0))
    return min(ends, default=None)


def open_ends(run: Run) -> dict[int, int]:
    """How far the journals go of the shards with a replica that was down at the end: beyond that they may be cut."""
    return {
        shard: max((d.time for r in members for d in run.deliveries(r) if run.live(r, d)), default=0)
        for shard, members in run.shards.items()
        if any(run.down(r) for r in members)
    }


def _clients(run: Run, found: set[str]) -> None:
    ends = open_ends(run)
    for op in run.ops:
        here = [(s, r, d) for s, r, d in run.everywhere() if d.id == op.id]
        alive = [(s, r, d) for s, r, d in here if run.live(r, d)]
        accounts = [(s, a) for s, r, d in alive for a in run.accounts(r, d.position)]
        applied = [a for _, a in accounts if a.status == APPLIED]
        if op.type == "fail" and any(a.writes for a in applied):
            found.add("refused-but-present")
        if op.type != "ok":
            continue
        if not here:
            if not ends or (op.version is not None and op.version < min(ends.values())):
                found.add("acknowledged-but-absent")
            continue
        time = min(d.time for _, _, d in alive or here)
        destinations = set(min(d.destinations for _, _, d in alive or here)) & run.shards.keys()
        delivered = {s for s, _, _ in here}
        void = (destinations & delivered) - {s for s, _, _ in alive}
        missing = {s for s in destinations - delivered if s not in ends or time < ends[s]}
        if (accounts and not applied) or void or missing:
            found.add("acknowledged-but-absent")
        if op.version is not None and op.version != time:
            found.add("version-mismatch")
        if applied and op.succeeded is not None and op.succeeded != min(a.succeeded for a in applied):
            found.add("branch-mismatch")
        whole = destinations <= {s for s, a in accounts if a.status == APPLIED}
        for key, told in op.reads.items():
            said = [a.reads[key] for a in _all_accounts(run) if a.id == op.id and key in a.reads]
            if told != time and (max(said) != told if said else whole):
                found.add("read-mismatch")


def unknown(run: Run) -> tuple[int, int, int, int]:
    """Operations without a known outcome: all, applied, certainly not applied, open."""
    run = judged(run)
    counts = [0, 0, 0, 0]
    for op in run.ops:
        if op.type in ("ok", "fail"):
            continue
        here = [(r, d) for _, r, d in run.everywhere() if d.id == op.id]
        alive = [(r, d) for r, d in here if run.live(r, d)]
        statuses = {a.status for r, d in alive for a in run.accounts(r, d.position)}
        counts[0] += 1
        if APPLIED in statuses:
            counts[1] += 1
        elif (here and not alive) or statuses or (not here and settled(run) is None):
            counts[2] += 1
        else:
            counts[3] += 1
    return counts[0], counts[1], counts[2], counts[3]


# -- transactions ------------------------------------------------------------------------------------------------------


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
    for _, replica, d in run.everywhere():
        if run.live(replica, d) and any(a.status == APPLIED for a in run.accounts(replica, d.position)):
            txn = txns.setdefault(d.id, Txn(d.id, d.time))
            txn.time = min(txn.time, d.time)
    applied = [a for a in _all_accounts(run) if a.status == APPLIED]
    for a in applied:
        txn = txns.setdefault(a.id, Txn(a.id, a.time))
        # what a transaction wrote itself is no read from outside
        txn.reads |= {(k, v) for k, v in a.reads.items() if v != a.time}
        txn.writes |= {(key, a.time) for key in a.writes}
    pairs = {(a.id, a.time) for a in applied} | {(t.id, t.time) for t in txns.values()}
    pairs |= {(d.id, d.time) for _, r, d in run.everywhere() if run.live(r, d)}
    clear = len(pairs) == len({one for one, _ in pairs}) == len({time for _, time in pairs})
    deleted = {(key, a.time) for a in applied for key, value in a.writes.items() if value is None}
    kept = {(key, a.time) for a in applied for key, value in a.writes.items() if value is not None}
    for op in run.ops:
        if txn_ := txns.get(op.id):
            txn_.file, txn_.process, txn_.ok = op.file, op.process, op.type == "ok"
            txn_.invoke, txn_.complete = op.invoke, op.complete if op.type == "ok" else None
            txn_.told = op.reads if op.type == "ok" else {}
    invented = any(v and (k, v) not in kept for a in _all_accounts(run) for k, v in a.reads.items())
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
    for variant, before in (("", nothing), ("strong-session-", before_in_session), ("strong-", before_in_time)):
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
        if together and a.invoke <= b.invoke <= a.complete:
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
