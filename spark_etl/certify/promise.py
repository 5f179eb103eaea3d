"""Reads that stand in no journal and saw several shards, or may have missed something: the *promise* kernel."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify import time
from spark_etl.certify.arrays import (
    NOTHING,
    entries,
    greatest_before,
    halves,
    index_in,
    names,
    numbers,
    of_groups,
    pick,
    ranks,
    sums_below,
    trust,
    valid,
    whole,
)
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.checks.ranges import FIRST_KEY, Bounds, Scanned, scanned

WRITES = ("key", "gts", "deleted")
_NOBODYS = -1


def counted(reads: Operations) -> Mapping[str, int]:
    """How many there are of each consistency."""
    rows = pc.value_counts(pc.fill_null(reads.asked("consistency"), "linearizable")).to_pylist()
    return {row["values"]: row["counts"] for row in rows}


def certify(
    reads: Operations, ops: Operations, at: Placed, found: Transactions, logs: Sequence[AgreedLog],
    writes: Callable[[], Sequence[pa.Table]],
) -> None:  # fmt: skip
    """They were told what stood where they were read, no older than promised, and of one instant if they are
    linearizable (`checks.promises`). reads: operations that are promised; ops: all others. writes(): WRITES of each of
    `logs`, none with a key of another. Suspect."""
    read, at_shard, position = entries(pick(reads.history["places"], reads.end))
    shard, places = numbers(at_shard), numbers(position)
    last = np.zeros((len(read), 2), np.uint64)
    trust(np.isin(shard, [log.shard for log in logs]), "a shard that nobody has")
    for log in logs:
        last[shard == log.shard] = time.places(log, places[shard == log.shard])[0]
    scans = _scans(reads, np.arange(len(reads.end)))
    seen_at = halves(pick(reads.history["seen"], reads.end))
    _ranges_are_whole(scans, seen_at, (read, shard, last), [log.shard for log in logs], writes)
    _of_earliest(seen_at, read, last)
    consistency = reads.asked("consistency")
    linearizable = ~valid(consistency)
    several = linearizable & (np.bincount(read, minlength=len(reads.end)) > 1)
    _as_it_stood(reads, several, (read, shard, last), [log.shard for log in logs], writes())
    stale = np.asarray(pc.fill_null(pc.equal(consistency, "stale"), False).to_numpy(zero_copy_only=False), bool)
    since = reads.invoke - numbers(reads.asked("age_us"), 0)
    course = time.steps(ops, at, found, logs)
    visits = time.visits(ops, course, found, logs)
    _fresh(reads, linearizable, stale, since, (read, shard, places), visits, ops)
    _asked_before(reads, (read, shard, places), visits, ops)
    _versions_asked_before(reads, np.bincount(read, minlength=len(reads.end)) == 0, ops, at, found)
    taken = course.op[ops.ok[course.op] & ~ops.at_position[course.op]]
    at_version = np.flatnonzero((linearizable | stale) & (np.bincount(read, minlength=len(reads.end)) == 0))
    gts, seen = ranks(found.gts[at.row[taken]], halves(pick(reads.history["seen"], reads.end))[at_version])
    known = _greatest(
        (ops, taken, np.zeros(len(taken), np.int64), gts),
        (reads, at_version, np.zeros(len(at_version), np.int64), since[at_version]),
    )
    trust(seen >= known, "a version older than promised")


def _of_earliest(seen: np.ndarray, read: np.ndarray, last: np.ndarray) -> None:
    """What was answered from places has the version of the earliest, or none. seen: by read; read, last: by place."""
    (turn,) = ranks(last)
    place = np.zeros(int(turn.max(initial=-1)) + 1, np.int64)
    place[turn] = np.arange(len(turn))
    placed = np.unique(read)
    least = last[place[of_groups(read, turn, len(seen), np.minimum, np.iinfo(np.int64).max)[placed]]]
    mine, index = seen[placed], np.uint64(16)
    same = (mine[:, 0] == least[:, 0]) & (mine[:, 1] >> index == least[:, 1] >> index)
    trust(same | ~mine.any(axis=1), "another version than the earliest place has")


def certify_ranges(
    ops: Operations, at: Placed, found: Transactions, logs: Sequence[AgreedLog],
    writes: Callable[[], Sequence[pa.Table]],
) -> None:  # fmt: skip
    """Operations that stand in journals, or saw one shard at a position, were told of as many keys in each range as
    stood there. Arguments: as of `certify`; writes are asked for only if there are ranges. Suspect."""
    everywhere = (at.of(found.applied) != 0) & (at.of(found.expected & ~found.applied) == 0)
    scans = _scans(ops, np.flatnonzero(ops.ok & (everywhere | ops.at_position)))
    seen = np.zeros((len(ops.end), 2), np.uint64)
    seen[at.row >= 0] = found.gts[at.row[at.row >= 0]]
    reads = np.array(sorted({row for row, _ in scans if ops.at_position[row]}), np.int64)
    shard, position = time.where(ops, reads)
    last = np.zeros((len(reads), 2), np.uint64)
    for log in logs:
        last[shard == log.shard] = time.places(log, position[shard == log.shard])[0]
    _ranges_are_whole(scans, seen, (reads, shard, last), [log.shard for log in logs], writes)


def _scans(ops: Operations, rows: np.ndarray) -> list[tuple[int, Scanned]]:
    """The ranges of these operations, each with the row."""
    asked = pick(ops.history["asked"], ops.begin[rows])
    some = np.flatnonzero(numbers(pc.match_substring_regex(asked, '"(range|keys|count|delete_range)"'), 0))
    told, ran = (pick(ops.history[name], ops.end[rows[some]]).to_pylist() for name in ("told", "succeeded"))
    each = zip(rows[some].tolist(), asked.take(pa.array(some)).to_pylist(), told, ran, strict=True)
    return [(row, one) for row, *said in each for one in scanned(*said)]


def _ranges_are_whole(
    scans: Sequence[tuple[int, Scanned]], seen: np.ndarray, looks: tuple[np.ndarray, np.ndarray, np.ndarray],
    shards: Sequence[int], writes: Callable[[], Sequence[pa.Table]],
) -> None:  # fmt: skip
    """As many keys stood in each range as were told; each of them is compared anyhow. The store's own, which nobody
    asks for over HTTP, may be among them. seen: by row, for the shards of which there is no look; of who has looked at
    others, what he saw there."""
    if not scans:
        return
    seen = seen.copy()
    seen[looks[0]] = looks[2]
    rows = np.array([row for row, _ in scans])
    from_first = np.array([one.first == FIRST_KEY for _, one in scans])
    earlier = np.array([one.course is not None for _, one in scans], np.int64)
    but = [(n, *bounds) for n, (_, one) in enumerate(scans) for bounds in one.course or ()]
    of = np.array([n for n, _, _ in but], np.int64)
    bounds = [one[:2] for _, one in scans] + [one[1:] for one in but]
    there, own = np.zeros(len(scans), np.int64), np.zeros(len(scans), np.int64)
    for shard, table in zip(shards, writes(), strict=True):
        at = seen[rows]
        place = np.full(len(seen), -1)
        mine = np.flatnonzero(looks[1] == shard)
        place[looks[0][mine]] = mine
        at[place[rows] >= 0] = looks[2][place[rows][place[rows] >= 0]]
        when, seen_at = ranks(halves(table["gts"]), at)
        key, low, high = _in_order(whole(table["key"]).cast(pa.binary()), bounds)
        order = np.lexsort((when, key))
        lives = ~numbers(table["deleted"])[order].astype(bool)
        same = key[order][1:] == key[order][:-1]
        lived = lives[:-1] & same
        before = np.append(False, lived) if len(order) else lives
        change = lives.astype(np.int64) - before
        in_time = np.argsort(when[order], kind="stable")
        known = np.searchsorted(when[order][in_time], seen_at - earlier, side="right")
        known = np.concatenate([known, known[of]])
        below = partial(sums_below, key[order][in_time], change[in_time], known)
        inside = below(high) - below(low)
        there += inside[: len(scans)]
        np.subtract.at(there, of, inside[len(scans) :])
        own += np.where(from_first, below(low)[: len(scans)], 0)
    number, least = np.array([one.number for _, one in scans]), np.array([one.least for _, one in scans])
    trust((least | (there <= number)) & (number <= there + own), "another number of keys than stood in a range")


def _in_order(keys: pa.Array, ranges: Sequence[Bounds]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The keys as numbers that sort as they do; and of each range the number of its first key, and of the one behind
    its last."""
    known = pc.unique(keys)
    ordered = known.take(pc.sort_indices(known))
    bounds = {bound for one in ranges for bound in one}
    places = {bound: bisect_left(range(len(ordered)), bound, key=lambda n: ordered[n].as_py()) for bound in bounds}
    low = np.array([places[first] for first, _ in ranges])
    high = np.array([places[end] if end else len(ordered) for _, end in ranges])
    return numbers(pc.index_in(keys, value_set=ordered)), low, np.maximum(low, high)


