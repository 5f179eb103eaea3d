"""The kernels as tasks of Spark: one per shard, and then two for what concerns them all. Bytes go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify import (
    bank,
    client,
    id,
    key,
    log,
    near,
    precedence,
    promise,
    runs,
    seen,
    shards,
    slices,
    stretch,
    time,
    value,
)
from spark_etl.certify.arrays import DOUBTS, halves, index_in, numbers, trust, valid, whole
from spark_etl.certify.proof import (
    ACCOUNTS,
    BANK,
    CLIENTS,
    COURSE,
    HISTORY,
    ORDER,
    POSITIONS,
    PRECEDENCE,
    PROMISES,
    READS,
    SESSIONS,
    TIME,
    TOLD,
    VALIDITY,
    VALUES,
    Proof,
    Reached,
)
from spark_etl.certify.source import Source

TRANSFERS = ("transfer", "read_all")


class Shard(msgspec.Struct, tag=True):
    """What the first task is told. stops: as `log.certify` has them. installs, snapshots: see
    `log`."""

    source: Source
    number: int
    replicas: list[int]
    stops: dict[int, tuple[int, int, bool]]
    installs: dict[int, list[tuple[int, int]]]
    snapshots: list[tuple[int, bytes]]


class OfShard(msgspec.Struct):
    """What it returns. suspicion, keys: why logs, or reads, are not proved, or empty. doubts: all that is suspect about
    reads; None: not all of it is known."""

    log: log.ShardLog
    suspicion: str = ""
    keys: str = ""
    doubts: near.Doubts | None = None


class Run(msgspec.Struct, tag=True):
    """What the other tasks are told. logs: by shard; replicas: all that it ever had; members: those that it has at the
    end. forgetful: replicas that may have lost what they multicast. valued: whether histories tell of values, or of
    reads that stand in no journal. width: of a slice of the course, 0: no course. at_once: not window by window."""

    source: Source
    logs: dict[int, log.ShardLog]
    replicas: dict[int, list[int]]
    members: dict[int, list[int]]
    forgetful: list[int]
    has_history: bool
    valued: bool
    width: int
    task: str = ""
    at_once: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it is judged window by window."""
        return any(log.marks for log in self.logs.values()) and not (self.valued or self.at_once)


def judge_shard(told: Shard) -> OfShard:
    """Logs and keys of one shard: of a long one window by window, if that proves it."""
    answer = _judge_log(told)
    if answer.suspicion:
        return answer
    if answer.log.longest[1] >= 0:
        _judge_keys(told.source, told.number, answer)
    return answer


def _judge_log(told: Shard) -> OfShard:
    source, replicas = told.source, told.replicas
    try:
        _began_alike(source, replicas)
    except DOUBTS as doubt:
        return OfShard(log.ShardLog([], (-1, -1), [], (0, 0, 0)), str(doubt))
    if shards.is_long(source, replicas) and not any(told.installs.values()) and not told.snapshots:
        with suppress(*DOUBTS):
            return OfShard(shards.certify(source, told.number, replicas, told.stops))
    deliveries = source.read("deliveries", (*log.DELIVERIES, "shard"), replicas)
    outcomes = source.read("outcomes", (*log.OUTCOMES, "shard"), replicas)
    try:
        for table in (deliveries, outcomes):
            trust(numbers(table["shard"]) == told.number, "a replica of two shards")
        found = log.certify(
            told.number, deliveries, outcomes, told.stops, told.installs, told.snapshots,
            lambda replica: source.read("outcomes", log.DETAILS, [replica]),
        )  # fmt: skip
    except DOUBTS as doubt:
        return OfShard(log.ShardLog([], (-1, -1), [], (0, 0, 0)), str(doubt) or type(doubt).__name__)
    return OfShard(found)


