"""Links that are broken for good while all others work: who may be left without a connection to whom.

In such a world there can always be leaders that reach one another, and messages are delivered everywhere: by another
leader where the present one is at the end of a broken link (`parts.reach`), by fetching from peers elsewhere.

In a part of the runs that gets worse: another member of the group is cut off, too, who is no help then, and somebody
restarts while messages are passed on. A third one reaches all; so everything is delivered all the same. And when the
links work again, nobody keeps anything of it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from multicast.simulation import leftovers
from multicast.types import Ballot, GroupId, ProcessId, quorum_of

if TYPE_CHECKING:
    from multicast.simulation.world import World

Ballots = Mapping[ProcessId, Ballot]

_MINE = {"pending", "submitted"}
"""Of `leftovers.kept`: what a sender waits for, under a protocol or another."""
_LEAST = 3
"""Members of a group of which one can do without the rest."""
_WORSE, _SECOND, _RESTARTS = 0.5, 0.7, 0.7
"""The share of the runs in which it gets worse; of these, in which another one is cut off, and somebody restarts."""
_TRIES = 2
_LONG_TIMEOUTS = 9
"""Whoever is cut off for so long knows it (`parts.reach`)."""


class Judged(Protocol):
    """Of `endings.Judged`."""

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None: ...

    def expects_copies(self) -> bool: ...

    def left(self, pid: ProcessId) -> dict[str, int]: ...


class Parted(NamedTuple):
    """`alone`, of the first of these groups, has no connection to `far`, of the second: its leader, or all of it.
    known: all of the second know who leads the first. may_worsen: where one leads all, and members depose it without
    asking others, those at the ends do so again and again once either leads."""

    groups: tuple[GroupId, GroupId]
    alone: ProcessId
    far: tuple[ProcessId, ...]
    known: bool
    may_worsen: bool

    @property
    def links(self) -> list[tuple[ProcessId, ProcessId]]:
        """In both directions."""
        return [link for p in self.far for link in ((self.alone, p), (p, self.alone))]


def draw(world: World, rng: random.Random) -> Parted | None:
    """None: there is nobody to be parted, or others could not take over, because their clocks are off."""
    groups = {g: [p for p in members if world.belongs(p)] for g, members in world.topology.groups.items()}
    leaders = {g: world.nodes[some[0]].protocol.leader_of(g) for g, some in groups.items() if len(some) >= _LEAST}
    led = {g: leader for g, leader in leaders.items() if leader is not None and leader in groups[g]}
    nodes = [node for node in world.nodes.values() if node.up]
    if len(led) < 2 or any(node.protocol.clock_off for node in nodes):
        return None
    one, other = rng.sample(list(led), 2)
    alone = rng.choice((led[one], led[one], *groups[one]))
    far = rng.choice(([led[other]], [led[other]], groups[other]))
    leading = {node.protocol.election.promised.leader for node in nodes if node.protocol.election}
    deposes = False
    if len(leading) < len(groups):
        far = far[:1]  # ToTo: one leader for all, who leaves out of the view whom it does not reach
        deposes = not getattr(nodes[0].protocol.options, "ask_first", True)
        if deposes and leading & {alone, *far}:
            return None
    known = all(world.nodes[p].protocol.leader_of(one) == led[one] for p in groups[other])
    return Parted((one, other), alone, tuple(far), known, not deposes)


def judge(world: World, parted: Parted, before: Ballots, after: Ballots, limit_us: int) -> None:
    """Once everything is delivered. before, after: what each process has promised. Where all others reach the other
    group, that keeps its leader (who may begin anew: parts.stamps, b), if its members know whom a leader must
    reach. And who is at the end of the links hears within `limit_us` of the delivery of what it has multicast."""
    changed = [p for p in parted.far if p in before and after[p].leader != before[p].leader]
    if len(parted.far) > 1 and parted.known and changed:
        text = f"process {parted.alone} reaches nobody in group {parted.groups[1]}, where all reach the rest, and"
        world.report("leaders", f"{text} processes {changed} have another leader")
    hears(world, parted.alone, limit_us)


def hears(world: World, sender: ProcessId, limit_us: int) -> None:
    """Once everything is delivered: so does whoever has multicast it."""
    protocol = world.nodes[sender].protocol
    if not world.run_while(lambda: not _MINE.isdisjoint(leftovers.kept(protocol)), limit_us):
        world.report("leftovers", f"process {sender} does not hear of the delivery of what it has multicast")


class Parting:
    """See the module. timeout_us: the longest timer. limit_us: how long anything may take. settle(): everything owed is
    there; False: not in time, or something else is wrong. tell(kind, processes): that takes place. ballots(): what each
    process has promised."""

    def __init__(
        self,
        world: World,
        rng: random.Random,
        judged: Judged,
        timeout_us: int,
        limit_us: int,
        settle: Callable[[], bool],
        tell: Callable[[str, tuple[ProcessId, ...]], None],
        ballots: Callable[[], Ballots],
    ):
        self._world = world
        self._rng = rng
        self._judged = judged
        self._timeout_us, self._limit_us = timeout_us, limit_us
        self._settle, self._tell, self._ballots = settle, tell, ballots

    def run(self) -> None:
        """Some never work again; what is for the groups at their ends is delivered everywhere, and only the leader who
        is at an end of all of them gives way."""
        world, parted = self._world, draw(self._world, self._rng)
        if parted is None:
            return
        before = self._ballots()
        world.network.block(parted.links)
        self._tell("parted", (parted.alone, *parted.far))
        for group in parted.groups:
            self._judged.multicast(self._rng.choice(self._members(group)), tuple(sorted(parted.groups)))
        self._judged.multicast(parted.alone, parted.groups[1:])
        world.run_for(self._timeout_us)
        if self._settle():
            self._judged.multicast(parted.alone, parted.groups[1:])  # by now it knows that it is cut off
        if self._settle():
            judge(world, parted, before, self._ballots(), self._limit_us)
        worse = self._rng.random() < _WORSE
        if not world.violations and worse and parted.may_worsen and not self._judged.expects_copies():
            self._worsen(parted)
        world.network.unblock(parted.links)
        if not world.violations and not self._judged.expects_copies():
            self._judge_left()

    def _judge_left(self) -> None:
        """When the links work again, and everybody has heard of something more, nobody keeps anything of it. (Once more
        if somebody does: a late copy of what was passed on, which came after that, is over with the next message.)"""
        groups, left = tuple(self._world.topology.groups), dict[ProcessId, dict[str, int]]()
        for _ in range(_TRIES):
            self._judged.multicast(self._rng.choice(self._members(groups[0])), groups)
            if not self._settle():
                return
            left = leftovers.wait(self._world, self._judged.left, self._timeout_us)
            if not left:
                return
        for pid, what in left.items():
            self._world.report("left", f"process {pid} keeps {what}, when broken links have long been mended")

    def _members(self, group: GroupId) -> list[ProcessId]:
        return [p for p in self._world.topology.groups[group] if self._world.belongs(p)]

    def _worsen(self, parted: Parted) -> None:
        """Others have less than it takes to do without them: a member more is cut off, or somebody restarts."""
        world, rng = self._world, self._rng
        members, cut_off = self._members(parted.groups[0]), [parted]
        others = [p for p in members if p != parted.alone]
        if rng.random() < _SECOND and len(members) - 2 >= self._needed(len(members)):
            cut_off.append(parted._replace(alone=rng.choice(others)))
        senders = tuple(one.alone for one in cut_off)
        for one in cut_off:
            world.network.block(one.links)
        self._tell("parted_more", senders[1:])
        world.run_for(_LONG_TIMEOUTS * self._timeout_us)
        restarts = rng.choice(list(world.topology.processes)) if rng.random() < _RESTARTS else None
        for sender in (*senders, parted.alone):
            self._judged.multicast(sender, parted.groups[1:])
            world.run_for(rng.choice((0, 200, 2_000)))
        if restarts is not None and world.nodes[restarts].up:
            self._tell("parted_restart", (restarts,))
            world.crash(restarts)
            world.schedule(world.now + rng.randint(0, self._timeout_us), world.restart, restarts)
            world.run_for(self._timeout_us)
        if self._settle():
            for sender in senders:
                hears(world, sender, self._limit_us)
        for one in cut_off:
            world.network.unblock(one.links)

    def _needed(self, members: int) -> int:
        """So many must reach all: of a group, where the leader is relieved by who does; a quorum of it where one leads
        all, who leaves the others out of the view."""
        elections = [node.protocol.election for node in self._world.nodes.values() if node.up]
        leading = {election.promised.leader for election in elections if election is not None}
        return 1 if len(leading) >= len(self._world.topology.groups) else quorum_of(members)
