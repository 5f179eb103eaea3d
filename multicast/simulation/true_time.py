"""Whether stamps keep to the time: what `multicast.discipline` argues, checked at each final delivery.

However many clocks are wrong, of n processes the (n - 1) // 2 whose clocks are furthest ahead must not move time. So at
each process the next one is taken for right, at its worst so far: of the own clock and of the others as this process
has last heard them, which may be long ago. (Two minorities that are wrong one after the other may together be a
majority of what one process has heard.) A final timestamp is ahead of that by at most the skew that is allowed, the
error of a comparison (half as much), and a microsecond for each stamp, for which the count of events stands. And what
is delivered in time for all that is not expired.
"""

from __future__ import annotations

from typing import Any

from multicast.protocol import Options
from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.simulation.scene import Node
from multicast.types import FINAL, ProcessId, created_us


class TrueTime(Checker):
    """options: the protocol's. With clock_skew_us_max=0 its default is demanded nevertheless."""

    def __init__(self, options: Options):
        super().__init__()
        self._window_us = options.dedup_window_us
        skew_us: int = options.clock_skew_us_max or type(options)().clock_skew_us_max
        self._allowed_us = skew_us + skew_us // 2
        self._ahead_us = 0
        self._heard: dict[ProcessId, dict[ProcessId, int]] = {}

    def on_life(self, node: Any) -> None:
        """From now on hear what its peers tell it of their clocks."""
        heard = self._heard[node.pid] = {}
        discipline = node.engine.discipline
        if discipline is not None:
            inner, begun_us = discipline.on_reading, node.begun_us

            def on_reading(peer: ProcessId, sent: int, wall: int, now: int) -> bool:
                counts: bool = inner(peer, sent, wall, now)
                if counts:
                    heard[peer] = wall - (sent + now) // 2 + begun_us
                    self._look(node)
                return counts

            discipline.on_reading = on_reading
        self._look(node)

    def on_fault(self, fault: Any, begins: bool) -> None:
        for node in self.world.nodes.values() if self.world is not None else ():
            if node.up:
                self._look(node)

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        message = delivery.message
        world = self.world
        if world is None or delivery.stage != FINAL or replay or not node.protocol.reads_real_clock():
            return
        self._look(node)
        limit = world.now + self._ahead_us + self._allowed_us + world.events
        if delivery.timestamp.time > limit:
            self.report(
                "true time",
                f"process {node.pid} delivers {message.id.hex()} at a timestamp that is"
                f" {(delivery.timestamp.time - world.now) / 1e6:.3f} s ahead of the time; no more than"
                f" {(limit - world.now) / 1e6:.3f} s can be right",
            )
        if delivery.expired and limit <= created_us(message.id) + self._window_us:
            age_us = world.now - created_us(message.id)
            self.report("true time", f"{message.id.hex()} is expired {age_us / 1e6:.3f} s after it was made")

    def _look(self, node: Any) -> None:
        """How far ahead the furthest clock is that may be right: of those that there are, and of those that this
        process knows. Who does not know yet that there are more counts without them."""
        if self.world is None:
            return
        nodes = [self.world.nodes[pid] for pid in node.protocol.topology.processes]
        wrong = (len(nodes) - 1) // 2
        for clocks in ([n.offset_us for n in nodes], [node.offset_us, *self._heard.get(node.pid, {}).values()]):
            if len(clocks) > wrong:
                self._ahead_us = max(self._ahead_us, sorted(clocks, reverse=True)[wrong])
