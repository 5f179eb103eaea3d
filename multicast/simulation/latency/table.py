"""The rows of the latency table: measured figures beside the published ones.

The papers' model: every message takes exactly δ, a message to oneself nothing, computation and disk nothing.
Collision-free: m is alone; the worst over its senders, exact. Failure-free: the worst that a search finds with
conflicting messages and delays up to δ; a supremum approached within `TOLERANCE` counts as reached. Messages are
counted for a message alone. A published figure must be reached and nowhere exceeded, except that messages to one group
may be quicker than messages to several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from multicast.protocol import MulticastProtocol
from multicast.simulation.drawing import protocol_options
from multicast.simulation.latency.average import average
from multicast.simulation.latency.consensus import Consensus, decide
from multicast.simulation.latency.published import SKEWS, Count, Figure, Published, variants
from multicast.simulation.latency.schedule import DELTA_US, Model, Played, Schedule, play
from multicast.simulation.latency.search import Search
from multicast.types import ProcessId, Topology

FIELDS = ("collision_free_first", "collision_free_all", "failure_free_first", "failure_free_all", "messages")
GROUPS = 2
REPLICAS = 3
COUNT_GROUPS = (1, 2, 4, 8)
COUNT_REPLICAS = (3, 5)
BLOCKERS = (1, 2, 3)
TOLERANCE = 0.01
"""In δ, of a searched supremum."""
AVERAGE_TOLERANCE = 0.15
"""In δ, of a sampled mean: three times its standard error, about."""
EFFORT_MORE = 20
"""A search that has not reached the published figure goes on with up to so many times the effort."""
_UNPUBLISHED_EFFORT = 0.25
_EXACT = 1e-9

Progress = Callable[[float], None]


class Counted(msgspec.Struct, kw_only=True):
    """Messages per multicast to `destinations` groups of `replicas`; least and most: as published. by_kind: of which
    types. match: it is within, and without those of a bounded kind as the formula says."""

    destinations: int
    replicas: int
    messages: int
    least: int
    most: int
    by_kind: dict[str, int]
    match: bool


class Average(msgspec.Struct, kw_only=True):
    """Latency until every replica has delivered, in δ, averaged; see `average`."""

    blockers: int
    measured: float | None
    paper: float


class Row(msgspec.Struct, kw_only=True):
    """One variant of one protocol. Latencies in δ, None if not delivered or not measured.

    messages: per multicast, to oneself included, without housekeeping; its paper's figure is an upper bound if the
    formula is one, from `messages_least` on. destinations, replicas: k groups of n; groups: in the topology. first_at:
    whose delivery "first" is. skew: the greatest clock error, in δ. conflicts: conflicting messages in the search.
    bound: the failure-free figures need not be reached. consensus: T_cons as measured, in δ. early: the optimistic
    delivery at every replica. counts, averages: as far as published. worst_first, worst_all: the schedules of the
    failure-free figures. schedules: how many were tried. against: what does not match, and why.
    """

    protocol: str
    options: dict[str, Any]
    collision_free_first: float | None
    collision_free_all: float | None
    failure_free_first: float | None = None
    failure_free_all: float | None = None
    messages: int
    paper: dict[str, float | None]
    match: bool = True
    source: str
    formula: str = ""
    messages_least: int | None = None
    destinations: int
    replicas: int
    groups: int
    first_at: str = "first replica"
    skew: float = 0.0
    conflicts: int = 0
    bound: bool = False
    consensus: float
    seed: int = 0
    early: float | None = None
    early_paper: float | None = None
    counts: list[Counted] = []
    averages: list[Average] = []
    worst_first: list[str] = []
    worst_all: list[str] = []
    schedules: int = 0
    against: list[str] = []


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure on. groups: destinations of m (None: 2, or what the variant is about); the topology has one
    more. replicas: per group, where the protocol has several. effort: of the search; 1 is a few seconds per row."""

    groups: int | None = None
    replicas: int | None = None
    seed: int = 0
    effort: float = 1.0
    skews: tuple[float, ...] = SKEWS


def rows(
    protocol: type[MulticastProtocol],
    options: Mapping[str, str],
    plan: Plan | None = None,
    progress: Progress | None = None,
) -> Iterator[Row]:
    """Measure what is published of this protocol, or of it with these options."""
    plan = plan or Plan()
    for published in variants(protocol, options, plan.skews):
        yield row(protocol, published, plan, progress)


