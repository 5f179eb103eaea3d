"""Faults of several steps that end with something forgotten, while those who heard it are away or act on it.

- `unsynced`: power fails for most of a group (all but one, or all of a group of one) while their syncs are under way,
  after one of them has sent or got a message of a drawn type; they are back at once, and cut off from those who heard
  what they had told.
- `rival`: a process is cut off from its leader alone, so that it stands against it. One of its group who has just told
  it something that it does not tell as usual (a vote, say), or itself after it has told that one, loses power and what
  it had not synced, and is back at once; the other one is cut off. The old leader, to whom nothing has happened, and
  who has forgotten go on.
- `handed_down`: a group hears nothing from other groups, so that what its leader proposes stays undecided; then the
  leader alone hears them, and its group does not hear it: it delivers alone, and tells other groups. In some runs its
  group hears of that, too, but not what it was. It loses its disk and is a member again; then the same happens to its
  successor, and so on.
- `both_lost`: of a group of five or more a minority lose their disks, one soon after the other, so that each asks some
  who have forgotten, too; in some runs they begin another life before they are members again.

Everything here may happen to a protocol that loses nothing of what it vouched for. In a part of the runs nothing else
happens, so that nothing else undoes it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import msgspec

from multicast import membership
from multicast.protocol import Specification
from multicast.simulation.casualties import Casualties
from multicast.simulation.fault import Fault
from multicast.simulation.world import Trap
from multicast.types import ProcessId, Topology

KINDS = ("unsynced", "rival", "handed_down", "both_lost")
_COUNTS = {"unsynced": (2, 4, 8), "rival": (1, 1, 2), "handed_down": (1,)}
_SHARE = 0.5
_ALONE_SHARE = 0.6
_LOST_SHARE = 0.5
"""Of the runs with so large a group."""
_POLL_US = 5_000
_RETURN_LIMIT_US = 3_000_000
"""So long a `handed_down` waits for who lost its disk."""
_STAND_LIMIT_US = 1_000_000
"""So long a `rival` waits until somebody tells something unusual."""


def draw(
    rng: random.Random, topology: Topology, span_us: int, specification: Specification
) -> tuple[list[Fault], bool]:
    """Faults of a phase, in a part of the runs, and whether they are to be the only ones."""
    if rng.random() >= _SHARE:
        return [], False
    group = rng.choice(list(topology.groups))
    kinds = ["unsynced"]
    if len(topology.groups[group]) > 2:
        kinds.append("rival")
        if specification.survives_lost_disk and len(topology.groups) > 1:
            kinds.append("handed_down")
    kind = rng.choice(kinds)
    planned: list[Fault] = []
    for _ in range(rng.choice(_COUNTS[kind])):
        members = list(topology.groups[group])
        rng.shuffle(members)
        at = rng.randrange(span_us // (4 if kind == "handed_down" else 2))
        planned.append(_draw_one(rng, kind, at, members, topology, specification))
    return planned, rng.random() < _ALONE_SHARE


def draw_losses(
    rng: random.Random, topology: Topology, span_us: int, specification: Specification
) -> list[Fault]:
    """Several disks that are lost at a time."""
    large = [members for members in topology.groups.values() if len(members) > 4]
    if not large or not specification.survives_lost_disk or rng.random() >= _LOST_SHARE:
        return []
    planned: list[Fault] = []
    for _ in range(rng.choice((1, 2, 3))):
        members = rng.choice(large)
        victims = rng.sample(members, (len(members) - 1) // 2)
        planned.append(Fault(
            "both_lost", rng.randrange(span_us), rng.choice((8_000, 80_000, 400_000)), tuple(victims),
            amount_us=rng.choice((0, 5_000, 20_000, 60_000)), cut_us=rng.choice((40_000, 200_000, 600_000)),
            again=rng.choice((0, 1)),
        ))  # fmt: skip
    return planned


def _draw_one(
    rng: random.Random, kind: str, at: int, members: list[ProcessId], topology: Topology, specification: Specification
) -> Fault:
    rare = rng.random() < 0.5
    types = [t for t in specification.messages if t not in membership.MESSAGES]
    about = rng.choice([t for t in types if (t in specification.housekeeping) == rare] or types)
    fault = Fault(
        kind, at, rng.choice((4_000, 40_000)), tuple(members), amount_us=rng.choice((1_000, 5_000, 20_000, 60_000)),
        sends=rng.random() < 0.8, cut_us=rng.choice((1_000_000, 2_000_000, 4_000_000)), again=rng.choice((1, 1, 2, 3)),
    )  # fmt: skip
    if kind == "unsynced":
        victims = members[: max(1, len(members) - 1)]
        side = tuple(members[len(victims) :])
        if not side or rng.random() < 0.7:
            side = tuple(p for p in topology.processes if p not in victims)
        return msgspec.structs.replace(
            fault, processes=tuple(victims), peers=side, tag=_tag(about), message=about.__name__
        )  # fmt: skip
    if kind == "rival":
        amount_us = rng.choice((1_000, 3_000, 10_000, 20_000))
        return msgspec.structs.replace(
            fault, lasts_us=rng.choice((200_000, 600_000)), amount_us=amount_us, again=rng.choice((1, 1, 1, 2))
        )
    return msgspec.structs.replace(
        fault, then="lost_disk", lasts_us=rng.choice((300_000, 600_000, 1_200_000)), sends=rng.random() < 0.4,
        amount_us=rng.choice((5_000, 20_000, 60_000)), cut_us=rng.choice((0, 200_000, 600_000)),
        again=rng.choice((1, 1, 2)),
    )  # fmt: skip


def _tag(kind: type) -> int:
    tag: int = kind.__struct_config__.tag  # type: ignore[attr-defined]
    return tag


class Forgotten:
    """Lets these faults happen."""

    def __init__(self, casualties: Casualties):
        self._casualties = casualties
        self._world = casualties.world

    def _tags(self, ordering: bool) -> list[int]:
        """Of the protocol's types of messages: of those that order, or of its housekeeping."""
        specification = next(iter(self._world.nodes.values())).protocol.specification
        return [_tag(t) for t in specification.messages if (t not in specification.housekeeping) == ordering]

    def begin(self, fault: Fault) -> None:
        """The first step."""
        if fault.kind == "unsynced":
            self._arm(fault.processes, [fault.tag], lambda *_: self._hold_syncs(fault), fault.sends)
        elif fault.kind == "rival":
            self._learn(fault)
        elif fault.kind == "both_lost":
            for place, pid in enumerate(fault.processes):
                self._casualties.after(place * fault.amount_us, self._lose_one, fault, pid)
        else:
            self._wait_for_proposal(fault)

    def _arm(
        self,
        processes: Sequence[ProcessId],
        tags: Sequence[int],
        then: Callable[[ProcessId, tuple[ProcessId, ...]], bool | None],
        sends: bool = True,
    ) -> Callable[[], None]:
        """Call `then` when one of them sends (or gets) one of these types, until it does not return False. Returns
        what ends the waiting."""
        traps = self._world.traps
        keys = [(pid, sends, tag) for pid in processes for tag in tags]
        set_here: dict[tuple[ProcessId, bool, int], Trap] = {}

        def disarm() -> None:
            for key, trap in set_here.items():
                if traps.get(key) is trap:
                    del traps[key]

        for key in keys:

            def sprung(pid: ProcessId, peers: tuple[ProcessId, ...], key: tuple[ProcessId, bool, int] = key) -> None:
                if then(pid, peers) is False:
                    traps[key] = set_here[key]
                else:
                    disarm()

            traps[key] = set_here[key] = sprung
        return disarm

    def _forget(self, victims: Sequence[ProcessId], back_us: int) -> None:
        """Power fails for them, nothing is left of what was not synced, and they are back soon."""
        for pid in victims:
            self._world.slow_disk(pid, 0)
            self._world.crash(pid, keeps=False)
            self._casualties.after(back_us, self._world.restart, pid)

    # -- both lost ----------------------------------------------------------------------------------------------------

    def _lose_one(self, fault: Fault, victim: ProcessId) -> None:
        world, casualties = self._world, self._casualties
        if not world.nodes[victim].up or not casualties.may_lose_disk(victim, also=True):
            return
        casualties.count(fault)
        casualties.lose_disk(victim)
        casualties.after(fault.lasts_us, world.restart, victim)
        if fault.again:
            casualties.after(fault.lasts_us + fault.cut_us, self._begin_anew, victim)

    def _begin_anew(self, victim: ProcessId) -> None:
        """Another life, unless it is a member again."""
        casualties = self._casualties
        if self._world.nodes[victim].up and casualties.may_die(victim) and casualties.is_forgetful(victim):
            self._world.crash(victim)
            casualties.after(2_000, self._world.restart, victim)

    # -- unsynced -----------------------------------------------------------------------------------------------------

    def _hold_syncs(self, fault: Fault) -> None:
        for pid in fault.processes:
            self._world.slow_disk(pid, fault.amount_us + 1)
        self._casualties.after(fault.amount_us, self._lose_power, fault)

    def _lose_power(self, fault: Fault) -> None:
        self._casualties.count(fault)
        self._casualties.cut_off(fault.peers, fault.cut_us)
        self._forget(fault.processes, fault.lasts_us)

    # -- rival --------------------------------------------------------------------------------------------------------

    def _learn(self, fault: Fault) -> None:
        """What does the voter send as usual?"""
        leader = self._casualties.leader(fault.processes[0])
        candidate, voter = [p for p in fault.processes if p != leader][:2]
        teller = voter if fault.sends else candidate
        usual: set[int] = set()
        tags = self._tags(ordering=False)

        def heard(tag: int) -> Callable[..., None]:
            return lambda *_: usual.add(tag)

        disarm = [self._arm([teller], [tag], heard(tag)) for tag in tags]
        rivals = (leader, candidate, voter)
        self._casualties.after(fault.lasts_us, self._part, fault, rivals, disarm, usual)

    def _part(
        self,
        fault: Fault,
        rivals: tuple[ProcessId, ProcessId, ProcessId],
        disarm: Sequence[Callable[[], None]],
        usual: set[int],
    ) -> None:
        """The candidate does not hear the leader any more, and waits for votes."""
        leader, candidate, voter = rivals
        for end in disarm:
            end()
        teller, other = (voter, candidate) if fault.sends else (candidate, voter)
        left = fault.again

        def told(_: ProcessId, peers: tuple[ProcessId, ...]) -> bool:
            nonlocal left
            if other in peers:
                left -= 1
            if left or self._casualties.over:
                return False
            silent = [(teller, p) for p in self._world.topology.processes if p not in rivals[1:]]
            self._world.network.block(silent)
            self._world.slow_disk(teller, fault.amount_us + 1)
            self._casualties.after(fault.amount_us, self._forget_vote, fault, teller, other, both + silent)
            return True

        both = [(leader, candidate), (candidate, leader)]
        self._world.network.block(both)
        end = self._arm([teller], [tag for tag in self._tags(ordering=False) if tag not in usual], told)

        def give_up() -> None:
            end()
            if left:
                self._world.network.unblock(both)

        self._casualties.after(_STAND_LIMIT_US, give_up)

    def _forget_vote(
        self, fault: Fault, teller: ProcessId, other: ProcessId, cut: list[tuple[ProcessId, ProcessId]]
    ) -> None:
        self._world.slow_disk(teller, 0)
        self._world.network.unblock(cut)
        if self._casualties.may_die(teller):
            self._casualties.count(fault)
            self._casualties.cut_off((other,), fault.cut_us)
            self._forget((teller,), fault.lasts_us // 100)

    # -- handed down --------------------------------------------------------------------------------------------------

    def _wait_for_proposal(self, fault: Fault) -> None:
        """The leader tells another group something, like a stamp."""
        leader = self._casualties.leader(fault.processes[0])
        members = fault.processes

        def told(_: ProcessId, peers: tuple[ProcessId, ...]) -> bool:
            if leader not in members or all(p in members for p in peers):
                return False
            self._casualties.count(fault)
            deaf = members if fault.sends else (leader,)
            self._world.network.block([(p, q) for p, q in self._from_others(members) if q in deaf])
            self._casualties.after(fault.amount_us, self._leave_alone, fault, leader)
            return True

        self._arm([leader], self._tags(ordering=True), told)

    def _from_others(self, members: Sequence[ProcessId]) -> list[tuple[ProcessId, ProcessId]]:
        return [(p, q) for p in self._world.topology.processes if p not in members for q in members]

    def _leave_alone(self, fault: Fault, alone: ProcessId) -> None:
        """The one hears everybody, and its group does not hear it."""
        network = self._world.network
        mates = [p for p in fault.processes if p != alone]
        others = self._from_others(fault.processes)
        network.block([(alone, p) for p in mates] + [(p, q) for p, q in others if q != alone])
        network.unblock([(p, q) for p, q in others if q == alone])
        if fault.cut_us:
            self._casualties.after(fault.lasts_us, self._tell_after_all, fault, alone, mates)
        else:
            self._casualties.after(fault.lasts_us, self._lose, fault, alone)

    def _tell_after_all(self, fault: Fault, alone: ProcessId, mates: Sequence[ProcessId]) -> None:
        """Its group forgets that it ever heard it, and hears what it has to say now; what it asks comes too late."""
        self._forget(mates, 0)
        self._world.network.unblock([(alone, p) for p in mates])
        for p in mates:
            self._world.network.slow(p, alone, fault.cut_us)
        self._casualties.after(fault.cut_us * 7 // 4, self._lose, fault, alone)

    def _lose(self, fault: Fault, alone: ProcessId) -> None:
        world, members = self._world, fault.processes
        others = self._from_others(members)
        for p in members:
            if p != alone:
                world.network.slow(p, alone, 0)
        between = [(p, q) for p in members for q in members if p != q and alone in (p, q)]
        if not fault.again:
            self._casualties.hit(alone, fault.then, fault.lasts_us)
            world.network.unblock(others + between)
            return
        world.network.block(others)
        struck = self._casualties.hit(alone, "lost_disk", 2_000)
        world.network.unblock(between)
        if struck:
            self._await_successor(fault, alone, world.now + _RETURN_LIMIT_US)
        else:
            world.network.unblock(others)

    def _await_successor(self, fault: Fault, lost: ProcessId, limit: int) -> None:
        world = self._world
        leader = self._casualties.leader(lost) if world.nodes[lost].up else lost
        if not world.nodes[lost].up or self._casualties.is_forgetful(lost) or leader == lost:
            if world.now < limit:
                self._casualties.after(_POLL_US, self._await_successor, fault, lost, limit)
            else:
                world.network.unblock(self._from_others(fault.processes))
            return
        self._leave_alone(msgspec.structs.replace(fault, again=fault.again - 1), leader)
