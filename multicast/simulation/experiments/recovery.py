"""A leader dies under load: when its group has another, when it delivers again, when what it held up is cleared.

As in the White-Box paper, Section VI: WAN with colocated leaders, clients multicast to some of the groups, and the
first leader of group 0 crashes for good. Protocols have their usual timeouts. Clients of the dead replica are silent.

The paper's 6,000 clients keep 6,000 messages outstanding, each of which is more than a hundred messages between
processes: a simulated second is millions of them. What processors have to do before a backlog is cleared is the number
of messages times the cost of one, so with s times fewer messages and processors s times slower everything that waits
for processors takes as long, at an sth of the events; delays and timeouts are what they are. Two things do not scale:
fewer messages travel together (acknowledgements of one batch), so that clearing rather takes longer here; and the
windows of `parts.retries`, 64 to 512 questions at once, for which 6,000 messages need a few more round trips.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from multicast.records import Delivered
from multicast.simulation.experiments.deployments import REPLICAS
from multicast.simulation.experiments.load import Clients, Point, build
from multicast.simulation.scene import Node
from multicast.types import FINAL, AppMessage, MessageId, Topology

BIN_US = 100_000
"""Deliveries are counted in stretches of so long."""

_BEFORE_US = 1_500_000
_AFTER_US = 1_500_000
_LIMIT_US = 20_000_000
_STEP_US = 5_000
_GROUP = 0


class Recovered(msgspec.Struct, kw_only=True):
    """Microseconds after the crash; None: not within the limit.

    leader_us: a survivor leads group 0. resumed_us: its first new delivery after that. cleared_us: everything that
    survivors had multicast to it before is delivered there. held: how many messages that were.
    affected, others: (begin of a stretch after the crash, messages per second delivered first in group 0; in an
    average other group).
    """

    point: Point
    leader_us: int | None
    resumed_us: int | None
    cleared_us: int | None
    held: int
    affected: list[tuple[int, float]]
    others: list[tuple[int, float]]


class _Watcher(Clients):
    """Also notes first deliveries in each group, and what was multicast to group 0."""

    def __init__(self, topology: Topology, destinations: int, seed: str):
        super().__init__(topology, destinations, seed)
        self.first: dict[int, dict[MessageId, int]] = {group: {} for group in topology.groups}
        self.sent: list[tuple[int, MessageId, int]] = []
        self._group_of = topology.group_of

    def on_submit(self, node: Node, message: AppMessage) -> None:
        """Somebody multicasts."""
        if _GROUP in message.destinations:
            self.sent.append((self.world.now, message.id, node.pid))

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        """A replica delivers."""
        if delivery.stage == FINAL:
            self.first[self._group_of[node.pid]].setdefault(delivery.message.id, self.world.now)
        super().on_deliver(node, delivery, replay)


def recover(point: Point, progress: Callable[[float], None] = lambda share: None) -> Recovered:
    """Run it. Depends on nothing but the point; its number of samples is not used."""
    seed = f"{point.seed}/recovery/{point.variant.title}/{point.destinations}/{point.outstanding}"
    topology = Topology.grid(point.groups, REPLICAS)
    clients = _Watcher(topology, point.destinations, seed)
    world = build(point.deployment, point.variant, point.groups, point.cpu, seed, clients, patient=False)
    world.start()
    clients.start(point.outstanding, _BEFORE_US // 4)
    world.run_for(_BEFORE_US)
    dead, *rest = topology.groups[_GROUP]
    crash = world.now
    world.crash(dead)
    survivors = [world.node(pid) for pid in rest]
    limit = crash + _LIMIT_US
    while not any(node.protocol.role() == "leader" for node in survivors) and world.now < limit:
        world.run_for(_STEP_US)
        progress(min(0.5, (world.now - crash) / 10_000_000))
    led = world.now
    delivered = clients.first[_GROUP]
    held = [m for at, m, pid in clients.sent if at <= led and pid != dead and delivered.get(m, led) >= led]
    while any(m not in delivered for m in held) and world.now < limit:
        world.run_for(_STEP_US)
    cleared = max((delivered.get(m, limit) for m in held), default=led)
    world.run_for(_AFTER_US)
    resumed = min((at for at in delivered.values() if at > led), default=None)
    end = world.now
    others = [clients.first[g] for g in topology.groups if g != _GROUP]
    return Recovered(
        point=point,
        leader_us=led - crash if led < limit else None,
        resumed_us=None if resumed is None else resumed - crash,
        cleared_us=cleared - crash if cleared < limit else None,
        held=len(held),
        affected=_bins([delivered], crash, end),
        others=_bins(others, crash, end),
    )


def _bins(groups: list[dict[MessageId, int]], crash: int, end: int) -> list[tuple[int, float]]:
    counts = dict.fromkeys(range(-(_BEFORE_US // BIN_US), (end - crash) // BIN_US), 0)
    for first in groups:
        for at in first.values():
            if (at - crash) // BIN_US in counts:
                counts[(at - crash) // BIN_US] += 1
    share = 1e6 / BIN_US / max(1, len(groups))
    return [(number * BIN_US, count * share) for number, count in counts.items()]
