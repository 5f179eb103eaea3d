"""What the replicas of a finished run keep besides rows: what they remember of ids, their notes, what they gave.

Of a shard, all that have completed everything keep the same: else a later step of a move, or the answer to a
repetition, depends on who is asked. Whoever owns a key in the end knows the ids of all that has touched it, wherever it
was served: else a repetition would be served again. What nobody may use any more is forgotten. What a shard gave
another one it can tell again: no other does. And how a transaction ended that concerned others, too, it tells who is
behind as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvstore.api.model import move_of
from kvstore.api.shard_map import ALL_SLOTS
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH, MoveOutcome
from kvstore.core.bundles import timestamp_of
from kvstore.core.messages import decode_remembered, decode_retained
from kvstore.core.replica import FORGET_EVERY_US
from kvstore.core.requests import forgotten_before
from kvstore.core.signals import status_at
from kvstore.core.state import State
from kvstore.simulated.cluster import Executed, Moved, SimulatedCluster
from kvstore.simulated.narrow import tells_all
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp, created_us

Logs = Mapping[GroupId, list[Executed]]
Ids = dict[MessageId, bytes]

_ALL = 1 << 30


def complete(cluster: SimulatedCluster, logs: Logs, shard: GroupId) -> dict[ProcessId, State]:
    """What those replicas of this shard hold that have completed its log."""
    last = logs[shard][-1].position if logs[shard] else 0
    members = [pid for pid in cluster.world.topology.groups[shard] if pid in cluster.replicas]
    replicas = {pid: cluster.replicas[pid] for pid in members}
    return {pid: replica.store for pid, replica in replicas.items() if replica.log.completed == last}


def check(cluster: SimulatedCluster, logs: Logs, moved: Mapping[Timestamp, Moved]) -> list[str]:
    """Sentences, one per difference."""
    window_us = cluster.options.dedup_window_us
    upto = max([executed.version for log in logs.values() for executed in log], default=ZERO)
    oldest = forgotten_before(upto, window_us) if window_us else bytes(16)
    violations: list[str] = []
    known: dict[GroupId, Ids] = {}
    for shard, log in logs.items():
        stores = complete(cluster, logs, shard)
        given = {e.version for e in log if e.version.time >= created_us(oldest) and _gives(e, shard)}
        first: tuple[Ids, Ids] | None = None
        for pid, store in stores.items():
            found = _ids(store, oldest), dict(store.notes(b""))
            first = first or found
            violations += [f"replica {pid} of shard {shard} {text}" for text in _differ(first, found)]
            violations += [f"replica {pid} still remembers {one.hex()}" for one in _overdue(store, window_us)[:1]]
            parts = {decode_retained(part).timestamp for _, part in store.parts()}
            lost = sorted([version for version in given if timestamp_of(version) not in parts])
            violations += [f"replica {pid} cannot tell any more what it gave at {at}" for at in lost]
            violations += [f"replica {pid} tells {text}" for text in _told_otherwise(store, parts, log, oldest)]
        if first is not None:
            known[shard] = first[0]
    return violations + list(_unknown(cluster, logs, moved, known, oldest))


def _ids(store: State, oldest: MessageId) -> Ids:
    return {message_id: record for message_id, record in store.remembered_after(b"", _ALL) if message_id >= oldest}


def _overdue(store: State, window_us: int) -> list[MessageId]:
    """What is remembered though nobody may use it any more, and has not been forgotten with the rest."""
    if not window_us:
        return []
    oldest = forgotten_before(Timestamp(store.complete_to.time - FORGET_EVERY_US, 0), window_us)
    return [one for one, _ in store.remembered_after(b"", _ALL) if one < oldest and store.remembered(one) is not None]


def _differ(first: tuple[Ids, Ids], other: tuple[Ids, Ids]) -> Iterator[str]:
    for what, mine, its in zip(("remembers", "has noted"), first, other, strict=True):
        differing = [key for key in sorted(mine.keys() | its.keys()) if mine.get(key) != its.get(key)]
        for key in differing[:1]:
            yield f"{what} of {key.hex()} {its.get(key)!r}, and another one {mine.get(key)!r}"


def _told_otherwise(store: State, parts: set[Timestamp], log: list[Executed], oldest: MessageId) -> Iterator[str]:
    """Transactions whose votes it does not have any more, and of which it remembers another end than theirs."""
    for executed in log:
        timestamp, outcome = timestamp_of(executed.version), executed.outcome
        if outcome is None or len(executed.destinations) == 1 or executed.id < oldest or timestamp in parts:
            continue
        record = store.remembered(executed.id)
        if record is not None and outcome.status not in (EXPIRED, MISMATCH):
            told = status_at(executed.version, decode_remembered(record))
            if told != outcome.status:
                yield f"that {executed.id.hex()} at {executed.version} ended with {told}, and it was {outcome.status}"


def _gives(executed: Executed, shard: GroupId) -> bool:
    outcome = executed.outcome
    return isinstance(outcome, MoveOutcome) and outcome.given is not None and outcome.source == shard


def _pairs(slots: bytes) -> set[bytes]:
    """Slots of two bytes each."""
    return {slots[at : at + 2] for at in range(0, len(slots), 2)}


def _unknown(
    cluster: SimulatedCluster, logs: Logs, moved: Mapping[Timestamp, Moved], known: Mapping[GroupId, Ids],
    oldest: MessageId,
) -> Iterator[str]:  # fmt: skip
    """Of what took effect, what the owner of one of its keys does not know."""
    owner = dict(enumerate(cluster.shard_map.slots))
    for _, move in sorted(moved.items()):
        owner |= dict.fromkeys(move.slots, move.target)
    homes_of, keeps_all = cluster.shard_map.homes_of, tells_all() and not moved
    for executed in [executed for log in logs.values() for executed in log if executed.version != ZERO]:
        outcome, message_id = executed.outcome, executed.id
        if outcome is None or not outcome.id or outcome.status not in (APPLIED, FAILED) or message_id < oldest:
            continue
        slots = b"" if move_of(executed.transaction) is not None else homes_of(executed.transaction)[0] or b""
        keys = slots.removesuffix(ALL_SLOTS)
        owners = {owner[int.from_bytes(keys[at : at + 2], "big")] for at in range(0, len(keys), 2)}
        for shard in owners & known.keys():
            record = known[shard].get(message_id)
            said = decode_remembered(record) if record is not None else None
            if said is None or (said.status, said.timestamp) != (outcome.status, executed.version):
                yield f"{message_id.hex()} took effect at {executed.version}, and shard {shard} remembers {said}"
            elif said.slots is not None and not _pairs(said.slots) >= _pairs(slots):
                yield f"{message_id.hex()} took effect at {executed.version}, and shard {shard} knows not all its slots"
            elif said.results is None and keeps_all and outcome.status == APPLIED and not slots.endswith(ALL_SLOTS):
                yield f"{message_id.hex()} took effect at {executed.version}, and shard {shard} has lost what it read"
