"""Lets faults happen in a world, each at its time."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from multicast.simulation import forgotten
from multicast.simulation.casualties import Casualties
from multicast.simulation.fault import Fault
from multicast.simulation.faults import DISK_KINDS, GAP_KINDS
from multicast.simulation.forgotten import Forgotten
from multicast.simulation.gaps import Gaps
from multicast.simulation.world import World

_OFF_US_MAX = 1_500_000
"""So far off a majority of the clocks may be, unless a run wants less."""


class Injector:
    """Lets faults happen in a world. clock_off_us_max: of all processes, only a minority may have clocks that are
    further off the world's time. comers: how many may yet come or go."""

    def __init__(self, world: World, faults: Sequence[Fault], clock_off_us_max: int = _OFF_US_MAX, comers: int = 0):
        self.casualties = Casualties(world)
        self._comers = comers
        self._clock_off_us_max = clock_off_us_max
        self._world = world
        self._gaps = Gaps(self.casualties, self._begin)
        self._forgotten = Forgotten(self.casualties)
        for fault in faults:
            self.casualties.after(fault.at_us, self._begin, fault)

    def _begin(self, fault: Fault) -> None:
        if fault.aimed:
            fault = self._aim(fault)
        if fault.kind in forgotten.KINDS:
            self._forgotten.begin(fault)
            return
        begins = self._gaps.begin(fault) if fault.kind in GAP_KINDS else self._apply(fault)
        if not begins:
            return
        self.casualties.count(fault)
        if fault.lasts_us:
            self.casualties.after(fault.lasts_us, self._end, fault)

    def _aim(self, fault: Fault) -> Fault:
        leaders = dict.fromkeys(self.casualties.leader(victim) for victim in fault.processes)
        peers = fault.peers
        if len(leaders) == 1:
            victim, leader = fault.processes[0], next(iter(leaders))
            peers = tuple(victim if p == leader else p for p in peers)
        return msgspec.structs.replace(fault, processes=tuple(leaders), peers=peers)

    def _apply(self, fault: Fault) -> bool:
        """Whether it could take place."""
        world, kind, victim = self._world, fault.kind, fault.processes[0]
        node = world.nodes[victim]
        if kind in ("crash", "power"):
            if not node.up or not self.casualties.may_die(victim):
                return False
            world.crash(victim, power=kind == "power")
        elif kind == "mid_sync":
            world.crash_in_sync(victim, lambda: self._die_in_sync(fault))
            return False
        elif kind == "blackout":
            for pid in fault.processes:
                world.crash(pid, power=True)
        elif kind == "torn_tail":
            world.crash_in_sync(victim, lambda: self._tear(fault))
            return False
        elif kind == "failing_fsync":
            if self.casualties.may_die(victim):
                world.fail_sync(victim, lambda: self._died_of_disk(fault))
            return False
        elif kind == "lost_disk":
            if not node.up or not self.casualties.may_lose_disk(victim):
                return False
            self.casualties.lose_disk(victim)
        elif kind == "pause":
            if not node.up or node.paused:
                return False
            world.pause(victim, fault.lasts_us)
        elif kind in ("partition", "one_sided"):
            world.network.block(fault.pairs())
        elif kind == "swizzle":
            self._swizzle(fault)
        elif kind == "delay":
            self._slow_links(fault, fault.amount_us)
        elif kind == "reset":
            for peer in fault.peers:
                world.network.reset(victim, peer)
                world.network.reset(peer, victim)
        elif kind in ("clock", "clocks"):
            if not self._may_jump(fault):
                return False
            for pid in fault.processes:
                world.jump_clock(pid, fault.amount_us)
        else:
            world.slow_disk(victim, fault.amount_us)
        return True

    def _swizzle(self, fault: Fault) -> None:
        """Cut the members off at random instants of the fault's first part, let them back at such of its second."""
        world, rng = self._world, random.Random(fault.amount_us)
        for pid in fault.processes:
            pairs = [(pid, p) for p in fault.peers if p != pid]
            if rng.random() < 0.5:
                pairs += [(b, a) for a, b in pairs]
            cut = rng.randint(0, fault.lasts_us)
            self.casualties.after(cut, world.network.block, pairs)
            self.casualties.after(cut + rng.randint(0, fault.lasts_us), world.network.unblock, pairs)

    def _die_in_sync(self, fault: Fault) -> None:
        """A `mid_sync` has found its moment."""
        world = self._world
        if self.casualties.over or (len(fault.processes) == 1 and not self.casualties.may_die(fault.processes[0])):
            return
        self.casualties.count(fault)
        for pid in fault.processes:
            world.crash(pid, power=True)
        self.casualties.after(fault.lasts_us, self._end, fault)

    def _tear(self, fault: Fault) -> None:
        """A `torn_tail` has found its moment."""
        world, victim = self._world, fault.processes[0]
        if self.casualties.over or world.nodes[victim].disk.unsynced < 2 or not self.casualties.may_die(victim):
            return
        self.casualties.count(fault)
        world.crash(victim, power=True, torn=True)
        self.casualties.after(fault.lasts_us, self._end, fault)

    def _died_of_disk(self, fault: Fault) -> None:
        """A `failing_fsync` has killed; nobody may stay dead when faults are over."""
        world = self._world
        self.casualties.count(fault)
        if self.casualties.over:
            world.restart(fault.processes[0])
        else:
            self.casualties.after(fault.lasts_us, self._end, fault)

    def _end(self, fault: Fault) -> None:
        world, kind = self._world, fault.kind
        self.casualties.ends(fault)
        if kind in GAP_KINDS:
            self._gaps.end(fault)
        elif kind in ("crash", "power", "mid_sync", "blackout", *DISK_KINDS):
            for pid in fault.processes:
                world.restart(pid)
        elif kind in ("partition", "one_sided"):
            world.network.unblock(fault.pairs())
        elif kind == "delay":
            self._slow_links(fault, 0)
        elif kind == "slow_fsync":
            world.slow_disk(fault.processes[0], 0)
        elif kind == "clocks" and self._may_jump(back := msgspec.structs.replace(fault, amount_us=-fault.amount_us)):
            for pid in back.processes:
                world.jump_clock(pid, back.amount_us)

    def _may_jump(self, fault: Fault) -> bool:
        """Whether most clocks are right nevertheless, of all and of those that each process knows of: who has not heard
        of a group that was added compares its clock without them."""
        nodes, limit = self._world.nodes, self._clock_off_us_max
        nodes = {pid: node for pid, node in nodes.items() if node.life}
        jumps = dict.fromkeys(fault.processes, fault.amount_us)
        off = {pid for pid, node in nodes.items() if abs(node.offset_us + jumps.get(pid, 0)) > limit}
        if not off & set(jumps):
            return True
        fewest = len(nodes) - 2 * len(nodes.keys() - self._world.topology.processes) - self._comers
        views = {node.protocol.topology.processes for node in nodes.values()}
        return len(off) <= max(0, (fewest - 1) // 2) and all(
            len(off.intersection(view)) <= (len(view) - 1) // 2 for view in views
        )

    def _slow_links(self, fault: Fault, amount_us: int) -> None:
        for a in fault.processes:
            for b in fault.peers:
                self._world.network.slow(a, b, amount_us)
                self._world.network.slow(b, a, amount_us)
