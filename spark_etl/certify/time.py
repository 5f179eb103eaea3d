"""Operations in real time and in their sessions, against the order of versions: the *time* kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import (
    NOTHING,
    greatest_before,
    halves,
    index_in,
    numbers,
    ranks,
    trust,
    who_is_greatest_before,
)
from spark_etl.certify.client import Operations, Placed, told_reads
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.log import TAKEN

_LAST_INDEX = np.uint64(0xFFFF)


class Course(NamedTuple):
    """What took place, as `checks.sessions.steps`: rows of `Operations`, and ranks that sort as the order does. nodes:
    of every transaction, and then of every operation that is a read at a position (others: -1), such a rank. told: of
    these reads (in the order of their rows) the operation, or -1, whose answer says how late it may have been."""

    op: np.ndarray
    order: np.ndarray
    nodes: np.ndarray
    told: np.ndarray


def first_versions(gts: np.ndarray, index: int | np.uint64 = 0) -> np.ndarray:
    """Of messages: `relations.version_of`."""
    low = (gts[:, 1] << np.uint64(16)) | np.uint64(index)
    return np.column_stack([gts[:, 0], low])


def places(log: AgreedLog, position: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of positions of a log: the greatest version that there may be (0: zeros), the first one of the next position
    (zeros: there is none), and whether there is one. Suspect if a position is not there."""
    gts = halves(log.entries["gts"])
    trust((position >= 0) & (position <= len(gts)), "a position that nobody has")
    padded = np.concatenate([np.zeros((1, 2), np.uint64), first_versions(gts, _LAST_INDEX)])
    following = np.concatenate([first_versions(gts), np.zeros((1, 2), np.uint64)])
    return padded[position], following[position], position < len(gts)


def steps(
    ops: Operations, at: Placed, found: Transactions, logs: Sequence[AgreedLog]
) -> Course:
    """The operations that took place, reads at positions among them: those at the latest place between their position
    and the next one that real time asks for (`checks.positions.placed`). Suspect."""
    there = (at.of(found.applied) != 0) & ~ops.at_position
    trust(~(ops.at_position & (at.row >= 0)), "a read that stands in a journal, too")
    plain, reads = np.flatnonzero(there), np.flatnonzero(ops.at_position)
    if not len(reads):
        (version,) = ranks(found.gts)
        nodes = np.concatenate([version, np.full(len(ops.invoke), -1)])
        return Course(plain, version[at.row[plain]], nodes, np.zeros(0, np.int64))
    last, following, has_next = _places_of(ops, reads, logs)
    version, before, after = ranks(found.gts, last, following)
    ended = plain[ops.ok[plain]]
    done_op, placed = np.concatenate([ended, reads]), version[at.row[ended]]
    done = np.concatenate([placed, before])
    row = who_is_greatest_before(
        np.concatenate([ops.file[done_op], ops.file[reads]]),
        np.concatenate([ops.complete[done_op], ops.invoke[reads]]),
        np.concatenate([done, np.full(len(reads), NOTHING)]),
    )[len(done):]  # fmt: skip
    row = np.where((row >= 0) & (row < len(done)), row, len(done))
    known, told = np.append(done, NOTHING)[row], np.append(done_op, -1)[row]
    late = (known > before) & (~has_next | (known < after))
    base = np.where(late, known, before)
    when, ids = ops.invoke[reads], ops.ids[reads]
    trust(when >= 0, "a time before the beginning")
    turns = np.column_stack([np.ones(len(reads), np.int64), when]).astype(np.uint64)
    keys = np.concatenate([
        np.column_stack([version, np.zeros((len(version), 4), np.int64)]).astype(np.uint64),
        np.column_stack([base.astype(np.uint64), turns, ids]),
    ])  # fmt: skip
    rank = ranks(keys)[0]
    nodes = np.concatenate([rank[: len(version)], np.full(len(ops.invoke), -1)])
    nodes[len(version) + reads] = rank[len(version) :]
    order = np.concatenate([nodes[at.row[plain]], rank[len(version) :]])
    return Course(np.concatenate([plain, reads]), order, nodes, told)


