"""What the papers say: latencies and numbers of messages, per protocol and options, in one place.

A figure is a pair (δ, T_cons): so many message delays and so many consensus instances. Protocols are named as in the
registry, options as on the command line; a variant that the registry's protocol does not offer is left out (`variants`
says so).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from multicast.protocol import MulticastProtocol, Options
from multicast.simulation.drawing import protocol_options

Figure = tuple[float, float]
"""(message delays, consensus instances)."""

SKEWS = (0.0, 0.25, 0.5, 0.7)
"""Clock errors at which the hybrid clock is measured, in δ."""

SKEW_MAX = 2.0


class Count(NamedTuple):
    """Messages sent per multicast to k groups of n, messages to oneself included. text: the formula. bumps: of that
    kind, between none and so many come on top. merged: so many may be saved by sending two of them as one."""

    text: str
    base: Callable[[int, int], int]
    kind: str = ""
    most: Callable[[int, int], int] = lambda k, n: 0
    merged: Callable[[int, int], int] = lambda k, n: 0


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One variant. Figures that no paper states are None.

    source: where they are from. first: the first delivery in each group; at_leader: each group's leader's. conflicts:
    how many conflicting messages its worst case needs. distinct: no two messages are multicast in the same microsecond.
    skew: the greatest clock error, in δ. groups: how many destinations it is about; None: any number
    from 2 on. bound: the worst case is a sum of worst cases that perhaps never meet: not to be exceeded, but not
    necessarily reached. average: delivery when every group always has a consensus
    instance under way, by the number of blockers. early: the optimistic delivery.
    """

    protocol: str
    options: dict[str, str] = {}
    source: str
    collision_free_first: Figure | None = None
    collision_free_all: Figure | None = None
    failure_free_first: Figure | None = None
    failure_free_all: Figure | None = None
    messages: Count | None = None
    average: Callable[[int], Figure] | None = None
    early: Figure | None = None
    at_leader: bool = False
    conflicts: int = 1
    distinct: bool = False
    skew: float = 0.0
    groups: int | None = None
    bound: bool = False


_SKEEN = "White-Box paper, Section III"
_WHITE_BOX = "White-Box paper, Theorem 5; PrimCast paper, Section 4"
_FT_SKEEN = "White-Box paper, Sections IV and V"
_FASTCAST = "White-Box paper, Section VI; PrimCast paper, Section 4"
_PRIMCAST = "PrimCast paper, Sections 5 and 6"
_QUASI = "quasi-genuine paper, Section 3.1"
_QUASI_EARLY = "quasi-genuine paper, Section 3."

_PARALLEL = {"parallel_consensus": "true"}
_W = 1.001
_OPTIMISTIC = {"optimistic": "true", "wait_us": "1001"}
"""w(p) is just above δ, `schedule.DELTA_US`: assumption A2 holds."""

_TOO_OPTIMISTIC = {"optimistic": "true", "wait_us": "900"}
"""w(p) is below δ: A2 does not hold. In the paper's figures 2w, twice a message on its way, is then 2δ."""


def _delivers(k: int, n: int) -> int:
    return k * (n - 1)


def _ft_skeen_count(delivers: bool) -> Count:
    text = "k + k² + 2(kn + kn²)" + (" (+ k(n - 1) Delivers)" if delivers else "")
    return Count(
        text,
        lambda k, n: k + k * k + 2 * (k * n + k * n * n),
        "Deliver",
        _delivers if delivers else lambda k, n: 0,
    )


def _fastcast_count(delivers: bool) -> Count:
    """Of a message to one group both instances begin at once, and a follower accepts both by one message."""
    text = "kn + 2k²n + 2kn + 2kn²" + (" (+ k(n - 1) Delivers)" if delivers else "")
    return Count(
        text,
        lambda k, n: k * n + 2 * k * k * n + 2 * k * n + 2 * k * n * n,
        "Deliver",
        _delivers if delivers else lambda k, n: 0,
        lambda k, n: n * (n - 1) if k == 1 else 0,
    )


def _primcast_count() -> Count:
    return Count(
        "kn + k²n² (+ bumps ≤ min(k - 1, 1)·kn²)",
        lambda k, n: k * n + k * k * n * n,
        "Bump",
        lambda k, n: min(k - 1, 1) * k * n * n,
    )


