"""Members come and go: the views of a world's groups, and changes of them as a drawn fault.

A change is multicast like any message, by somebody of its group, and again under another id, for another view, until
the group is as it should be: what somebody does who wants a replica added or removed. A process that is to be added is
started just before, on an empty disk. Who is removed goes on running until it is told.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from multicast.membership import Change, Membership, change_of, change_payload
from multicast.protocol import Specification
from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.simulation.drawing import Size
from multicast.simulation.fault import Fault
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, GroupId, MessageId, ProcessId, Topology, new_message_id

_TRIES_MAX = 8
_LEADER, _REMOVED = "leader", "removed"


class Planned(NamedTuple):
    """At this instant of the run, in this group: add one, or remove one. twice: and the opposite with another one,
    without waiting."""

    at_us: int
    group: GroupId
    adds: bool
    twice: bool


def draw(
    rng: random.Random, chosen: Size, topology: Topology, span_us: int, specification: Specification
) -> list[Planned]:
    """In a part of the runs."""
    if not specification.changes_members or rng.random() >= chosen.changes_share:
        return []
    groups = list(topology.groups)
    if rng.random() < 0.5:
        groups = [rng.choice(groups)]
    count = rng.choice(chosen.changes)
    added = dict.fromkeys(groups, 0)
    planned = []
    for at in sorted(rng.randrange(span_us * 3 // 4) for _ in range(count)):
        group = rng.choice(groups)
        adds = rng.random() < 0.5 and added[group] < chosen.spares_max
        added[group] += adds
        planned.append(Planned(at, group, adds, rng.random() < 0.4))
    return planned


def with_spares(topology: Topology, planned: list[Planned]) -> Topology:
    """The same, with processes that can be added."""
    free = max(topology.processes) + 1
    spares: dict[GroupId, list[ProcessId]] = {}
    for change in planned:
        if change.adds or change.twice:
            spares.setdefault(change.group, []).append(free)
            free += 1
    return Topology(topology.groups, spares)


def strike(rng: random.Random, topology: Topology, faults: list[Fault]) -> list[Fault]:
    """Some of these faults at those who are added."""
    struck = []
    for fault in faults:
        if "lost_disk" in (fault.kind, fault.then) or fault.kind in ("second_loss", "handed_down"):
            struck.append(fault)
            continue
        spares = topology.spares.get(topology.group_of[fault.processes[0]], ())
        if len(fault.processes) == 1 and spares and rng.random() < 0.25:
            other = rng.choice(spares)  # whom a fault of a group that is added may have among its peers
            peers = tuple(p for p in fault.peers if p != other)
            fault = msgspec.structs.replace(fault, processes=(other,), peers=peers, aimed=False)
        struck.append(fault)
    return struck


class Joins(Checker):
    """Of one run: lets the planned changes happen, and keeps the world's topology, a `Membership`, up to date: a view
    exists as soon as somebody has delivered what makes it, and counts alone once all of it know that it has begun.

    It reports a change of a view that has not begun, and what somebody vouches for who does not belong to the group.
    payload: what the application is given with a change. open: changes that were multicast and not delivered. counts:
    those that took place.
    """

    watches_protocol = True

    def __init__(self, specification: Specification, rng: random.Random, patience_us: int, payload: bytes = b""):
        super().__init__()
        self.open: set[MessageId] = set()
        self.counts: dict[str, int] = {}
        self._vouching = frozenset(specification.vouching)
        self._rng = rng
        self._patience_us = patience_us
        self._payload = payload
        self._over = False
        self._positions: dict[GroupId, int] = {}
        self._made: dict[GroupId, list[int]] = {}
        self._noted: dict[ProcessId, int] = {}
        self._spares: dict[GroupId, list[ProcessId]] = {}

    @property
    def _there(self) -> World:
        assert self.world is not None
        return self.world

    def plan(self, planned: Sequence[Planned]) -> None:
        """They begin in the world, which has just started."""
        self._spares = {group: list(spares) for group, spares in self._there.topology.spares.items()}
        for change in planned:
            self._there.schedule(self._there.now + change.at_us, self._begin, change)

    def stop(self) -> bool:
        """No more changes. Whether some may still be delivered."""
        self._over = True
        return bool(self.open)

    # -- changes ------------------------------------------------------------------------------------------------------

    def _begin(self, planned: Planned) -> None:
        members = self._there.topology.views[planned.group].counting[-1]
        first, second = self._whom(planned, members), None
        if planned.twice and first is not None:
            again = planned._replace(adds=not planned.adds)
            second = self._whom(again, tuple(p for p in members if p != first))
        if first is not None:
            self._try(planned.group, planned.adds, first, _TRIES_MAX, second)

    def _whom(self, planned: Planned, members: Sequence[ProcessId]) -> ProcessId | None:
        """Who is to be added, and started, or removed."""
        if self._over or (not planned.adds and len(members) < 2):
            return None
        if not planned.adds:
            return self._rng.choice(members)
        spares = self._spares.get(planned.group)
        process = spares.pop(0) if spares else None
        if process is not None:
            self._there.restart(process)
        return process

    def _try(
        self, group: GroupId, adds: bool, process: ProcessId, left: int, second: ProcessId | None = None
    ) -> None:
        """Until the group is as it should be, or has become another one than who is to be added has been told of: it
        would link to none of them. second: with whom the opposite is to happen next, asked for at once, unless that
        leaves nobody whom the one of both that is added has been told of."""
        world, views = self._there, self._there.topology.views[group]
        ever = any(process in members for members in views.of.values())
        if self._over or not left or (ever if adds else process not in views.of[views.latest]):
            return
        if adds and not self._would_link(process, views.of[views.latest]):
            return
        ready = [p for p in world.topology.groups[group] if world.nodes[p].up]
        if ready:
            origin = self._rng.choice(ready)
            known = world.nodes[origin].protocol.topology.views[group]
            before = known.of[known.latest]
            if (process in before) != adds and (adds or len(before) > 1):
                self._multicast(origin, group, self._change(known.latest, adds, process))
                newcomer, leaving = (process, second) if adds else (second, process)
                rest = [p for p in before if p != leaving]
                if second is not None and (second in before) == adds and self._would_link(newcomer, rest):
                    self._multicast(origin, group, self._change(known.latest + 1, not adds, second))
        world.schedule(world.now + self._patience_us, self._try, group, adds, process, left - 1, second)

    def _change(self, view: int, adds: bool, process: ProcessId) -> Change:
        return Change(view, adds, process, self._payload, _note_of(process) if adds else b"")

    def _would_link(self, newcomer: ProcessId | None, members: Sequence[ProcessId]) -> bool:
        """To one of these at least."""
        nodes = self._there.nodes
        return newcomer is not None and any(nodes[newcomer].knows(nodes[p]) for p in members)

    def _multicast(self, origin: ProcessId, group: GroupId, change: Change) -> None:
        world = self._there
        identity = new_message_id(world.now, self._rng.getrandbits(62))
        self.open.add(identity)
        world.submit(origin, AppMessage(identity, (group,), change_payload(change), origin))

    # -- what becomes of them -----------------------------------------------------------------------------------------

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        topology = self._there.topology
        group = topology.group_of[node.pid]
        if delivery.stage != FINAL or delivery.position != self._positions.get(group, 0) + 1:
            return
        self._positions[group] = delivery.position
        self.open.discard(delivery.message.id)
        change, views = change_of(delivery.message), topology.views[group]
        had_begun = not views.latest or (group, views.latest) in self._there.led
        if change is not None and views.change(change):
            self._made.setdefault(group, []).append(delivery.position)
            what = "added" if change.adds else "removed"
            self.counts[what] = self.counts.get(what, 0) + 1
            for observer in self._there.observers:
                observer.on_fault(Fault(what, 0, 0, (change.process,)), True)
            topology.follow(group)
            if not had_begun:
                self.report("members", f"group {group}: {change} takes place before that view has begun")

    def _is_known(self, group: GroupId) -> bool:
        """Whether all members know that the last view has begun: only then may any minority of it die for good."""
        views, nodes = self._there.topology.views[group], self._there.nodes
        there = [nodes[pid] for pid in views.of[views.latest]]
        known = [node.protocol.topology.views[group] for node in there if node.up]
        return len(known) == len(there) and all(
            own.latest == views.latest and len(own.counting) == 1 for own in known
        )

    def on_life(self, node: Node) -> None:
        """Who puts a new disk in gives it a file that names somebody of its group."""
        self._noted.pop(node.pid, None)
        topology = self._there.topology
        others = set(topology.groups[topology.group_of[node.pid]]) - {node.pid}
        if node.lost and others.isdisjoint(node.met):
            node.met = topology.processes

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        leadership: Any = node.protocol.leadership  # type: ignore[attr-defined]
        topology = self._there.topology
        group = topology.group_of[node.pid]
        views = topology.views[group]
        if leadership.election.state == _LEADER:
            self._there.led.add((group, leadership.joined.view))
        if len(views.counting) > 1 and (group, views.latest) in self._there.led and self._is_known(group):
            views.begin(views.latest)
            topology.follow(group)
        own = leadership.election
        self._judge_views(node, group, leadership)
        view = (leadership.joined if own.is_member else own.promised).view
        if sends and node.pid not in views.of.get(view, ()) and node.pid not in views.of.get(view - 1, ()):
            for _, message, _ in sends:
                if type(message) in self._vouching:
                    what = type(message).__name__
                    self.report("members", f"process {node.pid} sends {what} and does not belong to view {view}")

    def _judge_views(self, node: Node, group: GroupId, leadership: Any) -> None:
        """It has the views that its deliveries have made, joins no ballot of others, and takes none for begun that has
        not."""
        known = leadership.election.views
        self._judge_notes(node, leadership.membership)
        if leadership.joined.view > known.latest:
            self.report("members", f"process {node.pid} has joined {leadership.joined} and knows view {known.latest}")
        if known.latest and len(known.counting) == 1 and (group, known.latest) not in self._there.led:
            self.report("members", f"process {node.pid} takes view {known.latest} for begun, in which nobody leads")
        if leadership.election.state == _REMOVED or (not known.latest and group not in self._made):
            return
        position = node.protocol.log.position  # type: ignore[attr-defined]
        made = sum(at <= position for at in self._made.get(group, ()))
        if known.latest < made:
            text = f"process {node.pid} knows view {known.latest}, and has delivered what made view {made}"
            self.report("members", text)

    def _judge_notes(self, node: Node, known: Membership) -> None:
        """Of each process that was added, whoever knows of it knows what hosts must."""
        many = sum([len(views.of) for views in known.views.values()])
        if many == self._noted.get(node.pid, len(known.views)):
            return
        self._noted[node.pid] = many
        for group, views in known.views.items():
            there = self._there.topology.views[group].of
            for process in {p for members in views.of.values() for p in members}.difference(there[0]):
                if views.notes.get(process) != _note_of(process):
                    text = f"process {node.pid} knows that {process} was added, and not what was noted of it"
                    self.report("members", text)


def _note_of(process: ProcessId) -> bytes:
    return b"process %d" % process
