"""Who belongs to the shards, as one replica knows; and how that is changed: what `POST /v1/cluster/members` asks for.

A command that wants a replica added or removed says how the shard should be, and says it again until it is so. A
replica of the shard multicasts a change of the present view (`multicast.membership`), unless one is under way, and
answers whether nothing is left to be done. So no answer can be lost, and no change takes place twice.

A change that would leave the shard without a working majority is not begun (etcd's `strict-reconfig-check`). A replica
that is added counts for nothing until it has what the others have, so those that are there must be a majority of the
new view without it. The leader knows which are there by their answers to its pulses: a connection does not tell that a
replica stands still or has lost its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from kvstore.api.cluster import ReplicaJson, ShardJson
from kvstore.api.model import Transaction
from kvstore.config import ClusterConfig, ReplicaConfig
from kvstore.core.bundles import NO_ID, encode_bundle, encode_transaction
from multicast.membership import (
    Change,
    Founding,
    GroupIs,
    Membership,
    Views,
    change_payload,
    founding_payload,
)
from multicast.protocol import MulticastProtocol
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, quorum_of

_NOTHING = encode_bundle([(NO_ID, encode_transaction(Transaction()))])
"""The bundle of a change: to the store it does nothing."""


class Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What is wanted, one of these. add: this replica is to belong to its shard. remove: this one is not to. found:
    there is to be a shard that begins with these."""

    add: ReplicaConfig | None = None
    remove: ProcessId | None = None
    found: tuple[ReplicaConfig, ...] = ()


class Unfit(Exception):
    """It cannot be done; the text says why."""


class TooFew(Exception):
    """It cannot be done now, or not here: too few others are there, or this replica does not know that they are. The
    text names them."""


def note(replica: ReplicaConfig) -> bytes:
    """What the others must know of a replica that is added."""
    return msgspec.json.encode(replica)


decode_wanted = msgspec.json.Decoder(Wanted).decode
decode_note = msgspec.json.Decoder(ReplicaConfig).decode


def with_new(config: ClusterConfig, topology: Membership) -> ClusterConfig:
    """The configuration with the replicas that were added since it was read."""
    known = {replica.id for replica in config.replicas}
    for process in topology.processes:
        if process not in known:
            config = config.with_replica(decode_note(topology.note_of(process)))
    return config


def shards_json(
    config: ClusterConfig, topology: Membership, begun: Collection[GroupId],
    leader_of: Callable[[GroupId], ProcessId | None],
) -> list[ShardJson]:  # fmt: skip
    """The shards, for clients. begun: those that take requests."""
    return [
        ShardJson(id=shard, leader=leader_of(shard), replicas=[ReplicaJson(r, config.replica(r).url) for r in members])
        for shard, members in topology.groups.items() if shard in begun
    ]


def ask_for(
    wanted: Wanted, protocol: MulticastProtocol, now: int, message_id: MessageId, submit: Callable[[AppMessage], None]
) -> bool:
    """At a replica of the shard, at the protocol's time: bring about what is wanted. Returns whether nothing is left to
    be done. Unfit, TooFew."""
    group, name = protocol.group, protocol.specification.name
    if not protocol.specification.changes_members:
        raise Unfit(f"the protocol {name} does not change the members of a shard")
    if wanted.add is not None and wanted.add.shard != group:
        raise Unfit(f"replica {wanted.add.id} is to belong to shard {wanted.add.shard}; ask there")
    if wanted.found:
        founding = founding_for(protocol.topology, group, wanted.found)
        if founding is not None:
            submit(AppMessage(message_id, (group,), founding_payload(founding), protocol.self_id))
        return founding is None
    if wanted.add is not None:
        check_id(protocol.topology, group, wanted.add)
    views = protocol.topology.views[group]
    if is_done(views, wanted):
        return True
    change = change_for(views, wanted)
    if change is not None:
        leader = protocol.leader_of(group)
        if leader != protocol.self_id or protocol.election is None:
            whom = "nobody leads the shard now" if leader is None else f"replica {leader} leads the shard: ask it"
            raise TooFew(f"{whom}, for it knows who is there")
        check_enough(views, change, protocol.election.answering(now))
        submit(AppMessage(message_id, (group,), change_payload(change), protocol.self_id))
    return False


def founding_for(topology: Membership, group: GroupId, founders: Sequence[ReplicaConfig]) -> Founding | None:
    """What is to be multicast to the first shard, at one of its replicas; None if there is this shard. Unfit."""
    shard, ids = founders[0].shard, tuple(replica.id for replica in founders)
    if group != min(topology.groups):
        raise Unfit(f"shard {shard} is to be added; ask at shard {min(topology.groups)}")
    if shard in topology.groups:
        if topology.views[shard].of[0] != ids:
            raise Unfit(f"there is a shard {shard} already, which began with other replicas")
        return None
    if len(set(ids)) < len(ids) or any(replica.shard != shard for replica in founders):
        raise Unfit("a shard begins with replicas of different ids, which all name it")
    for replica in founders:
        check_id(topology, shard, replica)
    return Founding(GroupIs(shard, ids, {replica.id: note(replica) for replica in founders}), _NOTHING)


def check_id(topology: Membership, group: GroupId, new: ReplicaConfig) -> None:
    """Unfit if another replica has this id, in whichever shard, or has had it: who wants it added may know less."""
    for shard, views in topology.views.items():
        known = any(new.id in members for members in views.of.values())
        if known and (shard != group or views.notes.get(new.id) != note(new)):
            raise Unfit(f"replica {new.id} belongs to shard {shard}, or has before: its id is not used again")


def is_done(views: Views, wanted: Wanted) -> bool:
    """Whether the shard is as it is wanted, and nothing is under way."""
    members = views.of[views.latest]
    is_so = wanted.add.id in members if wanted.add is not None else wanted.remove not in members
    return is_so and len(views.counting) == 1


def change_for(views: Views, wanted: Wanted) -> Change | None:
    """What is to be multicast to the shard; None while a change is under way. Unfit."""
    members = views.of[views.latest]
    if len(views.counting) > 1:
        return None
    if wanted.add is not None:
        if any(wanted.add.id in some for some in views.of.values()):
            raise Unfit(f"replica {wanted.add.id} has belonged to the shard before: its id is not used again")
        return Change(views.latest, True, wanted.add.id, _NOTHING, note(wanted.add))
    if wanted.remove is None or members == (wanted.remove,):
        raise Unfit("the last replica of a shard stays" if wanted.remove is not None else "what is wanted is not said")
    return Change(views.latest, False, wanted.remove, _NOTHING)


def check_enough(views: Views, change: Change, there: Collection[ProcessId]) -> None:
    """TooFew if the shard would have no majority after this change until somebody comes back. Of two, the second one
    cannot be done without."""
    members = views.of[views.latest]
    after = [process for process in members if change.adds or process != change.process]
    size = len(after) + change.adds
    if len(members) == 1 or sum(process in there for process in after) >= quorum_of(size):
        return
    missing = ", ".join(str(process) for process in after if process not in there)
    raise TooFew(f"the shard would stand still with {size} replicas, for these take no part in it now: {missing}")