def _began_alike(source: Source, replicas: Sequence[int]) -> None:
    bases = {replica: source.within("writes", log.BASES, replica, (-1, 0)) for replica in replicas}
    if not any(rows.num_rows for rows in bases.values()):
        return
    firsts = {r: source.within("deliveries", ("stage", "installed_from"), r, (0, 1)) for r in replicas}
    own = {r: log.is_final(rows) & ~valid(rows["installed_from"]) for r, rows in firsts.items()}
    log.began_alike(bases, [replica for replica, rows in own.items() if rows.any()])


def _judge_keys(source: Source, shard: int, answer: OfShard) -> None:
    """Reads against writes, of the replica whose accounts go furthest."""
    other, replica = None, answer.log.longest[1]
    if shards.is_long(source, [replica]):
        with suppress(*DOUBTS):
            other = shards.other_keys(source, replica)
    try:
        if other is None:
            reads = source.read("reads", key.READS, [replica], ["key"])
            key.certify(reads, source.read("writes", key.WRITES, [replica], ["key"]), key.NO_PLACES)
        trust(not other, key.OTHER)
    except DOUBTS as doubt:
        answer.keys = str(doubt) or type(doubt).__name__
        answer.doubts = _doubts(source, shard, replica, other) if answer.keys == key.OTHER else None


def _doubts(source: Source, shard: int, replica: int, keys: list[bytes] | None) -> near.Doubts | None:
    """keys: those that matter, if they are known."""
    if keys is not None and len(keys) > near.DOUBTS_MAX:
        return None
    wanted = None if keys is None else ("key", pa.array(keys, pa.binary()))
    with suppress(*DOUBTS):
        reads, writes = (source.some(table, columns, replica, wanted) for table, columns in
                         (("reads", key.READS), ("writes", key.WRITES)))  # fmt: skip
        return near.doubts(shard, reads, writes)
    return None


class _Agreed:
    """The logs of all shards, and messages and transactions in them."""

    def __init__(self, run: Run, proof: Proof):
        source, self.logs = run.source, []
        for shard, found in sorted(run.logs.items()):
            delivered, accounts = ([one] if one >= 0 else [] for one in found.longest)
            entries = log.entries(source.read("deliveries", ("replica", "position", "stage", *id.ENTRIES), delivered))
            outcomes = source.read("outcomes", ("replica", *id.OUTCOMES), accounts)
            outcomes = log.by_replica_and(outcomes, "position", "index")
            top = max((top.gts for top in found.tops), default=bytes(16))
            self.logs.append(id.AgreedLog(shard, entries, outcomes, top))
        self.messages = proof.attempt([ORDER], id.messages, self.logs)
        self.transactions = None
        if self.messages is not None:
            self.transactions = proof.attempt(ACCOUNTS, id.transactions, self.logs, self.messages)
        proof.twice = self.transactions is None and id.there_twice(self.logs)

    def read(self, run: Run, table: str, columns: Sequence[str], coded: Sequence[str] = ()) -> pa.Table:
        """Reads or writes, of all shards."""
        mine = [one.longest[1] for one in run.logs.values() if one.longest[1] >= 0]
        return run.source.read(table, columns, mine, coded)


def _operations(
    run: Run, proof: Proof, history: pa.Table | None = None, promised: bool = False
) -> client.Operations | None:
    """history: if it is read already."""
    if not run.has_history:
        return None
    lines = _history(run) if history is None else history
    return proof.attempt([HISTORY], client.operations, lines, promised)


def _history(run: Run) -> pa.Table:
    return run.source.read("history", client.HISTORY, coded=client.CODED)