def _places_of(
    ops: Operations, reads: np.ndarray, logs: Sequence[AgreedLog]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shard, position = where(ops, reads)
    last, following = np.zeros((len(reads), 2), np.uint64), np.zeros((len(reads), 2), np.uint64)
    has_next = np.zeros(len(reads), bool)
    trust(np.isin(shard, [log.shard for log in logs]), "a shard that nobody has")
    for log in logs:
        here = shard == log.shard
        last[here], following[here], has_next[here] = places(log, position[here])
    return last, following, has_next


def where(ops: Operations, reads: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shard and position of these reads at positions."""
    if not len(reads):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return numbers(ops.said("shard"), -1)[reads], numbers(ops.said("position"), 0)[reads]


def against_real_time(ops: Operations, course: Course, before: int = NOTHING) -> int:
    """How many operations ended before the invocation of one that precedes them in the order
    (`checks.clients.against_real_time`). before: the latest invocation of those that precede all of these."""
    latest = np.maximum(greatest_before(ops.file[course.op], course.order, ops.invoke[course.op]), before)
    return int(np.sum(ops.ok[course.op] & (ops.complete[course.op] < latest)))


def sessions(ops: Operations, course: Course) -> tuple[int, int]:
    """How many operations are ordered before an earlier, acknowledged one of their session, and were invoked before it
    was answered (`checks.sessions.turns`). Suspect if a process ran two at once."""
    process = processes(ops)
    certain = ops.ok | ops.failed
    ended = greatest_before(process, ops.line, np.where(certain, ops.end_line, NOTHING))
    trust(ended <= ops.line, "a process runs several operations at once")
    who, line, ok = process[course.op], ops.line[course.op], ops.ok[course.op]
    latest = greatest_before(who, line, np.where(ok, course.order, NOTHING))
    answered = greatest_before(who, line, np.where(ok, ops.complete[course.op], NOTHING))
    return int(np.sum(course.order < latest)), int(np.sum(ops.invoke[course.op] <= answered))


def processes(ops: Operations) -> np.ndarray:
    """Of each operation the number of its process, which is one of its file."""
    return ranks(np.column_stack([ops.file, ops.process]))[0]


def positions(ops: Operations, course: Course, found: Transactions, logs: Sequence[AgreedLog]) -> np.ndarray:
    """The reads at positions that are behind what their client, or anybody by the clock, knew of that shard
    (`checks.positions.stale`), and who knew it: rows of operations. Suspect."""
    reads = np.flatnonzero(ops.at_position)
    last, _, _ = _places_of(ops, reads, logs)
    told, part = ops.version[reads], np.uint64(16)
    alike = (told[:, 0] == last[:, 0]) & (told[:, 1] >> part == last[:, 1] >> part)
    trust(alike | (told[:, 0] | told[:, 1] == 0), "another version than that of its position")
    op, at_shard, at = visits(ops, course, found, logs)
    place = ranks(np.column_stack([at_shard, ops.file[op]]))[0]
    session = ranks(np.column_stack([at_shard, processes(ops)[op]]))[0]
    is_read = np.arange(len(op)) < len(reads)
    in_time = greatest_before(
        np.concatenate([place, place[is_read]]), np.concatenate([ops.complete[op], ops.invoke[reads]]),
        np.concatenate([at, np.full(len(reads), NOTHING)]),
    )[len(op):]  # fmt: skip
    in_session = greatest_before(session, ops.line[op], at)[is_read]
    rows = []
    for whose, known in ((place, in_time), (session, in_session)):
        behind = known > at[is_read]
        had, wanted = ranks(np.column_stack([whose, at]), np.column_stack([whose[is_read], known])[behind])
        rows += [reads[behind], op[np.isin(had, wanted)]]
    return np.unique(np.concatenate(rows))


def visits(
    ops: Operations, course: Course, found: Transactions, logs: Sequence[AgreedLog]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where acknowledged operations were (`checks.positions.visits`): operation, shard and position, reads at positions
    first."""
    reads = np.flatnonzero(ops.at_position)
    read_shard, read_position = where(ops, reads)
    acknowledged = course.op[ops.ok[course.op] & ~ops.at_position[course.op]]
    mine = index_in(ops.ids[acknowledged], found.ids)
    who, shard, position = [reads], [read_shard], [read_position]
    for log, theirs in zip(logs, found.accounts, strict=True):
        first = np.full(len(found.ids) + 1, NOTHING, np.int64)
        taken = np.isin(numbers(log.outcomes["status"]), TAKEN)
        first[theirs[taken]] = numbers(log.outcomes["position"])[taken]
        here = first[mine] != NOTHING
        who.append(acknowledged[here])
        shard.append(np.full(int(here.sum()), log.shard))
        position.append(first[mine][here])
    return np.concatenate(who), np.concatenate(shard), np.concatenate(position)


def placed_reads(ops: Operations, log: AgreedLog) -> pa.Table:
    """`key.PLACED` of this shard, and op: the row of the operation."""
    reads = np.flatnonzero(ops.at_position)
    shard, position = where(ops, reads)
    reads, position = reads[shard == log.shard], position[shard == log.shard]
    last, _, _ = places(log, position)
    row, key, version = told_reads(ops, reads)
    place = pa.Array.from_buffers(pa.binary(16), len(row), [None, pa.py_buffer(last[row].astype(">u8").tobytes())])
    return pa.table({"key": key.cast(pa.binary()), "place": place, "version": version, "op": reads[row]})
