"""What can be proved of a run: the tasks in their turn, and what they found, put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec

from spark_etl.certify import client, key, near
from spark_etl.certify.arrays import Suspect, trust
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
    TOLD,
    VALIDITY,
    VALUES,
    Proof,
    Reached,
)
from spark_etl.certify.source import NOBODY, Source
from spark_etl.certify.tasks import TRANSFERS, Around, Cut, CutShard, CutSubmitted, OfShard, Run, Shard
from spark_etl.frames.relations import SHARDS_MAX
from spark_etl.ingest.inputs import Inputs

Workers = Callable[[list[bytes]], list[bytes]]
"""Do tasks side by side: `tasks.work` of each."""


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
    stops = {
        replica: (delivered, completed, replica not in inputs.down)
        for replica, _, delivered, completed in inputs.stops
    }
    installs: dict[int, list[tuple[int, int]]] = {}
    for replica, position, offset in inputs.installed:
        installs.setdefault(replica, []).append((position, offset))
    shards = [
        Shard(
            source, shard, members, {r: stops[r] for r in members if r in stops},
            {r: installs[r] for r in members if r in installs},
            [(position, digest) for other, _, position, digest in inputs.snapshots if other == shard],
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
    valued = has_history and source.tells("history", client.VALUED)
    run = Run(source, logs, inputs.shards, members, forgetful, has_history, valued, width)

    def judge(*tasks: Run) -> list[Proof]:
        return [msgspec.msgpack.decode(one, type=Proof) for one in workers([encode(task) for task in tasks])]

    change = msgspec.structs.replace
    orders, values = judge(change(run, task="orders"), change(run, task="values"))
    if orders.holds(CLIENTS) and not (orders.holds(TOLD) or values.holds(TOLD)):
        (orders,) = judge(change(run, task="orders", at_once=True))
    _add(proof, orders)
    _add(proof, values)
    proof.proved.discard(TOLD)  # CLIENTS has it
    proof.why.pop(TOLD, None)
    if proof.twice:
        return Proof(why={"all": "a message or transaction twice in one shard"})
    if not proof.holds(READS):
        proof.proved -= {VALUES, PROMISES, POSITIONS}
    doubts = [one for one in found if one.keys]
    other = bool(doubts) or proof.other
    in_time = not proof.late or proof.holds(PRECEDENCE)
    if into is not None and (other or proof.values or proof.places or not in_time):
        known = [one.doubts for one in doubts if one.doubts is not None]
        suspects = near.Suspects(known, proof.values, proof.places)
        if len(known) == len(doubts) and _nothing_else(proof, suspects, has_history, whole):
            proof.near, proof.circling = _cut_out(workers, run, inputs, suspects, into, orders.reached)
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
        (BANK, kinds & set(TRANSFERS)),
    )
    few = len(suspects.values) + len(suspects.places) <= near.DOUBTS_MAX
    return few and proof.holds(HISTORY, CLIENTS, TIME, SESSIONS, *(name for name, wanted in there if wanted))


def _cut_out(
    workers: Workers, run: Run, inputs: Inputs, suspects: near.Suspects, into: Path, reached: list[Reached]
) -> tuple[dict[str, int], int]:
    """The tables of what is near the suspects, and how many are on cycles if not all of these are. Nothing if that is
    much, or cannot be told."""

    def cut(*tasks: Around | CutShard | CutSubmitted) -> list[Cut]:
        return [msgspec.msgpack.decode(one, type=Cut) for one in workers(list(map(msgspec.msgpack.encode, tasks)))]

    (around,) = cut(Around(run, suspects, str(into), reached))
    if not around.kept:
        return {}, 0
    of_shards = cut(*(
        CutShard(run.source, shard, members, run.logs[shard].longest[1], around.kept[shard], str(into))
        for shard, members in inputs.shards.items() if run.logs[shard].longest[1] >= 0
    ))  # fmt: skip
    messages = b"".join(one.messages for one in of_shards)
    submitted = cut(*(
        CutSubmitted(run.source, shard, members, messages, str(into)) for shard, members in inputs.shards.items()
    ))  # fmt: skip
    files = around.files | {name: rows for one in (*of_shards, *submitted) for name, rows in one.files.items()}
    return files, around.circling


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


def _add(proof: Proof, found: Proof) -> None:
    """What another task has proved and counted."""
    proof.proved |= found.proved
    proof.why |= found.why
    proof.slices = proof.slices + found.slices
    for name in _COUNTED:
        if counted := getattr(found, name):
            setattr(proof, name, counted)


_COUNTED = ("unsubmitted", "waiting", "unknown", "thin", "functions", "compared", "answered", "at_positions",
            "promises", "twice", "late", "inverted", "untimed", "other", "values", "places")  # fmt: skip
