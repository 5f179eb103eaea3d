"""The replicas around one replica: who leads, and whom it asks. Pure."""

from __future__ import annotations

from collections.abc import Callable

from multicast.protocol import PeerError, Stranger
from multicast.types import GroupId, ProcessId, Topology


class Peers:
    """The replicas around replica `self_id`. leader_of: the protocol's."""

    def __init__(self, self_id: ProcessId, topology: Topology, leader_of: Callable[[GroupId], ProcessId | None]):
        self.self_id = self_id
        self.shard = topology.group_of[self_id]
        self.replicas = topology.groups
        self.shard_of = topology.group_of
        self._leader_of = leader_of

    @property
    def leads(self) -> bool:
        """Whether this replica believes that it leads its shard: then it is the one that tells others."""
        return self._leader_of(self.shard) == self.self_id

    @property
    def leader(self) -> ProcessId | None:
        """The leader of this replica's shard, as far as it knows."""
        return self._leader_of(self.shard)

    def others(self) -> list[ProcessId]:
        """All replicas but this one."""
        return [p for members in self.replicas.values() for p in members if p != self.self_id]

    def to_ask(self, shard: GroupId, attempt: int) -> ProcessId | None:
        """The replica of `shard` to ask: another one at every attempt, beginning with the leader; never this one."""
        members = self.replicas[shard]
        leader = self._leader_of(shard)
        first = members.index(leader) if leader in members else 0
        others = [p for p in members[first:] + members[:first] if p != self.self_id]
        return others[attempt % len(others)] if others else None

    def check(self, sender: ProcessId, shard: GroupId, what: str) -> None:
        """PeerError unless `sender`, who speaks for `shard`, is one of its replicas; Stranger if none is known."""
        if (group := self.shard_of.get(sender)) != shard:
            wrong = PeerError if group is not None else Stranger
            raise wrong(f"{what} of shard {shard} from group {group}")