def judge_orders(run: Run) -> Proof:
    """Messages, transactions, answers, real time, and the course of the clients. PRECEDENCE rests on READS, too; of a
    long run CLIENTS, and all that is about them, on TOLD, which another task looks at."""
    with suppress(*DOUBTS):
        if run.is_long:
            return runs.certify(
                run.source, run.logs, run.replicas, _held(run), run.forgetful, run.has_history, run.width
            )
    proof = Proof()
    agreed = _Agreed(run, proof)
    sent = np.zeros(0, np.int64)
    if agreed.messages is not None:
        submitted, found = run.source.read("submitted", ("id", "at", "destinations")), agreed.messages
        place = index_in(halves(submitted["id"]), found.ids)
        sent = slices.first_sent(place, numbers(submitted["at"]), len(found.ids))
        proof.waiting = found.waiting
        lost = proof.attempt([VALIDITY], id.unsubmitted, agreed.logs, found, place, submitted, run.forgetful)
        proof.unsubmitted = lost or 0
        if run.width and proof.holds(VALIDITY):
            for one, mine in zip(agreed.logs, found.codes, strict=True):
                replicas = run.replicas[one.shard]
                proof.slices += slices.of_replicas(run.source, replicas, sent[mine], submitted, run.width)
    ops = _operations(run, proof)
    if ops is not None and agreed.transactions is not None:
        at = client.placed(ops, agreed.transactions)
        _judge_clients(run, proof, agreed, ops, at)
        if not run.valued:
            _judge_told(run, proof, agreed, ops, at)
        if run.width:
            proof.slices += slices.of_histories(ops, at, agreed.transactions.message, sent, run.width)
    counted = agreed.transactions is not None and (ops is not None or not run.has_history)
    if run.width and counted and proof.holds(VALIDITY):
        proof.proved.add(COURSE)
    return proof


def _judge_clients(
    run: Run, proof: Proof, agreed: _Agreed, ops: client.Operations, at: client.Placed
) -> None:
    found = agreed.transactions
    assert found is not None
    proof.functions, proof.unknown = dict(client.functions(ops)), client.unknown(ops, at, found)
    reads = agreed.read(run, "reads", seen.READS)
    proof.thin = client.thin(ops, agreed.logs, _held(run))
    written = partial(agreed.read, run, "writes", seen.WRITES)
    proof.attempt([CLIENTS, TOLD], client.answers, ops, at, found, reads, written)
    if not proof.holds(CLIENTS):
        return
    course = proof.attempt([TIME], time.steps, ops, at, found, agreed.logs)
    if course is None:
        return
    proof.late = time.against_real_time(ops, course)
    turns = proof.attempt([SESSIONS], time.sessions, ops, course)
    proof.inverted, proof.untimed = turns or (0, 0)
    proof.at_positions = int(ops.at_position.sum())
    if proof.at_positions:
        behind = proof.attempt([POSITIONS], time.positions, ops, course, found, agreed.logs)
        if behind is not None and len(behind):
            proof.refute(POSITIONS, "a read behind what was known")
            proof.places = behind.tolist()
    if proof.late:
        proof.attempt([PRECEDENCE], precedence.certify, ops, at, found, course, agreed.logs)