def row(
    protocol: type[MulticastProtocol], published: Published, plan: Plan, progress: Progress | None = None
) -> Row:
    """Measure one variant."""
    specification = protocol.specification
    destinations = plan.groups if published.groups is None else published.groups
    destinations = GROUPS if destinations is None else destinations
    replicas = (plan.replicas or REPLICAS) if specification.fault_tolerant else 1
    others = 0 if published.groups is not None else 1
    model = _model(protocol, published, destinations + others, replicas)
    alone = _alone(model, destinations, _senders(model, all_of_them=True))
    consensus = decide(replicas).every
    figure = _Figures(published, consensus, destinations, replicas)
    first = [p.leader if published.at_leader else p.first for p in alone]
    search = Search(
        model,
        tuple(range(destinations)),
        plan.seed,
        conflicts=published.conflicts,
        skew_us=round(published.skew * DELTA_US),
        at_leader=published.at_leader,
        distinct=published.distinct,
        effort=plan.effort * (1.0 if figure.any_latency else _UNPUBLISHED_EFFORT),
    )
    found = search.run(figure.reached if destinations > 1 and not published.bound else None, EFFORT_MORE, progress)
    measured = Row(
        protocol=specification.name,
        options=msgspec.to_builtins(model.options),
        collision_free_first=_finite(max(first)),
        collision_free_all=_finite(max(p.every for p in alone)),
        failure_free_first=_finite(found.first),
        failure_free_all=_finite(found.every),
        messages=max(sum(p.sent.values()) for p in alone),
        paper=figure.paper,
        destinations=destinations,
        replicas=replicas,
        groups=destinations + others,
        first_at="leader" if published.at_leader else "first replica",
        skew=published.skew,
        bound=published.bound,
        conflicts=published.conflicts,
        consensus=consensus,
        seed=plan.seed,
        source=published.source,
        formula=published.messages.text if published.messages else "",
        messages_least=figure.least_messages,
        early=max((p.early for p in alone if p.early is not None), default=None),
        early_paper=None if published.early is None else _value(published.early, consensus),
        counts=_counts(protocol, published),
        averages=_averages(protocol, published, replicas, plan.seed),
        worst_first=found.worst_first.lines(),
        worst_all=found.worst_every.lines(),
        schedules=found.runs,
    )
    measured.against = against(measured)
    measured.match = not measured.against
    return measured


def consensus_row(replicas: int, protocol: type[Consensus] = Consensus) -> Row:
    """T_cons itself: from a proposal at the leader to the decision there and at every learner."""
    played = decide(replicas, protocol)
    messages = sum(played.sent.values())
    paper: dict[str, float | None] = dict.fromkeys(FIELDS)
    paper.update(collision_free_first=2.0, collision_free_all=2.0, messages=float(replicas + replicas**2))
    result = Row(
        protocol=protocol.specification.name,
        options={},
        collision_free_first=_finite(played.leader),
        collision_free_all=_finite(played.every),
        messages=messages,
        paper=paper,
        source="2δ from the leader's proposal",
        formula="n + n²",
        messages_least=replicas + replicas**2,
        destinations=1,
        replicas=replicas,
        groups=1,
        first_at="leader",
        consensus=played.every,
    )
    result.against = against(result)
    result.match = not result.against
    return result


# -- measuring ---------------------------------------------------------------------------------------------------------


def _model(protocol: type[MulticastProtocol], published: Published, groups: int, replicas: int) -> Model:
    options = protocol_options(protocol, published.options)
    return Model(protocol, Topology.grid(groups, replicas), options)


def _senders(model: Model, all_of_them: bool) -> tuple[ProcessId, ...]:
    """Of m: every process; or one outside the destinations, the first leader and a follower, if they exist."""
    processes = model.topology.processes
    if all_of_them:
        return processes
    return tuple(dict.fromkeys((processes[-1], processes[0], model.topology.groups[0][-1])))


def _alone(model: Model, destinations: int, senders: Sequence[ProcessId]) -> list[Played]:
    """m without conflicts, from each of these senders."""
    housekeeping = model.protocol.specification.housekeeping
    chosen = tuple(range(destinations))
    return [play(model, Schedule(sender=sender, destinations=chosen), housekeeping) for sender in senders]


