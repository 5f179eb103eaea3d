"""What was delivered is remembered as long as somebody may ask for it, or bring a copy of it (parts.delivered).

A process forgets an id when its watermark has passed the delivery, and the id's creation, by two deduplication windows,
and the message is settled, and then it does; never without a window. A message that is settled its payload and its
stamps are dropped of: the watermark of every destination group has passed it. The harm in less takes a copy, an
election or a lost disk that comes just then. Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.types import FINAL, GroupId, MessageId, ProcessId, Timestamp, Topology, created_us

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]

_AMNESIAC = ("recovering", "rejoining")
_LOOK_EVERY = 32
"""Batches: what should have gone stays."""


class Remembered(Checker):
    """Of every process: what it has delivered and not forgotten, and what of that it keeps an entry of. Whether a
    message is settled is judged where it was delivered once, and in time: copies, and what is late, go by rules of
    their protocols."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._delivered: dict[MessageId, Delivered] = {}
        self._again: set[MessageId] = set()
        self._known: dict[ProcessId, dict[MessageId, Timestamp]] = {}
        self._kept: dict[ProcessId, set[MessageId]] = {}
        self._sizes: dict[ProcessId, tuple[int, int]] = {}
        self._begun: dict[ProcessId, int] = {}
        self._old: dict[ProcessId, set[MessageId]] = {}
        self._forgotten: dict[ProcessId, int] = {}

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        message_id = delivery.message.id
        if delivery.stage != FINAL:
            return
        before = self._delivered.setdefault(message_id, delivery)
        if before.timestamp != delivery.timestamp:
            self._again.add(message_id)
        if message_id in _log_of(node)._known:  # not so in a replay
            self._known[node.pid][message_id] = delivery.timestamp
            self._kept[node.pid].add(message_id)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        pid, known, entries = node.pid, _log_of(node)._known, getattr(node.protocol, "entries", None)
        if handler != "on_start":
            self._forgotten[pid] = _log_of(node)._forgotten
        if args[-1].settlements:
            self._judge_settled(node, args[-1].settlements)
        if handler == "on_tick" and node.engine._batch.number % _LOOK_EVERY == 0:
            self._judge_kept(node, args[0])
        before, sizes = self._sizes.get(pid, (0, 0)), (len(known), len(entries) if entries else 0)
        if sizes == before and handler != "on_start":
            return
        self._sizes[pid] = sizes
        if handler == "on_start":
            self._begun[pid] = _log_of(node).timestamp.time
            self._old.pop(pid, None)
            if max(0, _log_of(node)._forgotten) < self._forgotten.get(pid, 0) and not node.lost:
                self._wrong(node, "does not know up to when it has forgotten what it delivered")
            self._known[pid] = {i: at for i, (at, _) in known.items() if i in self._delivered}
            self._kept[pid] = {i for i in self._known[pid] if entries is not None and i in entries}
            return
        if len(known) < before[0]:
            for message_id in [i for i in self._known[pid] if i not in known]:
                self._judge_forgotten(node, message_id, self._known[pid].pop(message_id))
        if entries is not None and len(entries) < before[1]:
            for message_id in [i for i in self._kept[pid] if i not in entries]:
                self._kept[pid].discard(message_id)
                self._judge_dropped(node, message_id)

    def _judge_settled(self, node: Node, settled: list[tuple[MessageId, Timestamp, tuple[GroupId, ...]]]) -> None:
        """What is said to be settled, each of its groups has passed; and these are its destinations."""
        log = _log_of(node)
        for message_id, at, groups in settled:
            if any(log._group_watermarks[group] < at for group in groups):
                self._wrong(node, f"settles {message_id.hex()}, and not all of {groups} have passed it")
            late = log._window_us and at.time > created_us(message_id) + log._window_us
            message = self._delivered[message_id].message
            if not late and message_id not in self._again and groups != message.destinations:
                self._wrong(node, f"settles {message_id.hex()} in {groups}, of {message.destinations}")

    def _judge_forgotten(self, node: Node, message_id: MessageId, at: Timestamp) -> None:
        """What a life began with is durable."""
        log = _log_of(node)
        until = max(at.time, created_us(message_id)) + 2 * log._window_us
        now = max(log.watermark.time, self._begun[node.pid])
        if not log._window_us or now < until:
            self._wrong(node, f"forgets {message_id.hex()} at {now}, not {until}")
        unsettled = (i for queue in log._unsettled.values() for _, i in queue)
        if message_id not in self._again and message_id in unsettled:
            self._wrong(node, f"forgets {message_id.hex()}, which is not settled")

    def _judge_kept(self, node: Node, now: int) -> None:
        """Twice, where it has just forgotten what it may: who has lost its disk does not, until it is back. What the
        word of another group has brought back (`recall`) is remembered longer."""
        log, before = _log_of(node), self._old.pop(node.pid, set())
        if not log._window_us or not log._forgotten or not node.protocol.is_member():
            return
        if node.protocol.role() in _AMNESIAC or log._next_report not in (0, now + log._period_us):
            return
        old = [i for i, (at, position) in log._known.items() if position and log._bucket(i, at) < log._forgotten]
        if not old:
            return
        kept = self._old[node.pid] = set(old).difference(i for queue in log._unsettled.values() for _, i in queue)
        for message_id in sorted(kept & before)[:1]:
            self._wrong(node, f"remembers {message_id.hex()}, which is settled and old")

    def _judge_dropped(self, node: Node, message_id: MessageId) -> None:
        log, delivery = _log_of(node), self._delivered[message_id]
        at, in_time = delivery.timestamp, created_us(message_id) + log._window_us
        if message_id in self._again or (log._window_us and at.time > in_time):
            return
        if any(log._group_watermarks[group] < at for group in delivery.message.destinations):
            self._wrong(node, f"drops {message_id.hex()}, which is not settled")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("remembered", f"process {node.pid} {text}")


def _log_of(node: Node) -> Any:
    protocol: Any = node.protocol
    return protocol._log if protocol.specification.name == "skeen" else protocol.log
