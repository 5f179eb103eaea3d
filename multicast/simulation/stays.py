"""What a process keeps of what was over before everything restarts, which would clear it away.

Looked at twice, when everything owed is there and right before the restart: whatever was held then (`STAYS`) and is
held still, though many timers have passed, stays. It only watches. (Of what `leftovers` looks at, what a protocol
itself keeps for long, lest somebody asks, is not judged here.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from multicast.simulation import leftovers

if TYPE_CHECKING:
    from multicast.simulation.world import World

STAYS: dict[str, tuple[str, ...]] = {
    "Assembly": ("_lists",),
    "Election": ("_asked", "_votes"),
    "Instances": ("_chosen", "_taken"),
    "LeaderReads": ("_rounds", "_waiting"),
    "LeadersWord": ("_heard", "_said"),
    "Leadership": ("_held",),
    "Paxos": ("_accepting",),
    "PrimCast": ("_proposable",),
    "Reign": ("_positions", "held", "in_flight"),
    "StateTransfer": ("_waiting",),
    "WhiteBox": ("_acks", "_early"),
}
"""Like `leftovers.GOES`."""


class Look:
    """At what all processes keep now."""

    def __init__(self, world: World):
        self._world = world
        self._since = world.now
        here = {pid: node.protocol for pid, node in world.nodes.items() if node.up and world.belongs(pid)}
        self._things = {pid: (one, leftovers.things(one, STAYS)) for pid, one in here.items()}

    def judge(self, least_us: int) -> None:
        """Report who still keeps the same, if so much time has passed."""
        world = self._world
        passed = world.now - self._since
        if passed < least_us:
            return
        for pid, (protocol, things) in self._things.items():
            if world.nodes[pid].protocol is not protocol:
                continue
            still = things.keys() & leftovers.things(protocol, STAYS).keys()
            if still:
                what = f"the same things in {sorted({name for _, name, _ in still})}"
                text = f"process {pid} ({protocol.role()}) keeps {what} for {passed / 1e6:.2f} s, when all is well"
                world.report("left", text)
