"""Messages, transactions and clients of a long run, window by window of timestamps: what `tasks.judge_orders` proves.

What is in a window is in no other one: a message has one timestamp, and the versions of its transactions follow on
that; a client was told the version, so that its lines are looked up by that. Carried on are the latest invocation, e at
the end of each log (`precedence`), and of each process what it last knew. That the same id is not in two windows is
looked at in the end. The reads that clients were told of are another task's: nothing else is, and it is as much.

It proves all, or nothing: then those kernels decide that look at the whole. They do if anything was repeated or came
too late, or if an operation did not end well, or was told no version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_etl.certify import client, id, log, precedence, seen, slices, source, time, windows
from spark_etl.certify.arrays import (
    NOTHING,
    codes,
    entries,
    greatest_before,
    halves,
    numbers,
    of_groups,
    ranks,
    trust,
    valid,
)
from spark_etl.certify.client import Thin, Unknown
from spark_etl.certify.id import AgreedLog
from spark_etl.certify.proof import (
    ACCOUNTS,
    CLIENTS,
    COURSE,
    HISTORY,
    ORDER,
    PRECEDENCE,
    SESSIONS,
    TIME,
    VALIDITY,
    VALUES,
    Proof,
    Reached,
)
from spark_etl.certify.slices import Collected, Slice
from spark_etl.certify.source import Source
from spark_etl.certify.windows import Differ, Rows, Sent, ahead

_ALL = ((1 << 64) - 1, (1 << 64) - 1)
_LAST_INDEX = 0xFFFF
_AHEAD = 4
_MOVING = ("transfer", "read_all")


def certify(
    source: Source,
    logs: Mapping[int, log.ShardLog],
    replicas: Mapping[int, Sequence[int]],
    held: Mapping[int, int],
    forgetful: Sequence[int],
    has_history: bool,
    width: int,
) -> Proof:
    """logs: by shard, some with marks, and whose: replicas; held: as `client.thin`; histories tell of no values. width:
    of a slice of the course, or 0. Suspect."""
    proof = Proof()
    shards = [_Shard(source, shard, found, replicas[shard], width) for shard, found in sorted(logs.items())]
    cuts = _cuts(logs)
    clients = _Clients(source, cuts, len(shards), width) if has_history else None
    sent, messages, transactions = Sent(source), Differ(), Differ()

    def accounts() -> Iterator[_Window]:
        for bound in [*map(tuple, cuts.tolist()), _ALL]:
            agreed = [one.upto(bound) for one in shards]
            found = id.messages(agreed)
            trust(found.live, "what came too late")
            for part in agreed:
                trust(np.isin(numbers(part.outcomes["status"]), log.TAKEN), "what was not taken as new")
            known = id.transactions(agreed, found)
            messages.add(found.ids)
            transactions.add(known.ids)
            submitted, place = sent.of(found.ids)
            lost = id.unsubmitted(agreed, found, place, submitted, forgetful)
            first = slices.first_sent(place, numbers(submitted["at"]), len(found.ids))
            behind = {one.shard: held[one.shard] - one.base for one in shards}
            ends = [one.end for one in shards]
            for one, mine in zip(shards, found.codes, strict=True):
                one.follow(first[mine])
                one.go_on()
            yield _Window(agreed, known, first, behind, ends, found.waiting, lost)

    for number, window in enumerate(ahead(accounts())):
        proof.waiting += window.waiting
        proof.unsubmitted += window.unsubmitted
        if clients is not None:
            clients.judge(number, window)
    trust([one.over for one in shards], "accounts of what was not delivered")
    messages.certify()
    transactions.certify()
    sent.rest(halves(batch["id"]) for one in shards for batch in source.batches("deliveries", ["id"], one.delivered))
    proof.proved |= {ORDER, VALIDITY, *ACCOUNTS} | ({COURSE} if width else set())
    proof.slices = [row for one in shards for row in one.slices()]
    if clients is not None:
        clients.tell(proof)
    return proof


def certify_told(source: Source, logs: Mapping[int, log.ShardLog]) -> None:
    """`seen.as_read` of all lines that were told a version, window by window of that. logs: as `certify`. Suspect."""
    cuts = _cuts(logs)
    lines = _Windows(source, cuts, ("version", *_TOLD))
    rows = 0
    for batch in source.batches("history", ["version"]):
        told = np.flatnonzero(valid(batch["version"]))
        lines.put(halves(batch["version"].take(pa.array(told))), rows + told)
        rows += batch.num_rows
    accounts = [found.longest[1] for found in logs.values() if found.longest[1] >= 0]
    reads = [Rows(source, "reads", seen.READS, one, by="gts") for one in accounts]
    for number, bound in enumerate([*map(tuple, _versions_upto(cuts).tolist()), _ALL]):
        there = pa.concat_tables([one.upto(bound) for one in reads])
        answers = lines.of(number)
        row, key, version = entries(answers["reads"])
        seen.as_read(halves(answers["id"]), halves(answers["version"]), row, key, version, there)


def _cuts(logs: Mapping[int, log.ShardLog]) -> np.ndarray:
    return halves(pa.array(windows.cuts(mark for found in logs.values() for mark in found.marks), pa.binary()))


def _versions_upto(cuts: np.ndarray) -> np.ndarray:
    """The last versions of windows, by their last timestamps."""
    return time.first_versions(cuts, _LAST_INDEX)


def _bytes(version: np.ndarray) -> bytes:
    return version.astype(">u8").tobytes()


class _Window(NamedTuple):
    """What the journals say. sent: `slices.first_sent` of its messages; held: as `client.thin`; ends: how far each log
    goes; waiting, unsubmitted: how many messages."""

    logs: list[AgreedLog]
    found: id.Transactions
    sent: np.ndarray
    held: dict[int, int]
    ends: list[int]
    waiting: int
    unsubmitted: int


class _Shard:
    """A log, window by window. base: how many positions were in those before, end: in this one, too. delivered: whose
    deliveries these are. replicas: of which the course is followed; width: of its slices, or 0. Early deliveries are
    read in the end."""

    def __init__(self, source: Source, shard: int, found: log.ShardLog, replicas: Sequence[int], width: int):
        self.shard, self.base = shard, 0
        self.delivered, account = found.longest
        self._top = max((top.gts for top in found.tops), default=bytes(16))
        entries = ("replica", "position", "stage", *id.ENTRIES)
        self._entries = Rows(source, "deliveries", entries, self.delivered, by="gts")
        self._outcomes = Rows(source, "outcomes", ("replica", *id.OUTCOMES), account)
        self._source, self._replicas, self._width, self._early = source, replicas, width, found.optimistic[0] > 0
        timed = replicas if width and not self._early else []
        self._times = {one: Rows(source, "deliveries", ("stage", "position", "at"), one) for one in timed}
        self._course = {one: Collected(width) for one in timed}
        self._sent: list[np.ndarray] = []
        self.end = 0

    def upto(self, bound: tuple[int, int]) -> AgreedLog:
        """The positions of a window are counted from its first one."""
        entries = log.entries(self._entries.upto(bound))
        self.end = self.base + entries.num_rows
        trust(numbers(entries["position"]) == np.arange(self.base + 1, self.end + 1), "positions are not 1, 2, 3, ...")
        outcomes = windows.counted_from(self.base, self._outcomes.upto(self.end))
        return AgreedLog(self.shard, entries, log.by_replica_and(outcomes, "position", "index"), self._top)

    def follow(self, sent: np.ndarray) -> None:
        """When each replica had the deliveries of this window. sent: when these were first multicast, or NOTHING."""
        for one, rows in self._times.items():
            there = rows.upto(self.end)
            trust(log.is_final(there), "a stage that there is not")
            place = numbers(there["position"]) - self.base - 1
            slices.of_deliveries(numbers(there["at"]), sent[place], self._course[one])
        if self._width and self._early:
            self._sent.append(sent)

    def slices(self) -> list[Slice]:
        """The course of the replicas."""
        if self._sent:
            submitted = self._source.read("submitted", ("id", "at"))
            return slices.of_replicas(
                self._source, self._replicas, np.concatenate(self._sent), submitted, self._width
            )
        return [row for one, mine in self._course.items() for row in mine.rows(replica=one)]

    def go_on(self) -> None:
        """To the next window."""
        self.base = self.end

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self._entries.over and self._outcomes.over


class _Clients:
    """What clients know, window by window. Suspect, throughout."""

    def __init__(self, source: Source, cuts: np.ndarray, logs: int, width: int):
        self._sessions = _Sessions()
        self._course = Collected(width) if width else None
        self._lines = _Lines(source, cuts, self._sessions, self._course)
        self._before, self._latest = np.full(logs, NOTHING), NOTHING
        self._functions: Counter[str] = Counter()
        self._thin: Thin | None = None
        self._late = self._answered = 0
        self._shift, self._file = NOTHING, ""
        self._upto = [*map(_bytes, _versions_upto(cuts)), b"\xff" * 16]
        self._reached: list[Reached] = []

    def judge(self, number: int, window: _Window) -> None:
        """The windows in their turn."""
        logs, found = window.logs, window.found
        ops = client.operations(self._lines.of(number))
        at = client.placed(ops, found)
        trust(ops.ok & ~ops.at_position, "an operation that did not end well")
        self._functions.update(client.functions(ops))
        trust(client.thin(ops, logs, window.held) is None, "held by few")
        client.answers(ops, at, found, None)
        course = time.steps(ops, at, found, logs)
        self._late += time.against_real_time(ops, course, self._latest)
        self._latest = max(self._latest, int(ops.invoke[course.op].max(initial=NOTHING)))
        precedence.certify(ops, at, found, course, logs, self._before)
        self._reached.append(Reached(self._upto[number], window.ends, self._before.tolist()))
        self._answered += len(ops.ok)
        shift = slices.shifts(ops, at, found.message, window.sent)
        known = shift[shift != NOTHING]
        if len(known):
            self._shift = int(known.min()) if self._shift == NOTHING else min(self._shift, int(known.min()))

    def tell(self, proof: Proof) -> None:
        """All that was found."""
        trust(not set(self._functions) & set(_MOVING), "a bank")
        proof.proved |= {HISTORY, CLIENTS, TIME, SESSIONS, VALUES} | ({PRECEDENCE} if self._late else set())
        proof.functions, proof.unknown = dict(self._functions), Unknown(0, 0, 0, 0, 0)
        proof.late, proof.answered = self._late, self._answered
        proof.inverted, proof.untimed = self._sessions.inverted, self._sessions.untimed
        proof.reached = [] if proof.untimed else self._reached
        if self._course is not None:
            rows = self._course.rows(file=self._lines.file)
            if rows and self._shift != NOTHING:
                rows[0].shift = self._shift
            proof.slices += rows


class _Sessions:
    """`time.sessions` of operations that were all acknowledged, bit by bit, each by its last line."""

    def __init__(self) -> None:
        self.inverted = self.untimed = 0
        self._process, self._line, self._complete = (np.zeros(0, np.int64) for _ in range(3))
        self._version = np.zeros((0, 2), np.uint64)

    def add(
        self, process: np.ndarray, begin: np.ndarray, end: np.ndarray, invoke: np.ndarray, complete: np.ndarray,
        version: np.ndarray,
    ) -> None:  # fmt: skip
        """begin, end: lines."""
        trust(begin >= 0, "a line before the first one")
        old = len(self._process)
        known, who = np.unique(np.concatenate([self._process, process]), return_inverse=True)
        at = np.concatenate([np.full(old, -1), begin])
        versions = np.concatenate([self._version, version])
        (order,) = ranks(versions)
        ends, done = np.concatenate([self._line, end]), np.concatenate([self._complete, complete])
        trust(greatest_before(who, at, ends)[old:] <= begin, "a process runs several operations at once")
        self.inverted += int(np.sum(order[old:] < greatest_before(who, at, order)[old:]))
        self.untimed += int(np.sum(invoke <= greatest_before(who, at, done)[old:]))
        by_order = np.zeros((int(order.max(initial=-1)) + 1, 2), np.uint64)
        by_order[order] = versions
        last = (of_groups(who, one, len(known), np.maximum, NOTHING) for one in (ends, done, order))
        self._process = known
        self._line, self._complete, greatest = last
        self._version = by_order.take(greatest, axis=0)


class _Open(msgspec.Struct):
    """Operations that have begun."""

    ids: np.ndarray
    row: np.ndarray
    process: np.ndarray
    line: np.ndarray
    at: np.ndarray


class _Windows:
    """Lines of a history, by the windows of the versions that clients were told. columns: of those that are given."""

    def __init__(self, source: Source, cuts: np.ndarray, columns: Sequence[str]):
        paths = [path for whose in sorted(source.files["history"]) for path in source.files["history"][whose]]
        self._bounds, self._columns = _versions_upto(cuts), [one for one in columns if source.tells("history", [one])]
        trust(len(cuts) < _NO_WINDOW, "too many windows")
        total = sum(pq.read_metadata(path).num_rows for path in paths)
        self._window = np.full(total, _NO_WINDOW, np.uint16)
        self._ahead: dict[int, list[pa.Table]] = {}
        self._paths = paths
        empty = pq.ParquetFile(paths[0], read_dictionary=list(client.CODED)).schema_arrow.empty_table()
        self._none = empty.select(columns)  # with those of which no line tells, which are not read

    def put(self, version: np.ndarray, *rows: np.ndarray) -> None:
        """Rows into the windows of their versions."""
        found = self._of(version)
        for one in rows:
            self._window[one] = found

    def _of(self, version: np.ndarray) -> np.ndarray:
        """How many bounds are less."""
        high, low = self._bounds[:, 0], self._bounds[:, 1]
        found = np.searchsorted(high, version[:, 0])
        for n in np.flatnonzero(np.isin(high, version[:, 0])).tolist():  # those of one time
            found[(found == n) & (version[:, 0] == high[n]) & (version[:, 1] > low[n])] += 1
        return found

    @cached_property
    def _groups(self) -> list[_Group]:
        begin, found = 0, []
        for path in self._paths:
            metadata = pq.read_metadata(path)
            for number in range(metadata.num_row_groups):
                end = begin + metadata.row_group(number).num_rows
                found.append(_Group(path, number, begin, {*np.unique(self._window[begin:end]).tolist()}))
                begin = end
        return found

    def of(self, window: int) -> pa.Table:
        """Those of a window, maybe none; windows are asked for in turn, when all rows are put. Lines of the next ones
        that are read by the way are kept."""
        for one in self._groups:
            wanted = {w for w in one.windows if window <= w <= window + _AHEAD} if window in one.windows else set()
            one.windows -= wanted
            begin = one.begin
            for batch in one.batches(self._columns) if wanted else ():
                whose = self._window[begin : begin + batch.num_rows]
                begin += batch.num_rows
                for w in wanted:
                    if (mine := whose == w).any():
                        part = pa.Table.from_batches([batch])
                        self._ahead.setdefault(w, []).append(part if mine.all() else part.filter(pa.array(mine)))
        parts = self._ahead.pop(window, [])
        return pa.concat_tables([self._none, *parts], promote_options="default")


class _Lines(_Windows):
    """The lines of a history, but for what they say of reads. file: its name."""

    def __init__(self, source: Source, cuts: np.ndarray, sessions: _Sessions, course: Collected | None):
        super().__init__(source, cuts, [name for name in client.HISTORY if name != "reads"])
        self._sessions, self._course = sessions, course
        self.file = ""
        files: set[str] = set()
        rows, none = 0, np.zeros(0, np.int64)
        begun = _Open(np.zeros((0, 2), np.uint64), none, none, none, none)
        for lines in source.batches("history", _PAIRED, coded=client.CODED):
            files.update(pc.unique(lines["file"].cast(pa.string())).to_pylist())
            begun = self._pair(lines, rows, begun)
            rows += lines.num_rows
        trust(not len(begun.ids), "an operation without an end")
        trust(len(files) == 1, "several clocks")
        self.file = files.pop()

    def _pair(self, lines: pa.Table, rows: int, begun: _Open) -> _Open:
        """Ends to beginnings; those that are open then. rows: before these lines."""
        begins = client.is_one(lines["type"], "invoke")
        trust(begins | client.is_one(lines["type"], "ok"), "an operation that did not end well")
        old = len(begun.ids)
        ids = np.concatenate([begun.ids, halves(lines["id"])])
        row = np.concatenate([begun.row, rows + np.arange(lines.num_rows)])
        process, line, at = (
            np.concatenate([known, numbers(lines[name])])
            for known, name in ((begun.process, "process"), (begun.line, "line"), (begun.at, "at_us"))
        )
        begins = np.concatenate([np.ones(old, bool), begins])
        (code,) = codes(ids)
        count = int(code.max(initial=-1)) + 1
        begin, end = np.full(count, -1), np.full(count, -1)
        places = np.arange(len(ids))
        begin[code[begins]], end[code[~begins]] = places[begins], places[~begins]
        trust(np.bincount(code[begins], minlength=count) == 1, "an operation that does not begin once")
        trust(np.bincount(code[~begins], minlength=count) <= 1, "an operation with two ends")
        closed = np.flatnonzero(end >= 0)
        closed = closed[np.argsort(end[closed])]
        first, last = begin[closed], end[closed]
        trust(first < last, "an operation that ends before it begins")
        said = lines["version"].take(pa.array(last - old))
        trust(not said.null_count, "an answer without a version")
        version = halves(said)
        self.put(version, row[first], row[last])
        self._sessions.add(process[first], line[first], line[last], at[first], at[last], version)
        if self._course is not None:
            self._course.add(at[last], at[last] - at[first], np.zeros(len(last), bool))
        left = np.sort(begin[end < 0])
        return _Open(ids.take(left, axis=0), row[left], process[left], line[left], at[left])


class _Group(msgspec.Struct):
    """A row group. begin: its first row among those of all; windows: of which its lines are, but for what was taken."""

    path: str
    number: int
    begin: int
    windows: set[int]

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Its lines."""
        file = pq.ParquetFile(self.path, read_dictionary=list(client.CODED))
        return file.iter_batches(source.BATCH, row_groups=[self.number], columns=columns, use_threads=False)


_NO_WINDOW = np.iinfo(np.uint16).max
_TOLD = ("id", "reads")
_PAIRED = ("file", "type", "id", "version", "process", "line", "at_us")