_TABLE: tuple[Published, ...] = (
    Published(
        protocol="sequencer", source="folklore",
        collision_free_first=(2, 0), collision_free_all=(2, 0), failure_free_first=(2, 0), failure_free_all=(2, 0),
        messages=Count("1 + k", lambda k, n: 1 + k),
    ),
    Published(
        protocol="skeen", source=_SKEEN,
        collision_free_first=(2, 0), collision_free_all=(2, 0), failure_free_first=(4, 0), failure_free_all=(4, 0),
        messages=Count("k + k²", lambda k, n: k + k * k),
    ),
    Published(
        protocol="skeen", options={"coordinator": "true"}, source=_SKEEN + ", with a coordinator",
        collision_free_first=(3, 0), collision_free_all=(3, 0), failure_free_first=(6, 0), failure_free_all=(6, 0),
        messages=Count("3k", lambda k, n: 3 * k),
    ),
    Published(
        protocol="ft_skeen", source=_FT_SKEEN, at_leader=True,
        collision_free_first=(2, 2), collision_free_all=(3, 2), failure_free_first=(4, 4),
        messages=_ft_skeen_count(delivers=True),
    ),
    Published(
        protocol="ft_skeen", options={"early_clock": "true"}, source=_FT_SKEEN + "; the clock moves at the proposal",
        at_leader=True,
        collision_free_first=(2, 2), collision_free_all=(2, 2), failure_free_first=(4, 3),
        messages=_ft_skeen_count(delivers=False),
    ),
    Published(
        protocol="fastcast", source=_FASTCAST, at_leader=True,
        collision_free_first=(2, 1), collision_free_all=(3, 1), failure_free_first=(4, 2),
        messages=_fastcast_count(delivers=True),
    ),
    Published(
        protocol="fastcast", options={"early_clock": "true"}, source=_FASTCAST + "; the clock moves at the proposal",
        at_leader=True,
        collision_free_first=(2, 1), collision_free_all=(2, 1), failure_free_first=(4, 1),
        messages=_fastcast_count(delivers=False),
    ),
    Published(
        protocol="white_box", source=_WHITE_BOX,
        collision_free_first=(3, 0), collision_free_all=(4, 0), failure_free_first=(5, 0), failure_free_all=(6, 0),
        messages=Count("k + 2k²n + kn", lambda k, n: k + 2 * k * k * n + k * n),
    ),
    Published(
        protocol="white_box", options={"leaders_in_quorum": "true"}, source=_WHITE_BOX,
        collision_free_first=(3, 0), collision_free_all=(4, 0), failure_free_first=(5, 0), failure_free_all=(6, 0),
        messages=Count("k + 2k²n + kn", lambda k, n: k + 2 * k * k * n + k * n),
    ),
    Published(
        protocol="primcast", source=_PRIMCAST,
        collision_free_first=(3, 0), collision_free_all=(3, 0), failure_free_first=(5, 0), failure_free_all=(5, 0),
        messages=_primcast_count(),
    ),
    Published(
        protocol="quasi_genuine", source=_QUASI + ".2", conflicts=2,
        collision_free_first=(3, 2), collision_free_all=(3, 2), failure_free_first=(3, 4), failure_free_all=(3, 4),
        average=lambda blockers: (3, 2.5 + blockers / (blockers + 1)),
    ),
    Published(
        protocol="quasi_genuine", options={"liveness": "periodic"}, source=_QUASI + ": the decision, with one group",
        groups=1, at_leader=True,
        collision_free_first=(1, 1), collision_free_all=(1, 1), failure_free_first=(1, 2), failure_free_all=(1, 2),
        average=lambda blockers: (1, 1.5),
    ),
    Published(
        protocol="quasi_genuine", options=_OPTIMISTIC, source=_QUASI_EARLY + "2: 2w + 2T",
        conflicts=2, distinct=True, early=(_W, 0), failure_free_first=(2 * _W, 2), failure_free_all=(2 * _W, 2),
    ),
    Published(
        protocol="quasi_genuine", options=_TOO_OPTIMISTIC, source=_QUASI_EARLY + "2, without A2: 2w + 4T + δ",
        conflicts=2, distinct=True, skew=0.1, bound=True, failure_free_first=(3, 4), failure_free_all=(3, 4),
    ),
    Published(
        protocol="quasi_genuine", options={**_OPTIMISTIC, **_PARALLEL}, source=_QUASI_EARLY + "3: w + T + δ",
        conflicts=2, distinct=True, early=(_W, 0), collision_free_first=(_W + 1, 1), collision_free_all=(_W + 1, 1),
        failure_free_first=(_W + 1, 1), failure_free_all=(_W + 1, 1),
    ),
    Published(
        protocol="quasi_genuine", options={**_TOO_OPTIMISTIC, **_PARALLEL},
        source=_QUASI_EARLY + "3, without A2: 2w + 2T + δ",
        conflicts=2, distinct=True, skew=0.1, failure_free_first=(3, 2), failure_free_all=(3, 2),
    ),
    Published(
        protocol="quasi_genuine", options={"direct_learners": "true"}, conflicts=2,
        source="quasi-genuine paper, Section 3.4: δ less from each decision to who waits for it",
        collision_free_first=(1, 2), collision_free_all=(1, 2), failure_free_first=(1, 4), failure_free_all=(1, 4),
    ),
)  # fmt: skip


def hybrid(skew: float) -> Published:
    """PrimCast with a hybrid clock and clocks that are wrong by at most `skew` δ."""
    worst = (min(5.0, 4.0 + 2.0 * skew), 0.0)
    return Published(
        protocol="primcast", options={"clock": "hybrid"}, source="PrimCast paper, Section 6", skew=skew,
        collision_free_first=(3, 0), collision_free_all=(3, 0), failure_free_first=worst, failure_free_all=worst,
        messages=_primcast_count(),
    )  # fmt: skip


def table(skews: Sequence[float] = SKEWS) -> list[Published]:
    """Everything, in the order of the protocols' names."""
    return sorted([*_TABLE, *(hybrid(skew) for skew in skews)], key=lambda p: p.protocol)


def offered(protocol: type[MulticastProtocol], published: Published) -> bool:
    """Whether the protocol has these options."""
    try:
        protocol_options(protocol, published.options)
    except ValueError:
        return False
    return True


def variants(
    protocol: type[MulticastProtocol], options: Mapping[str, str], skews: Sequence[float] = SKEWS
) -> list[Published]:
    """What is published of this protocol: all of it, or, if any options are given, what is about these. Never empty: of
    an unknown variant nothing is published."""
    name = protocol.specification.name
    known = [p for p in table(skews) if p.protocol == name and offered(protocol, p)]
    if options:
        wanted = protocol_options(protocol, options)
        known = [p for p in known if _same(protocol_options(protocol, p.options), wanted)]
    return known or [Published(protocol=name, options=dict(options), source="nothing published")]


def _same(one: Options, other: Options) -> bool:
    return bool(msgspec.to_builtins(one) == msgspec.to_builtins(other))
