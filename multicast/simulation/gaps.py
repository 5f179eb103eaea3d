"""Lets the faults of `faults.draw_gaps` happen: at instants that random ones seldom hit."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multicast.simulation.casualties import Casualties
from multicast.simulation.fault import Fault
from multicast.types import ProcessId

_RETURN_POLL_US = 5_000
_RETURN_LIMIT_US = 3_000_000
"""So long a `second_loss` waits until a process is a member again."""


class Gaps:
    """again(fault): let this fault begin now."""

    def __init__(self, casualties: Casualties, again: Callable[[Fault], None]):
        self._casualties = casualties
        self._world = casualties.world
        self._again = again

    def begin(self, fault: Fault) -> bool:
        """Whether it takes place now."""
        world, victim = self._world, fault.processes[0]
        if fault.kind == "gap":
            self._arm(fault)
            return False
        if fault.kind == "first_sync":
            may_be = self._casualties.may_die(victim)
        elif fault.kind == "second_loss":
            may_be = world.nodes[victim].up and self._casualties.may_lose_disk(victim)
        else:
            may_be = world.nodes[victim].up
        if not may_be:
            return False
        if fault.kind == "first_sync":
            world.crash(victim)
        else:
            world.network.block(fault.pairs())
        return True

    def end(self, fault: Fault) -> None:
        """What it was for happens when it has lasted."""
        if fault.kind == "first_sync":
            self._die_again(fault)
        elif fault.kind == "second_loss":
            self._lose_another(fault)
        else:
            if fault.then:
                self._casualties.hit(fault.processes[0], fault.then, fault.lasts_us)
            self._world.network.unblock(fault.pairs())

    # -- gap ----------------------------------------------------------------------------------------------------------

    def _arm(self, fault: Fault) -> None:
        """Wait for the message, at each of the processes, until one of them sends or receives it."""
        keys = [(pid, fault.sends, fault.tag) for pid in fault.processes]

        def sprung(pid: ProcessId, peers: tuple[ProcessId, ...]) -> None:
            for key in keys:
                if self._world.traps.get(key) is sprung:
                    del self._world.traps[key]
            self._spring(msgspec.structs.replace(fault, processes=(pid,)), peers)

        for key in keys:
            self._world.traps[key] = sprung

    def _spring(self, fault: Fault, peers: tuple[ProcessId, ...]) -> None:
        """The message is about to leave, or to be handled: hold its batch's sync up, and some of its receivers off."""
        world, victim = self._world, fault.processes[0]
        if self._casualties.over or not self._casualties.may_die(victim):
            return
        mates = [p for p in world.topology.groups[world.topology.group_of[victim]] if p != victim]
        off: list[ProcessId] = []
        if fault.sends and fault.reaches != "all":
            kept = next((p for p in peers if p in mates), None) if fault.reaches == "one" else None
            off = [p for p in mates if p != kept]
            world.network.block([(victim, p) for p in off])
        holders = [p for p in peers if p in mates and p not in off]
        world.slow_disk(victim, fault.amount_us + 1)
        life = world.nodes[victim].life
        self._casualties.after(fault.amount_us, self._strike, fault, life, tuple(off), tuple(holders[:1]))

    def _strike(self, fault: Fault, life: int, off: tuple[ProcessId, ...], holders: tuple[ProcessId, ...]) -> None:
        world, victim = self._world, fault.processes[0]
        world.slow_disk(victim, 0)
        world.network.unblock([(victim, p) for p in off])
        if world.nodes[victim].life != life or not self._casualties.hit(victim, fault.then, fault.lasts_us):
            return
        self._casualties.count(fault)
        if holders and fault.cut_us:
            self._casualties.cut_off((holders[0],), fault.cut_us)

    # -- first_sync ---------------------------------------------------------------------------------------------------

    def _die_again(self, fault: Fault) -> None:
        """A `first_sync`'s next life begins, and ends."""
        world, victim = self._world, fault.processes[0]
        if world.nodes[victim].up:
            return
        world.slow_disk(victim, fault.amount_us + 1)
        world.restart(victim)
        life = world.nodes[victim].life
        again = msgspec.structs.replace(fault, cut_us=0)
        self._casualties.after(fault.amount_us, self._strike, again, life, (), ())

    # -- second_loss --------------------------------------------------------------------------------------------------

    def _lose_another(self, fault: Fault) -> None:
        """A `second_loss` takes a disk, or what is next, and waits until the one that lost it is a member again."""
        world, victim = self._world, fault.processes[0]
        back_us = min(fault.lasts_us, 20_000)
        goes_on = self._casualties.hit(victim, "lost_disk" if fault.again else fault.then, back_us) and fault.again > 0
        world.network.unblock(fault.pairs())
        if not goes_on:
            return
        limit = world.now + back_us + _RETURN_LIMIT_US
        self._casualties.after(_RETURN_POLL_US, self._await_return, fault, victim, limit)

    def _await_return(self, fault: Fault, victim: ProcessId, limit: int) -> None:
        world = self._world
        if world.now > limit:
            return
        if not world.nodes[victim].up or self._casualties.is_forgetful(victim):
            self._casualties.after(_RETURN_POLL_US, self._await_return, fault, victim, limit)
            return
        members = world.topology.groups[world.topology.group_of[victim]]
        leader = world.nodes[victim].protocol.leader_of(world.topology.group_of[victim])
        other = leader if leader in members and leader != victim else fault.peers[0]
        mates = tuple(p for p in members if p != other)
        self._again(msgspec.structs.replace(fault, processes=(other,), peers=mates, aimed=False, again=fault.again - 1))
