"""Links that are broken for good while all others work: who may be left without a connection to whom.

In such a world there can always be leaders that reach one another, and messages are delivered everywhere: by another
leader where the present one is at the end of a broken link (`parts.reach`), by fetching from peers elsewhere.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from multicast.simulation.leftovers import kept
from multicast.types import Ballot, GroupId, ProcessId

if TYPE_CHECKING:
    from multicast.simulation.world import World

Ballots = Mapping[ProcessId, Ballot]

_MINE = {"pending", "submitted"}
"""Of `leftovers.kept`: what a sender waits for, under a protocol or another."""
_LEAST = 3
"""Members of a group of which one can do without the rest."""


class Parted(NamedTuple):
    """`alone`, of the first of these groups, has no connection to `far`, of the second: its leader, or all of it.
    known: all of the second know who leads the first."""

    groups: tuple[GroupId, GroupId]
    alone: ProcessId
    far: tuple[ProcessId, ...]
    known: bool

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
    if len(leading) < len(groups):
        far = far[:1]  # ToTo: one leader for all, who leaves out of the view whom it does not reach
        if not getattr(nodes[0].protocol.options, "ask_first", True) and leading & {alone, *far}:
            return None  # and who deposes it for that, again and again, if it need not ask the others first
    known = all(world.nodes[p].protocol.leader_of(one) == led[one] for p in groups[other])
    return Parted((one, other), alone, tuple(far), known)


def judge(world: World, parted: Parted, before: Ballots, after: Ballots, limit_us: int) -> None:
    """Once everything is delivered. before, after: what each process has promised. Where all others reach the other
    group, that keeps its leader (who may begin anew: parts.stamps, b), if its members know whom a leader must
    reach. And who is at the end of the links hears within `limit_us` of the delivery of what it has multicast."""
    changed = [p for p in parted.far if p in before and after[p].leader != before[p].leader]
    if len(parted.far) > 1 and parted.known and changed:
        text = f"process {parted.alone} reaches nobody in group {parted.groups[1]}, where all reach the rest, and"
        world.report("leaders", f"{text} processes {changed} have another leader")
    protocol = world.nodes[parted.alone].protocol
    if not world.run_while(lambda: not _MINE.isdisjoint(kept(protocol)), limit_us):
        world.report("leftovers", f"process {parted.alone} does not hear of the delivery of what it has multicast")
