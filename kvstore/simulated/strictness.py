"""How many groups a topology may have for delivery alone to be strictly serializable: what a protocol says, shown.

`strict_groups_max` of a protocol and its options is a claim; here it is tried. Up to so many groups random searches
(`kvstore.simulated.chase`, no signals) must find no anomaly, with one group more they must find one. And the schedules
of `kvstore.simulated.schedules`, played exactly, must show what the claim makes of them: without signals an anomaly
with one group more than claimed; with signals at delivery, with two more; with the store's rule none at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping

import msgspec

from kvstore.simulated import schedules
from kvstore.simulated.checks import STRICTNESS
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast import registry
from multicast.simulation.drawing import protocol_options
from multicast.types import Topology

GROUPS_TRIED = 4
"""With a protocol that claims any number of groups."""

ALTERNATIVES: dict[str, Callable[[int], dict[str, str]]] = {
    "white_box": lambda groups: {"leaders_in_quorum": "true"},
    # Only one group, the slow one of the schedules, may send to the others.
    "quasi_genuine": lambda groups: {"senders": {1: "", 2: "1<0", 3: "0<2 1<2", 4: "0<3 1<3 2<3"}[groups]},
}
"""Options that change how strict a protocol is: protocol -> number of groups -> options."""


class Variant(msgspec.Struct, frozen=True):
    """A protocol with some options, which may depend on the number of groups."""

    protocol: str
    alternative: bool = False

    def options(self, groups: int) -> dict[str, str]:
        return ALTERNATIVES[self.protocol](groups) if self.alternative else {}

    def name(self, groups: int) -> str:
        return " ".join([self.protocol, *(f"{key}={value!r}" for key, value in self.options(groups).items())])


def variants(protocols: list[str]) -> list[Variant]:
    """Each protocol as it is, and with the options that matter."""
    return [Variant(p, other) for p in protocols for other in (False, True) if not other or p in ALTERNATIVES]


def strict_groups_max(protocol: str, options: Mapping[str, str], groups: int) -> int | None:
    """What the protocol claims for a topology of so many groups."""
    kind = registry.load(protocol)
    topology = Topology.grid(groups, 3 if kind.specification.fault_tolerant else 1)
    return kind(0, topology, protocol_options(kind, options), random.Random(0)).strict_groups_max()


class Shown(msgspec.Struct):
    """One line of a table. expected, seen: whether there is an anomaly. where: after how many seeds, or the schedule.
    failure: something else that went wrong. replay: the command that shows it again."""

    what: str
    groups: int
    signals: str
    expected: bool
    seen: bool
    where: str
    failure: str = ""
    replay: str = ""

    @property
    def match(self) -> bool:
        return self.expected == self.seen and not self.failure


def play_all(protocols: list[str]) -> Iterator[Shown]:
    """Both schedules with every way to signal, for every variant."""
    for variant in variants(protocols):
        for name, schedule in schedules.SCHEDULES.items():
            options = variant.options(schedule.shards)
            limit = strict_groups_max(variant.protocol, options, schedule.shards)
            for signals in ("off", "delivery", "rule"):
                safe = {"off": 0, "delivery": 1}.get(signals)
                expected = limit is not None and safe is not None and schedule.shards > limit + safe
                what = variant.name(schedule.shards)
                played = schedules.play(name, variant.protocol, signals, options=options)
                seen, failure = _judge(played.violations)
                yield Shown(what, schedule.shards, signals, expected, seen, name, failure)


def _judge(violations: list[str]) -> tuple[bool, str]:
    """Whether there is an anomaly, and what else there is."""
    others = [v for v in violations if not v.startswith(STRICTNESS)]
    return len(others) < len(violations), others[0] if others else ""


def search(variant: Variant, groups: int, seeds: range) -> Shown:
    """Look for an anomaly without signals; stops at the first."""
    options = variant.options(groups)
    limit = strict_groups_max(variant.protocol, options, groups)
    expected = limit is not None and groups > limit
    what = variant.name(groups)
    settings = Settings(protocol=variant.protocol, signals="off", profile="chase", shards=groups, options=options)
    for seed in seeds:
        violations = run_seed(settings, seed).violations
        if violations:
            seen, failure = _judge(violations)
            where = f"after {seed - seeds.start + 1} seeds, seed {seed}"
            return Shown(what, groups, "off", expected, seen, where, failure, settings.replay(seed))
    return Shown(what, groups, "off", expected, False, f"{len(seeds)} seeds")


def search_all(protocols: list[str], seeds: range) -> Iterator[Shown]:
    """For every variant: each number of groups up to the claim, and one more."""
    for variant in variants(protocols):
        for groups in range(1, GROUPS_TRIED + 1):
            shown = search(variant, groups, seeds)
            yield shown
            if shown.expected:
                break
