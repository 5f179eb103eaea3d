"""The properties of small runs by their definitions, in plain loops and enumeration: nothing here is the audit's.

Property names and violation names are those of the audit's report. Those of transactions, with sessions and models, are
in `brute_history`.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise

from tests.spark_etl.brute_cycles import cyclic
from tests.spark_etl.brute_majority import judged
from tests.spark_etl.brute_run import APPLIED, MISMATCH, REPEATED, TAKEN, Account, Row, Run, Submitted

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
    _once(run, majority, found["exactly once"])
    _clients(majority, found["clients saw what the journals say"])
    return found


def _integrity(run: Run, found: set[str]) -> None:
    for replica in run.journals:
        alive = [d.id for d in run.deliveries(replica) if not d.expired]
        if len(alive) != len(set(alive)):
            found.add("duplicate-delivery")
    if any(row.delivery.expired and row.account.status == APPLIED for row in run.rows()):
        found.add("expired-with-effect")


def _by_id(run: Run) -> dict[int, list[Row]]:
    found = defaultdict(list)
    for row in run.rows():
        found[row.account.id].append(row)
    return found


def message_of(rows: list[Row]) -> int:
    """The message that carried a transaction when it was new."""
    taken = [(row.account.version, row.delivery.id) for row in rows if row.taken]
    return min(taken)[1] if taken else min(row.delivery.id for row in rows)


def _validity(run: Run, majority: Run, found: set[str]) -> None:
    multicast = {(r.id, r.destinations) for rs in run.journals.values() for r in rs if isinstance(r, Submitted)}
    origins, everywhere = defaultdict(set), defaultdict(set)
    for _, _, d in majority.everywhere():
        origins[d.id].add(d.origin)
        everywhere[d.id].add((d.expired, d.destinations))  # those in time come first
    if any(one in everywhere and sent != min(everywhere[one])[1] for one, sent in multicast):
        found.add("multicast-elsewhere")
    if any(shard not in d.destinations for shard, _, d in run.everywhere()):
        found.add("wrong-destination")
    for one in origins.keys() - {one for one, _ in multicast}:
        if not any(o in run.journals and run.crashed(o) for o in origins[one]):
            found.add("never-submitted")


def _agreement(run: Run, found: set[str]) -> None:
    for members in run.shards.values():
        at = defaultdict(list)
        for replica in members:
            for d in run.deliveries(replica):
                at[d.position].append((d.id, d.time, d.destinations, d.expired, d.payload))
        if any(len(set(ones)) > 1 for ones in at.values()):
            found.add("position-disagreement")
        for replica in members:
            positions = {d.position for d in run.deliveries(replica)}
            stop = run.stop(replica)
            if positions != set(range(1, max(positions, default=0) + 1)):
                found.add("lost-delivery")
            if stop and stop.delivered > max(positions, default=0):
                found.add("lost-delivery")
            if stop and stop.delivered < max(positions, default=0) and not run.down(replica):
                found.add("stop-disagreement")


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
    times, destinations, at, carried = defaultdict(set), defaultdict(set), defaultdict(set), defaultdict(set)
    payloads = defaultdict(set)
    passed: dict[int, int] = defaultdict(int)
    before: set[tuple[int, int]] = set()
    for shard, replica, d in run.everywhere():
        at[d.id].add(shard)
        for bundle in run.bundles(replica):
            if bundle[0].position == d.position and bundle[0].time == d.time:
                carried[d.id].add(tuple(a.id for a in bundle))
        if not d.expired:
            times[d.id].add(d.time)
            destinations[d.id].add(d.destinations)
            payloads[d.id].add(d.payload)
            passed[shard] = max(passed[shard], d.time)
    for replica in run.journals:
        alive = sorted((d for d in run.deliveries(replica) if not d.expired), key=lambda d: d.position)
        before |= {(a.id, b.id) for a, b in combinations(alive, 2) if a.id != b.id}
    if any(len(ones) > 1 for ones in times.values()):
        found.add("timestamp-disagreement")
    if any(len(ones) > 1 for ones in destinations.values()):
        found.add("destination-disagreement")
    if any(len(ones) > 1 for ones in payloads.values()):
        found.add("payload-disagreement")
    if any(len(carried[one]) > 1 for one in times):
        found.add("bundle-disagreement")
    if any(min(times[a]) == min(times[b]) for a, b in combinations(times, 2)):
        found.add("timestamp-shared")
    for one in times:
        for shard in min(destinations[one]):
            if shard not in at[one] and min(times[one]) < passed[shard]:
                found.add("missed-delivery")
    if cyclic(before):
        found.add("order-cycle")


def _branches(run: Run, found: set[str]) -> None:
    for rows in _by_id(run).values():
        taken = [row.account for row in rows if row.taken]
        branches = {(a.succeeded, a.truths) for a in taken if a.status == APPLIED}
        if len({a.status for a in taken}) > 1 or len(branches) > 1:
            found.add("branch-disagreement")
        fates = {(a.version, 0 if a.status in TAKEN else a.status) for a in (row.account for row in rows)}
        if len(fates) > len({version for version, _ in fates}):
            found.add("fate-disagreement")


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
                if any(a.time != d.time for a in accounts):
                    found.add("outcome-of-another-delivery")
            for bundle in run.bundles(replica):
                position, digest = bundle[0].position, bundle[0].digest
                if position not in positions:
                    found.add("outcome-without-delivery")
                contents[position].add(str([a.content for a in bundle]))
                if digest is not None:
                    digests[position].add(digest)
        if any(len(ones) > 1 for ones in contents.values()):
            found.add("outcome-disagreement")
        if any(len(ones) > 1 for ones in digests.values()):
            found.add("state-digest-disagreement")


def _reads(run: Run, found: set[str]) -> None:
    accounts = run.all_accounts()
    written = {(k, a.version): v for a in accounts if a.status == APPLIED for k, v in a.writes.items()}
    for a in accounts:
        for key, version in a.reads.items():
            earlier = [time for k, time in written if k == key and time < a.version]
            last = max(earlier, default=0)
            expected = 0 if not last or written[key, last] is None else last
            if version == expected:
                continue
            if version and written.get((key, version)) is None:
                found.add("unwritten-version")
            elif version >= a.version:
                found.add("future-read")
            else:
                found.add("stale-read")


def _once(run: Run, majority: Run, found: set[str]) -> None:
    for replica in run.journals:
        places, effects = defaultdict(set), defaultdict(set)
        for number, bundle in enumerate(run.bundles(replica)):
            for a in bundle:
                if a.status in TAKEN:
                    places[a.id].add((a.position, a.index))
                if a.status == APPLIED and a.writes:
                    effects[a.id].add((number, a.index))
        for one in places:
            if len(effects[one]) > 1:
                found.add("effect-twice")
            elif len(places[one]) > 1:
                found.add("taken-twice")
    for rows in _by_id(majority).values():
        first = min((row.account.version for row in rows if row.taken), default=1_000_000)
        there = {row.shard for row in rows if row.taken}
        again = [row for row in rows if row.account.status == REPEATED]
        if any(row.shard not in there or row.account.version < first for row in again):
            found.add("repeated-without-first")
        elif any(row.account.status == MISMATCH and row.account.version < first for row in rows):
            found.add("mismatch-without-first")


def _end(run: Run, members: list[int]) -> int:
    """The version up to which the journals of a shard go."""
    ends = [
        (d.time, a.version)
        for r in members
        for d in run.deliveries(r)
        if not d.expired
        for a in run.accounts(r, d.position) or [Account(d.position, d.time, 0)]
    ]
    return max(ends, default=(0, 0))[1]


def settled(run: Run) -> int | None:
    """Where replicas crashed a transaction may be under way that no delivery shows: at the end of each such shard."""
    ends = [_end(run, members) for members in run.shards.values() if any(run.crashed(r) for r in members)]
    return min(ends, default=None)


def open_ends(run: Run) -> dict[int, int]:
    """How far the journals go of the shards with a replica that was down at the end: beyond that they may be cut."""
    return {
        shard: _end(run, members) for shard, members in run.shards.items() if any(run.down(r) for r in members)
    }


def _carriers(run: Run) -> dict[int, set[bool]]:
    """Time -> of the messages whose transactions have versions of it, whether anybody accounts for these."""
    found = defaultdict(set)
    for one in {d.id for _, _, d in run.everywhere() if not d.expired}:
        here = [(r, d) for _, r, d in run.everywhere() if d.id == one]
        firsts = [b[0].version for r, d in here for b in run.bundles(r) if b[0].position == d.position]
        unaccounted = [10 * d.time for r, d in here if not run.accounts(r, d.position)]
        found[min(firsts + unaccounted) // 10].add(bool(firsts))
    return found


def _clients(run: Run, found: set[str]) -> None:
    ends, by_id, carriers = open_ends(run), _by_id(run), _carriers(run)
    delivered = defaultdict(set)
    for shard, _, d in run.everywhere():
        delivered[d.id].add(shard)
    for op in run.told():
        rows = by_id[op.id]
        taken = [row for row in rows if row.taken]
        applied = [row.account for row in taken if row.account.status == APPLIED]
        if op.type == "fail" and any(a.writes for a in applied):
            found.add("refused-but-present")
        if op.type != "ok":
            continue
        if not rows:
            known = carriers.get(op.version // 10) if op.version is not None else None
            lost = not ends or (op.version is not None and op.version < min(ends.values()))
            if (True in known) if known else lost:
                found.add("acknowledged-but-absent")
            continue
        version = min(row.account.version for row in taken or rows)
        destinations = set(min(row.delivery.destinations for row in taken or rows)) & run.shards.keys()
        there = {row.shard for row in rows}
        void = (destinations & there) - {row.shard for row in taken}
        lacking = destinations - there - delivered[message_of(rows)]
        missing = {s for s in lacking if s not in ends or version < ends[s]}
        if (taken and not applied) or void or missing:
            found.add("acknowledged-but-absent")
        if op.version is not None and op.version != version:
            found.add("version-mismatch")
        if applied and op.succeeded is not None and op.succeeded != min(a.succeeded for a in applied):
            found.add("branch-mismatch")
        whole = destinations <= {row.shard for row in taken if row.account.status == APPLIED}
        for key, told in op.reads.items():
            accounts = [a for a in run.all_accounts() if a.id == op.id]
            said = [a.reads[key] for a in accounts if key in a.reads]
            own = any(key in a.writes and a.version == told for a in accounts) or (told == version and not whole)
            if not own and (max(said) != told if said else whole):
                found.add("read-mismatch")


def unknown(run: Run) -> tuple[int, int, int, int]:
    """Operations without a known outcome: all, applied, certainly not applied, open."""
    run = judged(run)
    by_id = _by_id(run)
    counts = [0, 0, 0, 0]
    for op in run.told():
        if op.type in ("ok", "fail"):
            continue
        rows = by_id[op.id]
        taken = {row.account.status for row in rows if row.taken}
        counts[0] += 1
        if APPLIED in taken:
            counts[1] += 1
        elif rows or settled(run) is None:
            counts[2] += 1
        else:
            counts[3] += 1
    return counts[0], counts[1], counts[2], counts[3]