def _held(run: Run) -> dict[int, int]:
    """Shard -> the last position that more than half of its replicas hold."""
    found = {}
    for shard, members in run.members.items():
        ends = sorted((top.delivered for top in run.logs[shard].tops if top.replica in members), reverse=True)
        found[shard] = [*ends, *[0] * (len(members) - len(ends))][len(members) // 2]
    return found


def judge_values(run: Run) -> Proof:
    """Keys and values."""
    proof = Proof()
    if not (run.has_history and run.valued):
        proof.other = bool(proof.attempt([READS], _judge_reads, run))
        if run.has_history and run.is_long:
            proof.attempt([TOLD], runs.certify_told, run.source, run.logs)
        return proof
    agreed = _Agreed(run, Proof())
    history = _history(run)
    ops = _operations(run, Proof(), history)
    if ops is None:
        return proof
    proof.other = bool(proof.attempt([READS], _judge_reads, run, agreed.logs, ops))
    found = agreed.transactions
    if found is None:
        return proof
    at = client.placed(ops, found)
    _judge_told(run, proof, agreed, ops, at)
    logs = agreed.logs
    written = cache(lambda: [run.source.read("writes", promise.WRITES, _tellers(run, log)) for log in logs])
    _judge_ranges(proof, agreed, ops, at, written)
    promised = _operations(run, Proof(), history, promised=True)
    if promised is not None and len(promised.end):
        proof.promises = dict(promise.counted(promised))
        proof.attempt([PROMISES], promise.certify, promised, ops, at, found, agreed.logs, written)
        _judge_promised_values(run, proof, agreed, promised)
    return proof


def _judge_ranges(
    proof: Proof, agreed: _Agreed, ops: client.Operations, at: client.Placed,
    written: Callable[[], Sequence[pa.Table]],
) -> None:  # fmt: skip
    """Keys that ranges left out. They are not looked at in part either."""
    assert agreed.transactions is not None
    doubt = Proof()
    doubt.attempt([VALUES], promise.certify_ranges, ops, at, agreed.transactions, agreed.logs, written)
    if not doubt.holds(VALUES):
        proof.refute(VALUES, doubt.why[VALUES])
        proof.values = []


def _judge_promised_values(run: Run, proof: Proof, agreed: _Agreed, promised: client.Operations) -> None:
    """Values that were told where no journal says what was read. What is wrong there is not looked at in part."""
    found = agreed.transactions
    assert found is not None
    reads, read = promised._replace(at_position=promised.ok), partial(agreed.read, run)
    told = Proof().attempt([VALUES], value.certify, reads, client.placed(reads, found), found, read)
    if told is None or told.wrong:
        proof.refute(VALUES, "another value of a read of several shards")
        proof.values = []
    else:
        proof.compared, proof.answered = proof.compared + told.compared, proof.answered + told.answered


def _judge_told(run: Run, proof: Proof, agreed: _Agreed, ops: client.Operations, at: client.Placed) -> None:
    """Values, which rest on READS, and the bank."""
    found = agreed.transactions
    assert found is not None
    read = partial(agreed.read, run)
    compared = proof.attempt([VALUES], value.certify, ops, at, found, read)
    if compared is not None:
        proof.compared, proof.answered, proof.values = compared
    if proof.values:
        proof.refute(VALUES, "another value")
    if set(client.functions(ops)) & set(TRANSFERS):
        proof.attempt([BANK], bank.certify, ops, at, found, read)


def _tellers(run: Run, log: id.AgreedLog) -> list[int]:
    """The replicas whose accounts of a shard are read."""
    return [replica for replica in run.logs[log.shard].longest[1:] if replica >= 0]


def _judge_reads(run: Run, agreed: Sequence[id.AgreedLog] = (), ops: client.Operations | None = None) -> bool:
    """No key is in two shards. Whether any leader answered otherwise than the order says (of logs that are agreed upon,
    if there may be such answers). Suspect."""
    keys, other = [], False
    placed = {} if ops is None else {one.shard: time.placed_reads(ops, one) for one in agreed}
    for shard, found in run.logs.items():
        mine = [replica for replica in found.longest[1:] if replica >= 0]
        reads = placed.get(shard, key.NO_PLACES)
        if reads.num_rows:
            writes = run.source.read("writes", key.WRITES, mine)
            other |= not key.holds(key.in_order(key.NO_READS, writes, reads))
        known = [run.source.distinct(table, "key", mine) for table in ("reads", "writes")]
        keys.append(pc.unique(pa.concat_arrays([*known, whole(reads["key"])])))
    every = pa.concat_arrays(keys)
    trust(pc.count_distinct(every).as_py() == len(every), "a key in two shards")
    return other


class Around(msgspec.Struct, tag=True):
    """What the task is told that finds what is to be cut out, and cuts it out of the histories. reached: as `Proof`."""

    run: Run
    suspects: near.Suspects
    into: str
    reached: list[Reached] = []


class CutShard(msgspec.Struct, tag=True):
    """What the tasks are told that cut it out of the journals of a shard."""

    source: Source
    shard: int
    replicas: list[int]
    fullest: int
    kept: near.Kept
    into: str


class CutSubmitted(msgspec.Struct, tag=True):
    """And what the replicas of a shard multicast. messages: 16 bytes each."""

    source: Source
    shard: int
    replicas: list[int]
    messages: bytes
    into: str


class Cut(msgspec.Struct):
    """What they return. kept: by shard. files: with the number of their rows. circling: as `near.Around`. messages: of
    a shard, 16 bytes each."""

    kept: dict[int, near.Kept] = {}
    files: dict[str, int] = {}
    circling: int = 0
    messages: bytes = b""


def cut_around(told: Around) -> Cut:
    """See `near.around`. Nothing is kept if that cannot be told."""
    with suppress(*DOUBTS):
        if (where := stretch.stretch(told.reached, told.suspects, sorted(told.run.logs))) is not None:
            return _cut_around_in(where, told)
    run, proof = told.run, Proof()
    agreed = _Agreed(run, proof)
    ops, found = _operations(run, proof), agreed.transactions
    if found is None or (ops is None and run.has_history):
        return Cut()
    at = None if ops is None else client.placed(ops, found)
    clients = None if ops is None or at is None else (ops, at)

    def keyed(log: id.AgreedLog) -> tuple[pa.Table, pa.Table]:
        mine = _tellers(run, log)
        return run.source.read("reads", key.READS, mine), run.source.read("writes", key.WRITES, mine)

    reads = agreed.read(run, "reads", ("gts", "version"))
    try:
        around = near.around(near.Agreed(found, agreed.logs, reads, keyed), clients, told.suspects)
    except DOUBTS:
        return Cut()
    versions = found.gts[around.nodes[: len(found.ids)]].astype(">u8").tobytes()
    keys = sorted({one for _, about in told.suspects.values for one in about})
    kept = {
        log.shard: near.Kept(
            versions, [tuple(row[name] for name in key.PLACED) for row in around.placed[log.shard].to_pylist()]
            if clients else [], around.positions.get(log.shard, []), keys,
        )
        for log in agreed.logs
    }  # fmt: skip
    into = Path(told.into)
    files = {} if ops is None else near.cut_clients(ops, around.lines, run.source, into)
    return Cut(kept, files, around.circling)


def _cut_around_in(where: stretch.Stretch, told: Around) -> Cut:
    """Where only a stretch of the run need be looked at."""
    part = stretch.around(told.run.source, told.run.logs, where, told.suspects)
    kept = {shard: near.Kept(part.versions) for shard in told.run.logs}
    return Cut(kept, near.write(part.lines, "history", "h0", Path(told.into)), part.circling)


def cut_shard(told: CutShard) -> Cut:
    """See `near.cut_shard`."""
    files, messages = near.cut_shard(
        told.source, told.shard, told.replicas, told.fullest, told.kept, Path(told.into)
    )
    return Cut(files=files, messages=messages)


def cut_submitted(told: CutSubmitted) -> Cut:
    """See `near.cut_submitted`."""
    return Cut(files=near.cut_submitted(told.source, told.shard, told.replicas, told.messages, Path(told.into)))


Task = Shard | Run | Around | CutShard | CutSubmitted
_TASKS = {"orders": judge_orders, "values": judge_values}


def work(told: bytes) -> bytes:
    """Of a worker: one task."""
    task: Task = msgspec.msgpack.decode(told, type=Task)
    found: Any
    match task:
        case Shard():
            found = judge_shard(task)
        case Run():
            found = _TASKS[task.task](task)
        case Around():
            found = cut_around(task)
        case CutShard():
            found = cut_shard(task)
        case CutSubmitted():
            found = cut_submitted(task)
    return msgspec.msgpack.encode(found)