def _as_it_stood(
    reads: Operations, several: np.ndarray, looks: tuple[np.ndarray, np.ndarray, np.ndarray], shards: Sequence[int],
    writes: Sequence[pa.Table],
) -> None:  # fmt: skip
    row, name, version = entries(pick(reads.history["reads"], reads.end))
    trust(valid(version), "a read without a version")
    mine, *theirs = names(name, *(table["key"] for table in writes))
    owner = np.full(int(max(codes.max(initial=-1) for codes in (mine, *theirs))) + 1, _NOBODYS, np.int64)
    for shard, codes in zip(shards, theirs, strict=True):
        owner[codes] = shard
    placed = np.isin(row, looks[0])
    wanted = np.column_stack([row, owner[mine]]).astype(np.int64)
    has, where = ranks(np.column_stack([looks[0], looks[1]]).astype(np.int64), wanted)
    look = np.full(int(max(has.max(initial=-1), where.max(initial=-1))) + 1, NOTHING, np.int64)
    look[has] = np.arange(len(has))
    nobodys = owner[mine] == _NOBODYS
    trust(~placed | nobodys | (look[where] != NOTHING), "a key of a shard that it did not see")
    at = halves(pick(reads.history["seen"], reads.end))[row]
    here = placed & ~nobodys
    at[here] = looks[2][look[where[here]]]
    _around(row, mine, at, version, several, theirs, writes)


