"""A world that is healed goes on soon: `STALL_TIMEOUTS` timers later every group has delivered something fresh,
whatever is still owed. Everything owed is there in the end, says the limit of liveness; it is long, and who stands
still for a great many retries before somebody notices passes it.

- *When the faults are over*, in a part of the runs, each group is asked at once: a member multicasts to it alone.
- *Wherever something is owed* not everything may stand still for so long.
- *Who is heard and does not hear*: in a part of the runs, at the very end, the leader of a group does not reach one of
  its members, which it hears, and in another group a process dies. The rest must go on as if both had died; and when
  all is well again, everybody has everything. (Where one leads all groups and candidates ask nobody first, whoever does
  not hear the leader deposes it; it may be of that other group, of which the new one then hears no quorum.)

All of this draws from a generator of its own, and all but the first is done when nothing else is left to judge or by
watching alone: it changes no other run.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from multicast.records import Delivered
from multicast.simulation.observe import Observer
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, quorum_of

if TYPE_CHECKING:
    from multicast.simulation.scene import Node
    from multicast.simulation.world import World

STALL_TIMEOUTS = 12
"""So many of the protocol's longest timers a group may take to go on: three elections in a row fail at times."""
LINK_US = 50_000
"""What has no timers waits for its links alone."""
_ASKED_SHARE = 0.3
_DEAF_SHARE = 0.3


class Multicasts(Protocol):
    """Of `endings.Judged`."""

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None: ...


class Stalls(Observer):
    """timeout_us: the longest timer. asks, deafens: whether this run has the first and the last of the above.

    last_us: when something was delivered last, anywhere.
    """

    def __init__(self, world: World, judged: Multicasts, rng: random.Random, timeout_us: int):
        self.most_us = STALL_TIMEOUTS * timeout_us
        self._timeout_us = timeout_us
        self.asks, self.deafens = rng.random() < _ASKED_SHARE, rng.random() < _DEAF_SHARE
        self.last_us = 0
        self._world = world
        self._judged = judged
        self._rng = rng
        self._known: set[MessageId] = set()
        self._asking: dict[ProcessId, GroupId] = {}
        self._asked: dict[MessageId, GroupId] = {}
        self._waiting: dict[GroupId, int] = {}
        self._took: dict[GroupId, int] = {}

    # -- watching -----------------------------------------------------------------------------------------------------

    def on_submit(self, node: Node, message: AppMessage) -> None:
        fresh = message.id not in self._known
        self._known.add(message.id)
        if fresh and message.destinations == (self._asking.get(node.pid),):
            group = self._asking.pop(node.pid)
            self._asked[message.id] = group
            self._waiting[group] = self._world.now

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if replay or delivery.stage != FINAL:
            return
        self.last_us = self._world.now
        group = self._asked.pop(delivery.message.id, None)
        if group is not None:
            self._took[group] = self._world.now - self._waiting.pop(group)

    # -- asking -------------------------------------------------------------------------------------------------------

    def ask(self, but: Collection[ProcessId]) -> None:
        """Every group, by one of its members that is none of these."""
        world = self._world
        self._took.clear()
        for group, members in world.topology.groups.items():
            able = [p for p in members if p not in but and world.nodes[p].up and world.belongs(p)]
            if able:
                sender = self._rng.choice(able)
                self._asking[sender] = group
                self._judged.multicast(sender, (group,))

    def is_waiting(self) -> bool:
        """Whether a group has not delivered what it was asked last."""
        return bool(self._waiting or self._asking)

    def judge(self, why: str) -> None:
        """Whoever took too long, or has not answered yet."""
        now = self._world.now
        took = self._took | {group: now - since for group, since in self._waiting.items()}
        for group, us in sorted(took.items()):
            if us > self.most_us:
                self._report(f"group {group} delivers nothing fresh for {us / 1e6:.2f} s {why}")
        self._asked.clear()
        self._asking.clear()
        self._waiting.clear()

    def watch(self, since: int) -> None:
        """Something is owed, and has been since then."""
        us = self._world.now - max(since, self.last_us)
        if us > self.most_us:
            self._report(f"something is owed, and nothing is delivered anywhere for {us / 1e6:.2f} s")
            self.last_us = self._world.now

    def _report(self, text: str) -> None:
        self._world.report("stall", f"{text}; {self.most_us / 1e6:.2f} s is enough")

    # -- who is heard and does not hear -------------------------------------------------------------------------------

    def deafen(self) -> tuple[ProcessId, ...]:
        """See above; whom that concerned, if there was anybody."""
        world, rng = self._world, self._rng
        groups = {g: [p for p in members if world.belongs(p)] for g, members in world.topology.groups.items()}
        large = [g for g, members in groups.items() if len(members) >= 3]
        if len(large) < 2:
            return ()
        here, there = rng.sample(large, 2)
        protocol = world.nodes[groups[here][0]].protocol
        election = protocol.election
        leader = protocol.leader_of(here) if election is None else election.promised.leader  # ToTo: one for all
        if leader is None:
            return ()
        deaf = rng.choice([p for p in groups[here] if p != leader])
        dying = rng.choice([p for p in groups[there] if p != leader])
        unheard = {dying, leader}.intersection(groups[there])
        if not getattr(protocol.options, "ask_first", True) and len(groups[there]) - len(unheard) < quorum_of(
            len(groups[there])
        ):  # who asks nobody takes over the lead of all, and hears no quorum of that group
            return ()
        world.network.block([(leader, deaf)])
        world.crash(dying)
        world.run_for(2 * self._timeout_us)  # whoever is missed is missed now
        self.ask((deaf, dying, leader))  # what it sends to a new leader may not arrive: that may be the deaf one
        world.run_while(self.is_waiting, self.most_us + 1)
        self.judge(f"when process {leader} does not reach process {deaf}, and process {dying} has died")
        world.network.unblock([(leader, deaf)])
        world.restart(dying)
        return deaf, dying
