"""When everything has long been done, processes say that they live, and nothing else.

A question that is asked again and again though it was answered, a state that is sent once more, a watermark that is
told to whom knows it, an election without reason: all that costs messages, and does no harm that any other check sees.
So in a part of the runs, at the very end, nobody multicasts anything for a while, and only then it is counted what
leaves: of a few kinds of messages, as many as heartbeats allow. (A store multicasts something itself when a lease
expires, and whoever delivers that has to tell its watermark: so that must be long ago, too.) It draws from a generator
of its own, and nothing comes after it.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

from multicast.protocol import Options
from multicast.simulation.observe import Observer
from multicast.types import AppMessage, ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node
    from multicast.simulation.world import World

_SHARE = 0.35
_WAIT_TIMEOUTS, _WATCH_TIMEOUTS = 6, 6
"""So many of the longest timers until it is quiet, and while it is watched: what is asked for again after pauses that
have become long comes in there."""
_WAITS_MAX = 4
"""So often it is waited anew, as something was multicast or delivered meanwhile."""
_BEATS = frozenset(("Pulse", "Heartbeat", "Beat", "Alive"))
"""Once in a heartbeat."""
_REGULAR = _BEATS | {"Echo", "ClockProbe", "ClockReading", "ShardState"}
_BARRIERS = frozenset(("Accept", "Accepted", "Barrier", "Ack", "Proposed"))
"""Of periodic barriers (Algorithm 2 of the quasi-genuine protocol)."""


def judge(world: World, options: Options, timeout_us: int) -> None:
    """Report who is not quiet. timeout_us: the longest timer of the protocol."""
    if random.Random(f"{world.seed}/quiet").random() >= _SHARE:
        return
    multicasts = _Multicasts()
    world.observers.append(multicasts)

    def come() -> tuple[int, list[int]]:
        return multicasts.number, [node.engine.position for node in world.nodes.values() if node.up]

    world.run_until(max(world.now, world.network.calm_at))
    for _ in range(_WAITS_MAX):
        before = come()
        world.run_for(_WAIT_TIMEOUTS * timeout_us)
        if come() == before:
            break
    if any(node.up and not world.belongs(pid) for pid, node in world.nodes.items()):
        return  # who was removed and has not heard of it asks, and is answered
    nodes = {pid: node for pid, node in world.nodes.items() if node.up}
    sent: dict[ProcessId, Counter[str]] = {pid: Counter() for pid in nodes}
    for pid, node in nodes.items():
        _count(node.engine, sent[pid])
    watched_us = _WATCH_TIMEOUTS * timeout_us
    world.run_for(watched_us)
    for node in nodes.values():
        del node.engine._send
    if come() != before:
        return  # a late copy has come, or a store has multicast something itself: now, or in each of the waits
    regular = _REGULAR | (_BARRIERS if getattr(options, "liveness", "") == "periodic" else frozenset())
    beats_max = 3 + 3 * watched_us // (2 * getattr(options, "heartbeat_us", timeout_us))
    for pid, counts in sent.items():
        odd = {kind: n for kind, n in counts.items() if kind not in regular or (kind in _BEATS and n > beats_max)}
        if odd:
            text = f"process {pid} ({nodes[pid].protocol.role()}) sends {odd} in {watched_us / 1e6:.2f} s"
            world.report("quiet", f"{text}, when everything has long been done")


class _Multicasts(Observer):
    """How many there were."""

    number = 0

    def on_submit(self, node: Node, message: AppMessage) -> None:
        self.number += 1


def _count(engine: Any, counts: Counter[str]) -> None:
    """Count what this engine sends, by kinds."""
    send = engine._send

    def counting(to: tuple[ProcessId, ...], channel: int, message: Any, durable: bool) -> None:
        counts[type(message).__name__] += 1
        send(to, channel, message, durable)

    engine._send = counting