def _around(
    row: np.ndarray, key: np.ndarray, at: np.ndarray, version: pa.Array, several: np.ndarray,
    written: Sequence[np.ndarray], writes: Sequence[pa.Table],
) -> None:  # fmt: skip
    """What stood there is what was told; and of `several`, all that was told is older than all that came next."""
    gts = [halves(table["gts"]) for table in writes]
    seen_at, said, absent, *wrote = ranks(at, halves(version), np.zeros((1, 2), np.uint64), *gts)
    keys, when = np.concatenate([key, *written]), np.concatenate([seen_at, *wrote])
    turn = np.repeat([1, 0], [len(key), len(keys) - len(key)])
    deleted = np.concatenate([np.zeros(len(key), bool), *(numbers(table["deleted"]) for table in writes)])
    order = np.lexsort((turn, when, keys))
    is_write, count = turn[order] == 0, len(keys)
    places = np.arange(count)
    before = np.maximum.accumulate(np.where(is_write, places, -1))
    after = np.minimum.accumulate(np.where(is_write, places, count)[::-1])[::-1]
    in_order = keys[order]
    has = (before >= 0) & (in_order[before] == in_order)
    stood = np.where(has & ~deleted[order][before], when[order][before], absent[0])
    last = np.minimum(after, max(count - 1, 0))
    following = np.where((after < count) & (in_order[last] == in_order), when[order][last], np.iinfo(np.int64).max)
    expected, missed = np.empty(count, np.int64), np.empty(count, np.int64)
    expected[order], missed[order] = stood, following
    trust(said == expected[: len(key)], "another version than stood there")
    whole = several[row]
    newest = of_groups(row[whole], said[whole], len(several), np.maximum, NOTHING)
    next_ = of_groups(row[whole], missed[: len(key)][whole], len(several), np.minimum, np.iinfo(np.int64).max)
    trust(newest < next_, "of no instant in the order of versions")


