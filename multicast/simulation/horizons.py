"""PrimCast: what a process counts on when it delivers has been said by majorities, and is so (lines 9-30).

*Horizon*: nothing that a group stamps later is stamped up to it, and what is delivered is not above it. So whoever is
in the same epoch, or a later one, and has a longer T, has nothing there that is stamped so low. (Who does not take part
in an epoch, as that has not begun, does not count on anything in it, and it may never begin.) *Quorum clock*: a
majority of some view have had clocks so high; it is no lower than what the present members have told, and what a member
told before it lost its disk is forgotten when that says so. *Decided*: what a delivery's timestamp is made of, a
majority of the group has acknowledged in one epoch. *Hole*: whoever has a T as long as a place of its primary's T has
there what the primary has, or has delivered it; or waits for it, as the primary has (`reach`). The harm in less takes a
message that comes just then, and an election by just those who do not know of it. Like in `invariants`, variables of
protocols are known by name only.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.types import FINAL, Ballot, GroupId, MessageId, ProcessId, Topology, is_majority, reached_by_majority

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

_decode_note = msgspec.msgpack.Decoder(tuple[Ballot, int]).decode


class _Known:
    """Of one life: in which epoch, with a T so long, nothing more comes up to `horizon`."""

    __slots__ = ("epoch", "horizon", "length")

    def __init__(self, epoch: Ballot, length: int, horizon: int):
        self.epoch = epoch
        self.length = length
        self.horizon = horizon


class Horizons(Checker):
    """See the module."""

    watches_protocol = True

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self._known: dict[ProcessId, _Known] = {}
        self._clocks: dict[ProcessId, int] = {}
        self._quorum_clocks: dict[ProcessId, int] = {}
        self._epochs: dict[ProcessId, Ballot] = {}
        self._told: dict[ProcessId, dict[Ballot, set[tuple[int, int]]]] = {}
        self._acknowledged: dict[tuple[MessageId, GroupId, int], dict[Ballot, set[ProcessId]]] = {}

    def on_life(self, node: Node) -> None:
        self._known.pop(node.pid, None)
        self._quorum_clocks[node.pid] = 0
        self._epochs.pop(node.pid, None)
        self._told[node.pid] = {}

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        protocol: Any = node.protocol
        pid, clocks = node.pid, protocol.clocks
        self._clocks[pid] = max(self._clocks.get(pid, 0), protocol.clock.value)
        if handler == "on_message" and hasattr(args[1], "clock") and hasattr(args[1], "length"):
            self._hear(pid, args[0], args[1])
        if clocks.epoch != self._epochs.get(pid):
            told = self._told[pid].get(clocks.epoch, set())
            self._told[pid] = {epoch: some for epoch, some in self._told[pid].items() if epoch >= clocks.epoch}
            if clocks._report != (0, 0) and clocks._report not in told:
                text = f"process {pid} counts in {tuple(clocks.epoch)} on what an earlier primary has told of its clock"
                self.report("horizon", text)
            self._epochs[pid] = clocks.epoch
            reached = reached_by_majority(clocks._clocks.values())
            if clocks.quorum_clock < reached:
                self.report("quorum", f"process {pid} has quorum clock {clocks.quorum_clock}; {reached} is reached")
        heard: Any = args[1] if handler == "on_message" else None
        kind = type(heard).__name__
        if kind == "Returned" and (clocks._clocks.get(args[0]) or args[0] in clocks._future):
            self.report("quorum", f"process {pid} counts on what {args[0]} told before it lost its disk")
        for _, message, _ in sends:
            if type(message).__name__ == "Ack":
                for stamp in message.stamps:
                    key = (stamp.id, protocol.group, stamp.ts)
                    self._acknowledged.setdefault(key, {}).setdefault(stamp.epoch, set()).add(pid)
        if clocks.quorum_clock > self._quorum_clocks[pid]:
            self._quorum_clocks[pid] = clocks.quorum_clock
            self._judge_quorum_clock(node, protocol.group, clocks.quorum_clock)
        if not protocol.is_member():
            self._known.pop(pid, None)
            return
        before, epoch = self._known.get(pid), protocol.leadership.joined
        counted_on = before.horizon if before is not None and before.epoch == epoch else 0
        horizon = clocks.horizon if protocol.election.takes_part else counted_on
        now = _Known(epoch, protocol.t.length, horizon)
        if before is None or (before.epoch, before.length, before.horizon) != (now.epoch, now.length, now.horizon):
            self._known[pid] = now
            if kind in ("Refill", "NewState") and protocol.t.reach < heard.reach:
                self.report("hole", f"process {pid} has T with reach {protocol.t.reach}, its primary had {heard.reach}")
            self._judge_horizon(node, protocol, before, now)
            same = before is not None and before.epoch == epoch
            self._judge_holes(node, protocol, range(before.length if before is not None and same else 0, now.length))

    def _hear(self, pid: ProcessId, sender: ProcessId, message: Any) -> None:
        """What a primary has told of its clock, and of T's length by then."""
        epoch = message.epoch if hasattr(message, "epoch") else message.ballot
        if sender == epoch.leader:
            self._told[pid].setdefault(epoch, set()).add((message.clock, message.length))

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        if replay or delivery.stage != FINAL or delivery.expired or delivery.installed_from is not None:
            return
        message, final, note = delivery.message, delivery.timestamp, _decode_note(delivery.note)
        group, protocol = node.world.topology.group_of[node.pid], node.protocol
        horizon: int = protocol.clocks.horizon  # type: ignore[attr-defined]
        if final.time > horizon:
            self.report("horizon", f"process {node.pid} delivers at {final.time}, and more may come up to {horizon}")
        for of, ts in {(group, note[1]), (final.tiebreak, final.time)}:
            told = self._acknowledged.get((message.id, of, ts), {})
            if not any(self._is_majority(node, of, some) for some in told.values()):
                text = f"process {node.pid} delivers {message.id.hex()} by the stamp {ts} of group {of}"
                self.report("quorum", f"{text}, which no majority has acknowledged in one epoch: {told}")

    def _is_majority(self, node: Node, group: GroupId, processes: Collection[ProcessId]) -> bool:
        return any(is_majority(m, processes) for m in node.world.topology.views[group].of.values())

    def _judge_quorum_clock(self, node: Node, group: GroupId, clock: int) -> None:
        reached = [p for p, at in self._clocks.items() if at >= clock]
        if not self._is_majority(node, group, reached):
            self.report("quorum", f"process {node.pid} has quorum clock {clock}, and only {reached} have come so far")

    def _judge_horizon(self, node: Node, protocol: Any, before: _Known | None, now: _Known) -> None:
        """Against all others of its group, as who knows less of T, and as who knows more."""
        places = protocol.t._places
        begin = before.length if before is not None and before.epoch == now.epoch else 0
        for pid in node.world.topology.groups[protocol.group]:
            other, peer = self._known.get(pid), node.world.nodes[pid]
            if other is None or pid == node.pid or not peer.up:
                continue
            if other.epoch <= now.epoch:
                self._judge_places(pid, other, node.pid, places, range(max(begin, other.length), now.length))
            if other.epoch >= now.epoch and (before is None or now.horizon > before.horizon):
                theirs: Any = peer.protocol
                self._judge_places(node.pid, now, pid, theirs.t._places, range(now.length, other.length))

    def _judge_holes(self, node: Node, protocol: Any, places: range) -> None:
        """Of what its primary has at these places."""
        epoch = protocol.leadership.joined
        primary: Any = node.world.nodes[epoch.leader].protocol
        known = self._known.get(epoch.leader)
        if known is None or known.epoch != epoch or epoch.leader == node.pid:
            return
        for place in places:
            theirs = primary.t._places.get(place)
            if theirs is None or protocol.copies.delivered_as(theirs.id, theirs.ts):
                continue
            own = protocol.entries.get(theirs.id)
            has = own is not None and own.epoch is not None
            waits = 0 < theirs.position <= max(protocol.t.reach, protocol.log.position)
            if not has and not waits and not protocol.copies.is_forgotten(theirs.id, theirs.ts):
                text = f"process {node.pid} has T up to place {protocol.t.length}, and not {theirs.id.hex()} at {place}"
                self.report("hole", text)

    def _judge_places(
        self, pid: ProcessId, known: _Known, other: ProcessId, places: dict[int, Any], more: range
    ) -> None:
        for place in more:
            entry = places.get(place)
            if entry is not None and entry.epoch is not None and entry.ts <= known.horizon:
                text = f"process {pid} has T up to place {known.length} and counts on nothing more up to"
                self.report("horizon", f"{text} {known.horizon}; process {other} has {entry.ts} at place {place}")
