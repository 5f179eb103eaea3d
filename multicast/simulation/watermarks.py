"""Watermarks: what other groups hear that a group holds, a majority of it has delivered (parts.delivered, `by_quorum`).

Of each view that counts (multicast.membership): so no delivery of which another group has heard goes with the disks of
a minority, whoever belongs to the next view. Nobody tells more than it knows, or what is not on its own disk; and what
a process told before it lost its disk counts no more. The harm in that takes such a loss, and an election after it.
Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from multicast.simulation.checkers import Checker
from multicast.types import ZERO, GroupId, ProcessId, Timestamp, Topology, is_majority

if TYPE_CHECKING:
    from multicast.simulation.scene import Node


class GroupWatermarks(Checker):
    """What a process takes for the watermark of a group, a majority of that has delivered: of every protocol."""

    watches_protocol = True

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self._reached: dict[ProcessId, Timestamp] = {}
        self._judged: dict[ProcessId, dict[GroupId, Timestamp]] = {}

    def on_life(self, node: Node) -> None:
        self._judged[node.pid] = {}

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        protocol: Any = node.protocol
        log = protocol._log if hasattr(protocol, "_log") else protocol.log
        judged, reached = self._judged[node.pid], self._reached
        if log.timestamp > reached.get(node.pid, ZERO):
            reached[node.pid] = log.timestamp
        for group, reached_at in log._group_watermarks.items():
            if reached_at <= judged.get(group, ZERO):
                continue
            judged[group] = reached_at
            holders = [p for p, at in reached.items() if at >= reached_at]
            if not all(is_majority(members, holders) for members in protocol.topology.counting(group)):
                text = f"process {node.pid} takes {reached_at} for the watermark of group {group}: {holders} have it"
                self.report("watermarks", text)


class Watermarks(Checker):
    """See the module. A watermark that was right once stays so, in whatever view it is told again."""

    watches_protocol = True

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self._delivered: dict[ProcessId, Timestamp] = {}
        self._unsynced: dict[ProcessId, deque[tuple[int, Timestamp]]] = {}
        self._right: dict[GroupId, Timestamp] = {}

    def on_life(self, node: Node) -> None:
        self._unsynced[node.pid] = deque()

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        protocol: Any = node.protocol
        pid, log, group_of = node.pid, protocol.log, protocol.topology.group_of
        if log.timestamp > self._delivered.get(pid, ZERO):
            self._delivered[pid] = log.timestamp
            self._unsynced[pid].append((node.ran + 1, log.timestamp))
        group, reached_at = group_of[pid], log._group_watermarks[group_of[pid]]
        if reached_at > self._right.get(group, ZERO):
            self._right[group] = reached_at
            holders = [p for p, at in self._delivered.items() if at >= reached_at]
            if not all(is_majority(members, holders) for members in protocol.topology.views[group].counting):
                self._wrong(node, f"takes {reached_at} for its group's: {sorted(holders)} have it")
        if handler == "on_message" and type(args[1]).__name__ == "Returned" and log.watermark_of(args[0]) != ZERO:
            self._wrong(node, f"counts on what process {args[0]} told before it lost its disk")
        for to, message, _ in sends:
            if type(message).__name__ == "Watermark":
                own = all(group_of[p] == group for p in to)
                self._judge(node, message.watermark, log.watermark if own else reached_at, own)

    def _judge(self, node: Node, told: Timestamp, known: Timestamp, own: bool) -> None:
        unsynced = self._unsynced[node.pid]
        while unsynced and unsynced[0][0] <= node.flushed:
            unsynced.popleft()
        if told > known:
            self._wrong(node, f"tells {told} and knows of {known}")
        elif own and unsynced and told >= unsynced[0][1]:
            self._wrong(node, f"tells {told}, and its delivery is not on disk yet")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("watermarks", f"process {node.pid} {text}")
