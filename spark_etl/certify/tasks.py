"""The kernels as tasks of Spark: one per shard, and then two for what concerns them all. Bytes go in and come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_etl.certify import bank, client, id, key, log, near, precedence, promise, slices, time, value
from spark_etl.certify.arrays import DOUBTS, Suspect, numbers, trust, whole
from spark_etl.certify.proof import (
    ACCOUNTS,
    BANK,
    CLIENTS,
    COURSE,
    HISTORY,
    LOGS,
    ORDER,
    POSITIONS,
    PRECEDENCE,
    PROMISES,
    READS,
    SESSIONS,
    TIME,
    VALIDITY,
    VALUES,
    Proof,
)
from spark_etl.certify.slices import Slice
from spark_etl.certify.source import NOBODY, Source
from spark_etl.frames.relations import SHARDS_MAX
from spark_etl.ingest.inputs import Inputs

_TRANSFERS = ("transfer", "read_all")


class Shard(msgspec.Struct, tag=True):
    """What the first task is told. stops: replica -> what it said at its last clean stop. installs, snapshots: see
    `log`. width: of a slice of the course, 0: no course."""

    source: Source
    number: int
    replicas: list[int]
    stops: dict[int, tuple[int, int]]
    installs: dict[int, list[tuple[int, int]]]
    snapshots: list[tuple[int, bytes]]
    width: int


class OfShard(msgspec.Struct):
    """What it returns. suspicion, keys: why logs, or reads, are not proved, or empty. doubts: all that is suspect about
    reads; None: not all of it is known."""

    log: log.ShardLog
    suspicion: str = ""
    keys: str = ""
    doubts: near.Doubts | None = None
    slices: list[Slice] = []


class Run(msgspec.Struct, tag=True):
    """What the other tasks are told. logs: by shard; members: the replicas that it has at the end. forgetful: replicas
    that may have lost what they multicast."""

    source: Source
    logs: dict[int, log.ShardLog]
    members: dict[int, list[int]]
    forgetful: list[int]
    has_history: bool
    width: int
    task: str = ""


def judge_shard(told: Shard) -> OfShard:
    """Logs and keys of one shard."""
    source, replicas = told.source, told.replicas
    deliveries = source.read("deliveries", (*log.DELIVERIES, "shard", "at"), replicas)
    outcomes = source.read("outcomes", (*log.OUTCOMES, "shard"), replicas)
    nothing = log.ShardLog([], (-1, -1), [], (0, 0, 0))
    try:
        for table in (deliveries, outcomes):
            trust(numbers(table["shard"]) == told.number, "a replica of two shards")
        found = log.certify(told.number, deliveries, outcomes, told.stops, told.installs, told.snapshots)
    except DOUBTS as doubt:
        return OfShard(nothing, str(doubt) or type(doubt).__name__)
    answer = OfShard(found)
    try:
        _judge_keys(source, found.longest[1])
    except DOUBTS as doubt:
        answer.keys = str(doubt) or type(doubt).__name__
        answer.doubts = _doubts(source, found.longest[1]) if answer.keys == key.OTHER else None
    if told.width:
        sent = slices.first_sent(source.read("submitted", ("id", "at")))
        answer.slices = slices.of_deliveries(deliveries, sent, told.width)
    return answer


def _judge_keys(source: Source, replica: int) -> None:
    reads = source.read("reads", key.READS, [replica])
    writes = source.read("writes", key.WRITES, [replica])
    key.certify(reads, writes, _no(key.PLACED))


def _doubts(source: Source, replica: int) -> near.Doubts | None:
    with suppress(*DOUBTS):
        return near.doubts(source.read("reads", key.READS, [replica]), source.read("writes", key.WRITES, [replica]))
    return None


def _no(names: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.binary()) for name in names})


class _Agreed:
    """The logs of all shards, and messages and transactions in them."""

    def __init__(self, run: Run, proof: Proof):
        source, self.logs = run.source, []
        for shard, found in sorted(run.logs.items()):
            delivered, accounts = ([one] if one >= 0 else [] for one in found.longest)
            entries = log.entries(source.read("deliveries", ("replica", "position", "stage", *id.ENTRIES), delivered))
            outcomes = source.read("outcomes", ("replica", *id.OUTCOMES), accounts)
            outcomes = outcomes.take(pa.array(np.lexsort([numbers(outcomes[c]) for c in ("index", "position")])))
            top = max((top.gts for top in found.tops), default=bytes(16))
            self.logs.append(id.AgreedLog(shard, entries, outcomes, top))
        self.ids = pc.unique(pa.concat_arrays([whole(one.entries["id"]) for one in self.logs]))
        self.messages = proof.attempt([ORDER], id.messages, self.logs)
        self.transactions = None
        if self.messages is not None:
            self.transactions = proof.attempt(ACCOUNTS, id.transactions, self.logs, self.messages)

    def read(self, run: Run, table: str, columns: Sequence[str]) -> pa.Table:
        """Reads or writes, of all shards."""
        return run.source.read(table, columns, [one.longest[1] for one in run.logs.values() if one.longest[1] >= 0])


def _operations(
    run: Run, proof: Proof, history: pa.Table | None = None, promised: bool = False
) -> client.Operations | None:
    """history: if it is read already."""
    if not run.has_history:
        return None
    lines = run.source.read("history", client.HISTORY) if history is None else history
    return proof.attempt([HISTORY], client.operations, lines, promised)


def judge_orders(run: Run) -> Proof:
    """Messages, transactions, answers, real time, and the course of the clients. PRECEDENCE rests on READS, too."""
    proof = Proof()
    agreed = _Agreed(run, proof)
    sent = run.source.read("submitted", ("id", "at"))
    if agreed.messages is not None:
        proof.waiting = agreed.messages.waiting
        codes, known = agreed.messages.codes, whole(sent["id"])
        lost = proof.attempt([VALIDITY], id.unsubmitted, agreed.logs, codes, known, run.forgetful)
        proof.unsubmitted = lost or 0
    ops = _operations(run, proof)
    if ops is not None and agreed.transactions is not None:
        _judge_clients(run, proof, agreed, ops)
        if run.width:
            first, carriers = slices.first_sent(sent), (agreed.transactions.message, agreed.ids)
            at = client.placed(ops, agreed.transactions)
            proof.slices = slices.of_operations(ops, at, carriers, first, run.width)
    if run.width and (ops is not None or not run.has_history) and agreed.transactions is not None:
        proof.proved.add(COURSE)
    return proof


def _judge_clients(run: Run, proof: Proof, agreed: _Agreed, ops: client.Operations) -> None:
    found = agreed.transactions
    assert found is not None
    at = client.placed(ops, found)
    proof.functions, proof.unknown = dict(client.functions(ops)), client.unknown(ops, at, found)
    reads = agreed.read(run, "reads", ("id", "key", "version"))
    proof.thin = client.thin(ops, agreed.logs, _held(run))
    proof.attempt([CLIENTS], client.answers, ops, at, found, reads)
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
        behind = proof.attempt([POSITIONS], time.positions, ops, course, agreed.logs)
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
    agreed = _Agreed(run, Proof())
    history = run.source.read("history", client.HISTORY) if run.has_history else None
    ops = _operations(run, Proof(), history)
    found = agreed.transactions
    if ops is not None or not run.has_history:
        proof.other = bool(proof.attempt([READS], _judge_reads, run, agreed, ops))
    if found is None or ops is None:
        return proof
    at = client.placed(ops, found)
    writes = agreed.read(run, "writes", value.WRITES)
    if proof.holds(READS):
        reads = agreed.read(run, "reads", value.READS)
        compared = proof.attempt([VALUES], value.certify, ops, at, found, reads, writes)
        if compared is not None:
            proof.compared, proof.answered, proof.values = compared
        if proof.values:
            proof.refute(VALUES, "another value")
    if set(client.functions(ops)) & set(_TRANSFERS):
        proof.attempt([BANK], bank.certify, ops, at, found, writes)
    promised = _operations(run, Proof(), history, promised=True)
    if promised is not None and len(promised.end):
        proof.promises = dict(promise.counted(promised))
        written = [run.source.read("writes", promise.WRITES, _tellers(run, log)) for log in agreed.logs]
        if proof.holds(READS):
            proof.attempt([PROMISES], promise.certify, promised, ops, at, found, agreed.logs, written)
    return proof


def _tellers(run: Run, log: id.AgreedLog) -> list[int]:
    """The replicas whose accounts of a shard are read."""
    return [replica for replica in run.logs[log.shard].longest[1:] if replica >= 0]


def _judge_reads(run: Run, agreed: _Agreed, ops: client.Operations | None) -> bool:
    """No key is in two shards. Whether any leader answered otherwise than the order says. Suspect."""
    keys, other = [], False
    for one in agreed.logs:
        mine = _tellers(run, one)
        placed = _no(key.PLACED) if ops is None else time.placed_reads(ops, one)
        if placed.num_rows:
            found = key.in_order(_no(key.READS), run.source.read("writes", key.WRITES, mine), placed)
            other |= not key.holds(found)
        known = [run.source.distinct(table, "key", mine) for table in ("reads", "writes")]
        keys.append(pc.unique(pa.concat_arrays([*known, whole(placed["key"])])))
    every = pa.concat_arrays(keys)
    trust(pc.count_distinct(every).as_py() == len(every), "a key in two shards")
    return other


class Around(msgspec.Struct, tag=True):
    """What the task is told that finds what is to be cut out, and cuts it out of the histories."""

    run: Run
    suspects: near.Suspects
    into: str


class CutShard(msgspec.Struct, tag=True):
    """What the tasks are told that cut it out of the journals of a shard."""

    source: Source
    shard: int
    replicas: list[int]
    fullest: int
    kept: near.Kept
    into: str


class Cut(msgspec.Struct):
    """What they return. kept: by shard. files: with the number of their rows."""

    kept: dict[int, near.Kept] = {}
    files: dict[str, int] = {}


def cut_around(told: Around) -> Cut:
    """See `near.around`. Nothing is kept if that cannot be told."""
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
    return Cut(kept, {} if ops is None else near.cut_clients(ops, around.lines, run.source, into))


def cut_shard(told: CutShard) -> Cut:
    """See `near.cut_shard`."""
    return Cut(files=near.cut_shard(told.source, told.shard, told.replicas, told.fullest, told.kept, Path(told.into)))


_TASKS = {"orders": judge_orders, "values": judge_values}


def work(told: bytes) -> bytes:
    """Of a worker: one task."""
    task: Shard | Run | Around | CutShard = msgspec.msgpack.decode(told, type=Shard | Run | Around | CutShard)
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
    return msgspec.msgpack.encode(found)


Workers = Callable[[list[bytes]], list[bytes]]
"""Do tasks side by side: `work` of each."""


def prove(
    workers: Workers,
    source: Source,
    inputs: Inputs,
    *,
    has_history: bool,
    width: int,
    into: Path | None = None,
    whole: Collection[str] = (),
) -> Proof:
    """What can be proved of a run. width: of a slice of its course, microseconds; 0: no course is wanted. into: where
    tables may go of what is near a suspect read, if nothing else is suspect. whole: kinds of operations whose checks
    are of all of them."""
    proof = Proof()
    try:
        _is_whole(source, inputs)
    except Suspect as suspect:
        proof.why = {"all": str(suspect)}
        return proof
    stops = {replica: (delivered, completed) for replica, _, delivered, completed in inputs.stops}
    installs: dict[int, list[tuple[int, int]]] = {}
    for replica, position, offset in inputs.installed:
        installs.setdefault(replica, []).append((position, offset))
    shards = [
        Shard(
            source, shard, members, {r: stops[r] for r in members if r in stops},
            {r: installs[r] for r in members if r in installs},
            [(position, digest) for other, _, position, digest in inputs.snapshots if other == shard], width,
        )
        for shard, members in inputs.shards.items()
    ]  # fmt: skip
    encode = msgspec.msgpack.encode
    found = [msgspec.msgpack.decode(one, type=OfShard) for one in workers([encode(one) for one in shards])]
    if doubt := "; ".join(one.suspicion for one in found if one.suspicion):
        proof.why = {"all": doubt}
        return proof
    _add_shards(proof, found)
    forgetful = sorted({*inputs.crashed, *(r for one in found for r in one.log.renewed)})
    logs = dict(zip(inputs.shards, (one.log for one in found), strict=True))
    members = {shard: inputs.staying(shard) for shard in inputs.shards}
    run = Run(source, logs, members, forgetful, has_history, width)

    def judge(*tasks: str) -> None:
        told = [encode(msgspec.structs.replace(run, task=task)) for task in tasks]
        for one in workers(told):
            _add(proof, msgspec.msgpack.decode(one, type=Proof))

    judge("orders", "values")
    doubts = [one for one in found if one.keys]
    other = bool(doubts) or proof.other
    in_time = not proof.late or proof.holds(PRECEDENCE)
    if into is not None and (other or proof.values or proof.places or not in_time):
        known = [one.doubts for one in doubts if one.doubts is not None]
        suspects = near.Suspects(known, proof.values, proof.places)
        if len(known) == len(doubts) and _nothing_else(proof, suspects, has_history, whole):
            proof.near = _cut_out(workers, run, inputs, suspects, into)
    if other:
        proof.refute(READS, "; ".join({one.keys: None for one in doubts}) or key.OTHER)
        proof.proved -= set() if proof.near else {VALUES, PROMISES}
    if has_history and not proof.holds(CLIENTS):
        proof.proved -= {VALUES, BANK, COURSE, PROMISES}  # whose numbers are of histories of this run only
    if not proof.holds(TIME, READS):
        proof.proved -= {PRECEDENCE}
    return proof


def _nothing_else(proof: Proof, suspects: near.Suspects, has_history: bool, whole: Collection[str]) -> bool:
    """Whether all but the suspects, and real time, is proved, of journals and of what clients know of them."""
    if not proof.holds(VALIDITY, ORDER, *ACCOUNTS, READS):
        return False
    if not has_history:
        return True
    kinds = set(proof.functions)
    if kinds & set(whole):
        return False
    there = (
        (VALUES, not suspects.values),
        (POSITIONS, proof.at_positions and not suspects.places),
        (PROMISES, proof.promises),
        (BANK, kinds & set(_TRANSFERS)),
    )
    few = len(suspects.values) + len(suspects.places) <= near.DOUBTS_MAX
    return few and proof.holds(HISTORY, CLIENTS, TIME, SESSIONS, *(name for name, wanted in there if wanted))


def _cut_out(
    workers: Workers, run: Run, inputs: Inputs, suspects: near.Suspects, into: Path
) -> dict[str, int]:
    """The tables of what is near the suspects. Nothing if that is much, or cannot be told."""

    def cut(*tasks: Around | CutShard) -> list[Cut]:
        return [msgspec.msgpack.decode(one, type=Cut) for one in workers(list(map(msgspec.msgpack.encode, tasks)))]

    (around,) = cut(Around(run, suspects, str(into)))
    if not around.kept:
        return {}
    shards = [
        CutShard(run.source, shard, members, run.logs[shard].longest[1], around.kept[shard], str(into))
        for shard, members in inputs.shards.items()
        if run.logs[shard].longest[1] >= 0
    ]
    return around.files | {name: rows for one in cut(*shards) for name, rows in one.files.items()}


_OF_MEMBERS = ("deliveries", "outcomes", "reads", "writes", "submitted")
"""Tables in which nobody else has a row; a replica that is still to be added has had lives."""


def _is_whole(source: Source, inputs: Inputs) -> None:
    """Nothing is missing or strange among the journals."""
    trust(not inputs.unsure and not inputs.foreign, "damaged or foreign journals")
    trust(0 < len(inputs.shards) <= SHARDS_MAX, f"{len(inputs.shards)} shards")
    trust(len(set(inputs.replicas)) == len(inputs.replicas), "a replica of two shards")
    for table in _OF_MEMBERS:
        trust({*source.files[table]} <= {NOBODY, *inputs.replicas}, "a journal of a replica that nobody knows")


def _add_shards(proof: Proof, found: Sequence[OfShard]) -> None:
    proof.proved |= set(LOGS)
    proof.tops = [top for one in found for top in one.log.tops]
    sums = [sum(one.log.optimistic[n] for one in found) for n in range(3)]
    proof.optimistic = (sums[0], sums[1], sums[2])
    proof.slices = [row for one in found for row in one.slices]


def _add(proof: Proof, found: Proof) -> None:
    """What another task has proved and counted."""
    proof.proved |= found.proved
    proof.why |= found.why
    proof.slices = proof.slices + found.slices
    for name in _COUNTED:
        if counted := getattr(found, name):
            setattr(proof, name, counted)


_COUNTED = ("unsubmitted", "waiting", "unknown", "thin", "functions", "compared", "answered", "at_positions",
            "promises", "late", "inverted", "untimed", "other", "values", "places")  # fmt: skip
