"""The properties of small runs by their definitions, in plain loops and enumeration: nothing here is the audit's.

Property names and violation names are those of the audit's report. Those of transactions, with sessions and models, are
in `brute_history`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

from tests.spark_etl.brute_cycles import cyclic
from tests.spark_etl.brute_majority import judged
from tests.spark_etl.brute_run import (
    APPLIED,
    Run,
    Submitted,
)

MULTICAST = (
    "integrity", "validity", "agreement in a shard", "prefix order", "one order across shards",
    "results complete and equal", "reads return what the order says", "exactly once",
    "clients saw what the journals say",
)  # fmt: skip


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


def _reads(run: Run, found: set[str]) -> None:
    accounts = run.all_accounts()
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
            said = [a.reads[key] for a in run.all_accounts() if a.id == op.id and key in a.reads]
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
