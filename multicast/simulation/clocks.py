"""What a wrong clock does: one process's, a minority's, those of one leader of each group; with and without discipline.

Two groups of three, messages to one or both of them every 20 ms. After two seconds the clocks jump, five seconds later
they are right again, and two seconds after that it is over.
"""

from __future__ import annotations

import random

import msgspec

from multicast.application import Application
from multicast.protocol import MulticastProtocol
from multicast.records import Delivered
from multicast.simulation.checkers import Checker, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.scene import EPOCH_US, Node
from multicast.simulation.world import World
from multicast.types import FINAL, AppMessage, MessageId, ProcessId, Topology, created_us, new_message_id

_SECOND = 1_000_000
_WINDOW_US = 120 * _SECOND
_EVERY_US = 20_000
JUMPS_US = tuple(sign * us for us in (_SECOND, 300 * _SECOND, 86_400 * _SECOND) for sign in (1, -1))
WHERE = {"one": (1,), "minority": (1, 4), "leaders": (0, 3)}
"""Who, of two groups of three; processes 0 and 3 lead at first."""


class Effect(msgspec.Struct, kw_only=True):
    """ahead_us: of the time, the furthest timestamp. slowest_us: from a message's creation to its last delivery.
    missing: messages that some destination has not delivered. handed_over: groups with another leader than before."""

    messages: int
    expired: int
    missing: int
    ahead_us: int
    slowest_us: int
    handed_over: int


class _Watch(Checker):
    def __init__(self) -> None:
        super().__init__()
        self.expired: set[MessageId] = set()
        self.delivered: dict[MessageId, int] = {}
        self.ahead_us = self.slowest_us = 0

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        message = delivery.message
        if delivery.stage == FINAL:
            if delivery.expired:
                self.expired.add(message.id)
            self.delivered[message.id] = self.delivered.get(message.id, 0) + 1
            self.ahead_us = max(self.ahead_us, delivery.timestamp.time - node.world.now)
            self.slowest_us = max(self.slowest_us, node.world.now - created_us(message.id))


def measure(protocol: type[MulticastProtocol], where: str, jump_us: int, disciplined: bool) -> Effect:
    """One run. where: a key of WHERE."""
    topology = Topology.grid(2, 3)
    values = {"clock": "hybrid", "dedup_window_us": _WINDOW_US} | ({} if disciplined else {"clock_skew_us_max": 0})
    options = msgspec.convert(values, protocol.specification.options)

    def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, options, rng), Application()

    world, watch, rng = World(topology, make, "clocks"), _Watch(), random.Random("clocks")
    attach(world, watch)
    sent: dict[MessageId, int] = {}

    def send() -> None:
        groups = rng.choice(((0,), (1,), (0, 1)))
        identity = new_message_id(world.now, rng.getrandbits(62))
        message = AppMessage(identity, groups, b"", rng.choice(topology.processes))
        sent[message.id] = len(topology.members(groups))
        world.submit(message.origin, message)
        if world.now < EPOCH_US + 8 * _SECOND:
            world.after(_EVERY_US, send)

    world.start()
    world.after(_SECOND, send)
    world.run_for(2 * _SECOND)
    before = [world.node(m[0]).protocol.leader_of(g) for g, m in topology.groups.items()]
    for pid in WHERE[where]:
        world.jump_clock(pid, jump_us)
    world.run_for(5 * _SECOND)
    for pid in WHERE[where]:
        world.jump_clock(pid, -jump_us)
    world.run_for(2 * _SECOND)
    after = [world.node(m[0]).protocol.leader_of(g) for g, m in topology.groups.items()]
    missing = sum(watch.delivered.get(message_id, 0) < count for message_id, count in sent.items())
    return Effect(
        messages=len(sent), expired=len(watch.expired), missing=missing, ahead_us=watch.ahead_us,
        slowest_us=watch.slowest_us, handed_over=sum(a != b for a, b in zip(before, after, strict=True)),
    )  # fmt: skip


def table(protocol: type[MulticastProtocol]) -> str:
    """Markdown. lost: expired, or not delivered everywhere. ahead: of the time, the furthest timestamp."""
    heads = ("protocol", "whose clock", "jumps by", "lost", "ahead", "slowest", "new leaders", "believed: lost")
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for jump_us in JUMPS_US:
        for where in WHERE:
            with_, without = (measure(protocol, where, jump_us, disciplined) for disciplined in (True, False))
            lines.append(
                f"| `{protocol.specification.name}` | {where} | {jump_us / 1e6:+.0f} s |"
                f" {with_.expired + with_.missing} of {with_.messages} | {max(0, with_.ahead_us) / 1e6:.1f} s |"
                f" {with_.slowest_us / 1000:.0f} ms | {with_.handed_over} |"
                f" {without.expired + without.missing} of {without.messages} |"
            )
    return "\n".join(lines)