def _counts(protocol: type[MulticastProtocol], published: Published) -> list[Counted]:
    count = published.messages
    if count is None:
        return []
    found = []
    for replicas in COUNT_REPLICAS if protocol.specification.fault_tolerant else (1,):
        for groups in COUNT_GROUPS:
            model = _model(protocol, published, groups + 1, replicas)
            played = _alone(model, groups, _senders(model, all_of_them=False))
            worst = max(played, key=lambda p: sum(p.sent.values()))
            found.append(_counted(count, groups, replicas, worst.sent))
    return found


def _counted(count: Count, groups: int, replicas: int, sent: dict[str, int]) -> Counted:
    least, most = _bounds(count, groups, replicas)
    extra = sent.get(count.kind, 0)
    return Counted(
        destinations=groups, replicas=replicas, messages=sum(sent.values()), least=least, most=most, by_kind=sent,
        match=least <= sum(sent.values()) - extra <= count.base(groups, replicas)
        and extra <= count.most(groups, replicas),
    )  # fmt: skip


def _bounds(count: Count, groups: int, replicas: int) -> tuple[int, int]:
    base = count.base(groups, replicas)
    return base - count.merged(groups, replicas), base + count.most(groups, replicas)


def _averages(protocol: type[MulticastProtocol], published: Published, replicas: int, seed: int) -> list[Average]:
    if published.average is None:
        return []
    consensus = decide(replicas).every
    found = []
    for blockers in (0,) if published.groups == 1 else BLOCKERS:
        model = _model(protocol, published, blockers + 1, replicas)
        measured = _finite(average(model, consensus, seed))
        found.append(
            Average(blockers=blockers, measured=measured, paper=_value(published.average(blockers), consensus))
        )
    return found


# -- comparing ---------------------------------------------------------------------------------------------------------


class _Figures:
    """A variant's published figures as numbers."""

    def __init__(self, published: Published, consensus: float, groups: int, replicas: int):
        self.paper: dict[str, float | None] = {}
        for field in FIELDS[:4]:
            figure: Figure | None = getattr(published, field)
            self.paper[field] = None if figure is None else _value(figure, consensus)
        self.any_latency = any(value is not None for value in self.paper.values())
        self.least_messages: int | None = None
        self.paper["messages"] = None
        if published.messages is not None:
            self.least_messages, most = _bounds(published.messages, groups, replicas)
            self.paper["messages"] = most

    def reached(self, first: float, every: float) -> bool:
        """Whether a search has come as far as the paper says."""
        pairs = ((first, self.paper["failure_free_first"]), (every, self.paper["failure_free_all"]))
        return all(paper is None or value >= paper - TOLERANCE for value, paper in pairs)


def _value(figure: Figure, consensus: float) -> float:
    return float(figure[0] + figure[1] * consensus)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def against(row: Row) -> list[str]:
    """What does not match, a line each."""
    found = []
    for field in FIELDS[:4]:
        value, paper = getattr(row, field), row.paper[field]
        searched = field.startswith("failure_free")
        if value is None:
            if paper is not None:
                found.append(f"{field}: not delivered, the paper has {paper:g}")
        elif paper is not None:
            short = paper - value > (TOLERANCE if searched else _EXACT)
            must_reach = (row.destinations > 1 or row.groups == 1) and not (searched and row.bound)
            if value > paper + _EXACT or (short and must_reach):
                found.append(f"{field}: {value:g}, the paper has {paper:g}")
    least, most = row.messages_least, row.paper["messages"]
    if least is not None and most is not None and not least <= row.messages <= most:
        found.append(f"messages: {row.messages}, the paper has {_range(least, int(most))}")
    for count in row.counts:
        if not count.match:
            where = f"k = {count.destinations}, n = {count.replicas}"
            text = f"{count.messages} ({', '.join(f'{kind} {number}' for kind, number in count.by_kind.items())})"
            found.append(f"messages for {where}: {text}, the paper has {_range(count.least, count.most)}")
    for mean in row.averages:
        if mean.measured is None or abs(mean.measured - mean.paper) > AVERAGE_TOLERANCE:
            text = "not delivered" if mean.measured is None else f"{mean.measured:.3f}"
            found.append(f"average with {mean.blockers} blockers: {text}, the paper has {mean.paper:.3f}")
    if row.early_paper is not None and (row.early is None or abs(row.early - row.early_paper) > TOLERANCE):
        found.append(f"optimistic delivery: {row.early}, the paper has {row.early_paper:g}")
    return found


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"
