"""What faults have done to processes, and what may still be done to whom: at most a minority of a group is down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from multicast.simulation.fault import Fault
from multicast.simulation.world import World
from multicast.types import ProcessId, is_majority


class Casualties:
    """Of one run. counts: how many of each kind of fault took place. over: no fault begins or ends any more."""

    def __init__(self, world: World):
        self.world = world
        self.counts: dict[str, int] = {}
        self.over = False
        self._amnesiacs: dict[ProcessId, tuple[int, int]] = {}

    def stop(self) -> None:
        """The world is being healed."""
        self.over = True
        self.world.traps.clear()

    def after(self, us: int, then: Callable[..., object], *arguments: object) -> None:
        """Later, unless the faults are over by then."""

        def go_on() -> None:
            if not self.over:
                then(*arguments)

        self.world.after(us, go_on)

    def count(self, fault: Fault) -> None:
        """It takes place."""
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        for observer in self.world.observers:
            observer.on_fault(fault, True)

    def ends(self, fault: Fault) -> None:
        """It has taken place."""
        for observer in self.world.observers:
            observer.on_fault(fault, False)

    # -- who ----------------------------------------------------------------------------------------------------------

    def leader(self, pid: ProcessId) -> ProcessId:
        """Whom this process takes for the leader of its group; itself, if nobody."""
        leader = self.world.nodes[pid].protocol.leader_of(self.world.topology.group_of[pid])
        return pid if leader is None else leader

    def may_die(self, pid: ProcessId) -> bool:
        """Whether a minority of its group is down with it. A group of one may always lose its process for a while."""
        topology, nodes = self.world.topology, self.world.nodes
        group = topology.group_of[pid]
        members = topology.groups[group]
        there = {p for p in members if p != pid and nodes[p].up and not self.is_forgetful(p)}
        return len(members) == 1 or all(is_majority(some, there) for some in topology.counting(group))

    def may_lose_disk(self, pid: ProcessId, also: bool = False) -> bool:
        """Whether all its group remembers, a minority is down with it, and what it would have to fetch can be had.
        also: others may have forgotten, too, a minority with it."""
        members = self.world.topology.groups[self.world.topology.group_of[pid]]
        if self.has_dropped(members):
            return False
        return len(members) > 1 and self.may_die(pid) and (also or not any(self.is_forgetful(p) for p in members))

    def has_dropped(self, members: Iterable[ProcessId]) -> bool:
        """Whether deliveries are in no journal of these any more, and nobody gives snapshots instead."""
        nodes = [self.world.nodes[pid] for pid in members]
        return any(node.journal.floor and node.keeper is None for node in nodes)

    def is_forgetful(self, pid: ProcessId) -> bool:
        """Whether its disk was lost, and what it has learned since may not be on the new one."""
        known = self._amnesiacs.get(pid)
        node = self.world.nodes[pid]
        if known is None:  # who is new has forgotten nothing
            return node.up and not node.protocol.promises()
        if not node.up or not node.protocol.is_member():
            self._amnesiacs[pid] = (node.life, -1)
            return True
        life, number = known
        if life != node.life or number < 0:
            number = node.ran
            self._amnesiacs[pid] = (node.life, number)
        if node.flushed < number:
            return True
        del self._amnesiacs[pid]
        return False

    # -- blows --------------------------------------------------------------------------------------------------------

    def lose_disk(self, victim: ProcessId) -> None:
        """Power fails, and the disk is gone."""
        self._amnesiacs[victim] = (self.world.nodes[victim].life, -1)
        self.world.lose_disk(victim)

    def hit(self, victim: ProcessId, then: str, lasts_us: int) -> bool:
        """What a fault of several steps ends with ("pause", "lost_disk", else power); whether it may be."""
        world = self.world
        if not world.nodes[victim].up:
            return False
        if then == "pause":
            world.pause(victim, lasts_us)
        elif then == "lost_disk" and self.may_lose_disk(victim):
            self.lose_disk(victim)
            self.after(lasts_us, world.restart, victim)
        elif self.may_die(victim):
            world.crash(victim)
            self.after(lasts_us, world.restart, victim)
        else:
            return False
        return True

    def cut_off(self, processes: Sequence[ProcessId], lasts_us: int) -> None:
        """These from everybody else, both ways, for so long."""
        others = tuple(p for p in self.world.topology.processes if p not in processes)
        cut = Fault("partition", 0, lasts_us, tuple(processes), others)
        self.world.network.block(cut.pairs())
        self.count(cut)
        self.after(lasts_us, self._let_back, cut)

    def _let_back(self, cut: Fault) -> None:
        self.ends(cut)
        self.world.network.unblock(cut.pairs())
