"""Where the papers put their processes: delays between any two, and how well their clocks agree.

- LAN: 0.1 ms there and back between any two (White-Box paper, Section VI; 0.09 ms in the PrimCast paper, Table 2).
- WAN, three data centres, 60, 75 and 130 ms there and back; every group has one replica in each (White-Box paper,
  Section VI, Figure 8). The paper does not say where the leaders are; here all are in the first (Oregon, at 60 and
  130 ms). Its delays are averages of a real network's; here they do not vary.
- WAN, colocated leaders: the same data centres in the PrimCast paper (Section 7.2, Table 2), all leaders in one.
- WAN, distributed leaders: every group in a region of its own, 90 ms there and back between regions, 30 ms inside.

The PrimCast paper's WANs have delays with a standard deviation of 5 % (Section 7.2). A link is FIFO, as TCP is: a late
message holds up those behind it. Clocks are off by a fixed amount, drawn per process; the papers do not say by how
much.
"""

from __future__ import annotations

import random

import msgspec

from multicast.simulation.world import World
from multicast.types import ProcessId

REPLICAS = 3
"""Per group, in all experiments of the papers."""

_LAN_US = 50


class Deployment(msgspec.Struct, kw_only=True, frozen=True):
    """Delays one way, in microseconds.

    delays_us: from site to site; process i of each group is at site i. regions: (between, inside): every group has a
    region of its own. Neither: a LAN. deviation: standard deviation of a delay, as a share of it. skew_us: how far a
    clock is off at most. step_us: how finely a run is cut for progress. warmup_rounds: how often everything outstanding
    must have come home until the loop is steady: where leaders are far apart, logical clocks and clients take a few
    rounds to fall into step.
    """

    name: str
    title: str
    delays_us: tuple[tuple[int, ...], ...] = ()
    regions: tuple[int, int] | None = None
    deviation: float = 0.0
    skew_us: int
    step_us: int
    warmup_rounds: int

    def delay_us(self, a: ProcessId, b: ProcessId) -> int:
        """How long a message from a to b is under way on average. Processes are numbered as in `Topology.grid`."""
        if self.regions is not None:
            between, inside = self.regions
            return inside if a // REPLICAS == b // REPLICAS else between
        if self.delays_us:
            return self.delays_us[a % REPLICAS][b % REPLICAS]
        return _LAN_US

    def place(self, world: World, seed: str) -> None:
        """Set delays and clocks, before the start. The world's own delay must be `_LAN_US`."""
        rng = random.Random(f"{seed}/clocks")
        for a in world.nodes:
            world.nodes[a].offset_us = rng.randint(-self.skew_us, self.skew_us)
            for b in world.nodes:
                extra = self.delay_us(a, b) - _LAN_US
                if a != b and extra:
                    world.network.slow(a, b, extra, self.deviation)


LAN = Deployment(name="lan", title="LAN (RTT 0.1 ms)", skew_us=100, step_us=200, warmup_rounds=2)
DATA_CENTRES = Deployment(
    name="wan-data-centres",
    title="WAN, three data centres (RTT 60, 75, 130 ms)",
    delays_us=((_LAN_US, 30_000, 65_000), (30_000, _LAN_US, 37_500), (65_000, 37_500, _LAN_US)),
    skew_us=1_000,
    step_us=5_000,
    warmup_rounds=6,
)
COLOCATED = Deployment(
    name="wan-colocated",
    title="WAN, colocated leaders (RTT 60, 76, 130 ms)",
    delays_us=((_LAN_US, 30_000, 65_000), (30_000, _LAN_US, 38_000), (65_000, 38_000, _LAN_US)),
    deviation=0.05,
    skew_us=1_000,
    step_us=5_000,
    warmup_rounds=6,
)
DISTRIBUTED = Deployment(
    name="wan-distributed",
    title="WAN, distributed leaders (RTT 90 ms between groups, 30 ms inside)",
    regions=(45_000, 15_000),
    deviation=0.05,
    skew_us=1_000,
    step_us=5_000,
    warmup_rounds=6,
)
BASE_DELAY_US = _LAN_US