def _fresh(
    reads: Operations, linearizable: np.ndarray, stale: np.ndarray, since: np.ndarray,
    looks: tuple[np.ndarray, np.ndarray, np.ndarray], visits: tuple[np.ndarray, np.ndarray, np.ndarray],
    ops: Operations,
) -> None:  # fmt: skip
    read, shard, position = looks
    asked = np.flatnonzero((linearizable | stale)[read])
    told = np.flatnonzero(linearizable[read])
    known = _greatest((ops, *visits), (reads, read[asked], shard[asked], since[read[asked]]))
    others = _greatest(
        (reads, read[told], shard[told], position[told]), (reads, read[asked], shard[asked], since[read[asked]])
    )
    trust(position[asked] >= np.maximum(known, others), "a place older than promised")


def _asked_before(
    reads: Operations, looks: tuple[np.ndarray, np.ndarray, np.ndarray],
    visits: tuple[np.ndarray, np.ndarray, np.ndarray], ops: Operations,
) -> None:  # fmt: skip
    """Nothing that they saw was asked for when they had been answered; of the same file."""
    read, shard, position = looks
    who, where, place = (column[~ops.at_position[visits[0]]] for column in visits)
    files = names(ops.asked("file").take(pa.array(who)), reads.asked("file").take(pa.array(read)))
    groups = ranks(np.column_stack([np.concatenate(files), np.concatenate([where, shard])]))[0]
    times = np.concatenate([-ops.invoke[who], -reads.complete[read]])
    later = greatest_before(groups, times, np.concatenate([-place, np.full(len(read), NOTHING)]))[len(who) :]
    trust((later == NOTHING) | (position < -later), "a place behind what was asked for later")


def _versions_asked_before(
    reads: Operations, at_version: np.ndarray, ops: Operations, at: Placed, found: Transactions
) -> None:
    """The same of what they were told of, who read at one version."""
    row, _, version = entries(pick(reads.history["reads"], reads.end))
    mine = at_version[row] & valid(version)
    known = np.flatnonzero(at.row >= 0)
    who = index_in(halves(version)[mine], found.gts[at.row[known]])
    op, reader = known[who[who >= 0]], row[mine][who >= 0]
    files = names(ops.asked("file").take(pa.array(op)), reads.asked("file").take(pa.array(reader)))
    trust((files[0] != files[1]) | (ops.invoke[op] <= reads.complete[reader]), "a version that was asked for later")


def _greatest(
    told: tuple[Operations, np.ndarray, np.ndarray, np.ndarray],
    asked: tuple[Operations, np.ndarray, np.ndarray, np.ndarray],
) -> np.ndarray:
    """Of each of `asked` (operations, rows, shards, times) the greatest value among `told` (operations, rows, shards,
    values) of its file and shard that was answered before its time."""
    whose, who, shard, value = told
    mine, reader, read_shard, before = asked
    files = names(whose.asked("file").take(pa.array(who)), mine.asked("file").take(pa.array(reader)))
    groups = ranks(np.column_stack([np.concatenate(files), np.concatenate([shard, read_shard])]))[0]
    times = np.concatenate([whose.complete[who], before])
    values = np.concatenate([value, np.full(len(reader), NOTHING)])
    return greatest_before(groups, times, values)[len(who) :]
