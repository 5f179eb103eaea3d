"""Operations in real time and in their sessions, against the order of versions: the *time* kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_etl.certify.arrays import NOTHING, entries, greatest_before, halves, names, numbers, pick, ranks, trust
from spark_etl.certify.client import Operations, Placed
from spark_etl.certify.id import AgreedLog, Transactions
from spark_etl.certify.log import TAKEN

_LAST_INDEX = np.uint64(0xFFFF)


class Course(NamedTuple):
    """What took place, as `checks.sessions.steps`: rows of `Operations`, and ranks that sort as the order does."""

    op: np.ndarray
    order: np.ndarray


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
    gts = found.gts[at.row[plain]] if len(plain) else np.zeros((0, 2), np.uint64)
    last, following, has_next = _places_of(ops, reads, logs)
    version, before, after = ranks(gts, last, following)
    done_at = np.concatenate([ops.complete[plain][ops.ok[plain]], ops.complete[reads]])
    done_file = np.concatenate([ops.file[plain][ops.ok[plain]], ops.file[reads]])
    done = np.concatenate([version[ops.ok[plain]], before])
    known = greatest_before(
        np.concatenate([done_file, ops.file[reads]]), np.concatenate([done_at, ops.invoke[reads]]),
        np.concatenate([done, np.full(len(reads), NOTHING)]),
    )[len(done):]  # fmt: skip
    late = (known > before) & (~has_next | (known < after))
    base = np.where(late, known, before)
    turn = np.concatenate([np.zeros(len(plain), np.int64), np.ones(len(reads), np.int64)])
    when = np.concatenate([np.zeros(len(plain), np.int64), ops.invoke[reads]])
    ids = halves(ops.id)
    trust(when >= 0, "a time before the beginning")
    rows = np.concatenate([plain, reads])
    keys = np.column_stack([np.concatenate([version, base]), turn, when]).astype(np.uint64)
    tie = np.where(turn[:, None] == 1, ids[rows], 0).astype(np.uint64)
    return Course(rows, ranks(np.column_stack([keys, tie]))[0])


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
    return numbers(ops.said("shard"), -1)[reads], numbers(ops.said("position"), 0)[reads]


def against_real_time(ops: Operations, course: Course) -> int:
    """How many operations ended before the invocation of one that precedes them in the order
    (`checks.clients.against_real_time`)."""
    latest = greatest_before(ops.file[course.op], course.order, ops.invoke[course.op])
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


def positions(ops: Operations, course: Course, logs: Sequence[AgreedLog]) -> None:
    """No read at a position is behind what its client, or anybody by the clock, knew of that shard
    (`checks.positions.stale`). Suspect."""
    reads = np.flatnonzero(ops.at_position)
    op, at_shard, at = visits(ops, course, logs)
    read_position = at[: len(reads)]
    place = ranks(np.column_stack([at_shard, ops.file[op]]))[0]
    session = ranks(np.column_stack([at_shard, processes(ops)[op]]))[0]
    is_read = np.arange(len(op)) < len(reads)
    in_time = greatest_before(
        np.concatenate([place, place[is_read]]), np.concatenate([ops.complete[op], ops.invoke[reads]]),
        np.concatenate([at, np.full(len(reads), NOTHING)]),
    )[len(op):]  # fmt: skip
    in_session = greatest_before(session, ops.line[op], at)[is_read]
    trust(read_position >= in_time, "a read behind what was known")
    trust(read_position >= in_session, "a read behind its session")


def visits(
    ops: Operations, course: Course, logs: Sequence[AgreedLog]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where acknowledged operations were (`checks.positions.visits`): operation, shard and position, reads at positions
    first."""
    reads = np.flatnonzero(ops.at_position)
    read_shard, read_position = where(ops, reads)
    acknowledged = course.op[ops.ok[course.op] & ~ops.at_position[course.op]]
    mine = names(ops.id, *(log.outcomes["id"] for log in logs))
    who, shard, position = [reads], [read_shard], [read_position]
    for log, theirs in zip(logs, mine[1:], strict=True):
        first = np.full(int(max(m.max(initial=-1) for m in mine)) + 1, NOTHING, np.int64)
        taken = np.isin(numbers(log.outcomes["status"]), TAKEN)
        first[theirs[taken]] = numbers(log.outcomes["position"])[taken]
        here = acknowledged[first[mine[0][acknowledged]] != NOTHING]
        who.append(here)
        shard.append(np.full(len(here), log.shard))
        position.append(first[mine[0][here]])
    return np.concatenate(who), np.concatenate(shard), np.concatenate(position)


def placed_reads(ops: Operations, log: AgreedLog) -> pa.Table:
    """`key.PLACED` of this shard, and op: the row of the operation."""
    reads = np.flatnonzero(ops.at_position)
    shard, position = where(ops, reads)
    reads, position = reads[shard == log.shard], position[shard == log.shard]
    last, _, _ = places(log, position)
    row, key, version = entries(pick(ops.history["reads"], ops.end[reads]))
    place = pa.Array.from_buffers(pa.binary(16), len(row), [None, pa.py_buffer(last[row].astype(">u8").tobytes())])
    return pa.table({"key": key.cast(pa.binary()), "place": place, "version": version, "op": reads[row]})
