"""Which points make which figure, quick and in full. A point that several figures have is measured once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from multicast import registry
from multicast.simulation.experiments.deployments import (
    COLOCATED,
    DATA_CENTRES,
    DISTRIBUTED,
    LAN,
    REPLICAS,
    Deployment,
)
from multicast.simulation.experiments.load import ALONE, Measured, Point, Variant
from multicast.simulation.experiments.recovery import Recovered
from multicast.simulation.network import Cpu

WHITE_BOX = Variant(title="White-Box", protocol="white_box")
PRIMCAST = Variant(title="PrimCast", protocol="primcast")
HYBRID = Variant(title="PrimCast HC", protocol="primcast", options=(("clock", "hybrid"),))
FASTCAST = Variant(title="FastCast", protocol="fastcast")
EARLY = Variant(title="FastCast, early clock", protocol="fastcast", options=(("early_clock", "true"),))
SKEEN = Variant(title="fault-tolerant Skeen", protocol="ft_skeen")
_SINGLE = (("instances_max", "10000"), ("values_max", "1"))
FASTCAST_SINGLE = Variant(title="FastCast, not merged", protocol="fastcast", options=_SINGLE)
SKEEN_SINGLE = Variant(title="fault-tolerant Skeen, not merged", protocol="ft_skeen", options=_SINGLE)
"""One consensus instance for each command, as published; ours otherwise merges all that wait into one."""
VARIANTS = (PRIMCAST, HYBRID, WHITE_BOX, FASTCAST, EARLY, SKEEN)

SLOW = 50
"""Processors of figures that saturate a WAN are so many times slower, or that would need too many messages."""

_RECOVERY_GROUPS = 10
_RECOVERY_CLIENTS = 6_000
"""Of the White-Box paper's Section VI, each with one message outstanding. See `recovery`."""


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One diagram: every variant at every load. loads: messages outstanding per client."""

    deployment: Deployment
    groups: int
    destinations: int
    loads: tuple[int, ...]
    variants: tuple[Variant, ...] = VARIANTS
    samples: int = 300
    slower: int = 1

    def points(self, cpu: Cpu, seed: int) -> list[Point]:
        """Of the protocols that exist, the light loads first."""
        cost = Cpu(
            batch_us=cpu.batch_us * self.slower, input_us=cpu.input_us * self.slower, send_us=cpu.send_us * self.slower
        )
        names = registry.names()
        return [
            Point(
                deployment=self.deployment, variant=variant, groups=self.groups, destinations=self.destinations,
                outstanding=load, samples=self.samples, cpu=cost, seed=seed,
            )
            for load in self.loads
            for variant in self.variants
            if variant.protocol in names
        ]  # fmt: skip


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """kind: what is drawn. "curves": `latency` ("p95" or "mean") over throughput; "cdf": of latencies, a panel for each
    load; "convoy": mean latency above that of messages alone, over load; "recovery": deliveries over time."""

    name: str
    title: str
    source: str
    kind: str
    panels: tuple[Panel, ...]
    latency: str = "p95"


class Results(msgspec.Struct):
    """What was measured for one figure so far."""

    measured: list[Measured]
    recovered: list[Recovered] = []

    def get(self, variant: Variant, destinations: int, outstanding: int) -> Measured | None:
        """That point."""
        for one in self.measured:
            p = one.point
            if (p.variant, p.destinations, p.outstanding) == (variant, destinations, outstanding) and one.elapsed_us:
                return one
        return None

    def loads(self, destinations: int, *variants: Variant) -> list[int]:
        """At which all these variants have been measured, without `ALONE`."""
        loads = sorted({one.point.outstanding for one in self.measured} - {ALONE})
        return [load for load in loads if all(self.get(v, destinations, load) for v in variants)]

    def destinations(self) -> list[int]:
        """That were measured."""
        return sorted({one.point.destinations for one in self.measured})

    def peak(self, variant: Variant, destinations: int) -> float | None:
        """The highest throughput."""
        found = [
            m.throughput
            for m in self.measured
            if (m.point.variant, m.point.destinations) == (variant, destinations) and m.elapsed_us
        ]
        return max(found, default=None)


def figures(quick: bool) -> list[Figure]:
    """All of them."""

    def panels(
        deployment: Deployment, groups: int, plan: dict[int, tuple[int, ...]], samples: int = 300,
        variants: tuple[Variant, ...] = VARIANTS, slower: int = 1,
    ) -> tuple[Panel, ...]:  # fmt: skip
        return tuple(
            Panel(
                deployment=deployment, groups=groups, destinations=k, loads=loads, samples=120 if quick else samples,
                variants=variants, slower=slower,
            )
            for k, loads in plan.items()
        )  # fmt: skip

    low, high = 2, 16 if quick else 128
    distributed: dict[int, tuple[int, ...]] = (
        {2: (ALONE, low, high)}
        if quick
        else {2: (ALONE, 1, low, 4, 8, 16, 32, 64), 4: (ALONE, 1, 2, 4, 8, 16, 32)}
    )
    saturating = {1: (4, 16, 64), 2: (1, 4, 16, 32), 4: (1, 4, 16), 8: (1, 4, 8)}
    whitebox_papers = (WHITE_BOX, FASTCAST, SKEEN, FASTCAST_SINGLE, SKEEN_SINGLE)
    crashing = 4 if quick else 10
    fewer = _RECOVERY_CLIENTS // (crashing * _RECOVERY_GROUPS * REPLICAS)
    found = [
        Figure(
            name="lan", title="LAN, 2 destinations", source="PrimCast paper, Figure 2", kind="curves",
            panels=panels(LAN, 8, {2: (ALONE, 1, 4, 16) if quick else (ALONE, 1, 2, 4, 8, 16, 32, 64)}),
        ),
        Figure(
            name="lan-destinations", title="LAN, 10 groups", source="White-Box paper, Figure 7", kind="curves",
            panels=panels(
                LAN, 10,
                {1: (1, 8), 4: (1, 8)} if quick else {1: (1, 4, 16, 32), 2: (1, 4, 16), 4: (1, 4, 16), 8: (1, 4, 8)},
                variants=whitebox_papers,
            ), latency="mean",
        ),
        Figure(
            name="wan-destinations", title=f"WAN, 10 groups in three data centres, processors {SLOW} times slower",
            source="White-Box paper, Figure 8", kind="curves",
            panels=panels(
                DATA_CENTRES, 10, saturating, variants=whitebox_papers,
                slower=SLOW,
            ), latency="mean",
        ),
        Figure(
            name="wan-colocated", title="WAN, colocated leaders", source="PrimCast paper, Figure 3", kind="curves",
            panels=panels(
                COLOCATED, 8,
                dict.fromkeys((1, 2), (ALONE, 2)) if quick else dict.fromkeys((1, 2, 4, 8), (ALONE, 1, 8)),
            ),
        ),
        Figure(
            name="wan-saturation", title=f"WAN, colocated leaders, processors {SLOW} times slower",
            source="PrimCast paper, Figure 3", kind="curves",
            panels=panels(
                COLOCATED, 8, saturating,
                variants=(PRIMCAST, WHITE_BOX, FASTCAST, FASTCAST_SINGLE), slower=SLOW,
            ),
        ),
        Figure(
            name="wan-distributed", title="WAN, distributed leaders", source="PrimCast paper, Figure 4", kind="curves",
            panels=panels(DISTRIBUTED, 8, distributed),
        ),
        Figure(
            name="cdf", title="Latencies at low and high load, WAN, distributed leaders",
            source="PrimCast paper, Figure 5", kind="cdf", panels=panels(DISTRIBUTED, 8, {2: (ALONE, low, high)}),
        ),
        Figure(
            name="convoy", title="The convoy effect: mean latency above that of messages alone",
            source="PrimCast paper, Section 7.5", kind="convoy", panels=panels(DISTRIBUTED, 8, {2: distributed[2]}),
        ),
        Figure(
            name="recovery",
            title=f"A leader crashes, WAN, 10 groups in three data centres, processors {fewer} times slower",
            source="White-Box paper, Section VI", kind="recovery",
            panels=panels(
                DATA_CENTRES, _RECOVERY_GROUPS, {4: (crashing,)},
                variants=(WHITE_BOX,) if quick else (WHITE_BOX, PRIMCAST), slower=fewer,
            ),
        ),
    ]  # fmt: skip
    return [figure for figure in found if not (quick and figure.kind == "curves" and figure.panels[0].slower > 1)]


def names() -> list[str]:
    """Of all figures."""
    return [figure.name for figure in figures(False)]


def points(figure: Figure, cpu: Cpu, seed: int) -> Iterable[Point]:
    """All points of a figure."""
    for panel in figure.panels:
        yield from panel.points(cpu, seed)
