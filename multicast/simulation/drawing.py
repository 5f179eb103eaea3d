"""What a seed draws: how large its run is, and in what world; every draw is part of what the seed means.

Most runs are small: a few processes and messages, timers so short that several elections fit in, limits so low that
queues overflow, states travel in portions and repairs are partial. Such a run takes a tenth of a second and shows most
of what there is to find; a few are large, for what needs more messages or more time. On request they are tight: small,
with most limits at their least, and groups of different sizes, which change all the while if their protocol can.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from multicast.journal import READ_BYTES
from multicast.protocol import MulticastProtocol, Options
from multicast.session import QUEUE_FRAMES_MAX
from multicast.simulation.fault import Fault
from multicast.simulation.network import Conditions
from multicast.types import GroupId, Topology

SIZES = ("small", "large", "tight")
_LARGE_SHARE = 0.05
_SLOWED = ("delay", "slow_fsync")
_BEATS = ("heartbeat_us", "stability_us", "barrier_threshold_us", "clock_probe_us")
_LINKS = 200
"""Of 14 processes."""
_CROWDS_PORTION = 1_000
"""Bytes, at least."""


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """From what a run of this size is drawn, evenly unless a value stands there repeatedly. Microseconds.

    replicas: of a group, where a minority may fail. uneven: the share of the runs in which each group draws its own
    number of them. messages: how many; the last number is what fits in a span: if the user wants more the run becomes
    longer, not denser. spans, storm_spans: how long clients multicast. paces: of the protocols' `*_us` options, as a
    share of their defaults; storm_pace likewise. beats: so many times longer are the options of what is sent all the
    while (`_BEATS`): a run should not consist of heartbeats. fault_pace: how long faults last, and how far they are
    apart, as a share of what `faults` draws. delays: the most that a message usually takes. fsyncs: how long a sync
    takes. portion_bytes, early_max, pending_max: of `Options`. queue_frames, catch_up_bytes: of `Conditions`. kept: how
    many instances a group's log keeps for a member that lacks no more; who lacks more is given a state
    (parts.truncation, parts.stream); 0: as many as in life. segment_bytes: of journals. windows: for deduplication, as
    a share of the span; windows_share: of the runs whose clocks allow one; copies_share: of those with a window, in
    which most messages come again, up to four windows later. changes_share: of the runs in which groups may change, and
    do; changes: how often; spares_max: so many are added to a group. patience: after which time a client that insists
    tries again. frames_max: of a `Network` (times `crowd`).
    """

    groups: tuple[int, ...]
    replicas: tuple[int, ...]
    uneven: float = 0.0
    messages: tuple[int, ...]
    spans: tuple[int, ...]
    storm_spans: tuple[int, ...]
    paces: tuple[float, ...]
    storm_pace: float
    beats: tuple[float, ...]
    fault_pace: float
    delays: tuple[int, ...]
    fsyncs: tuple[tuple[int, int], ...]
    portion_bytes: tuple[int, ...]
    early_max: tuple[int, ...]
    pending_max: tuple[int, ...]
    queue_frames: tuple[int, ...]
    catch_up_bytes: tuple[int, ...]
    kept: tuple[int, ...] = (0,)
    segment_bytes: tuple[int, ...]
    windows: tuple[float, ...]
    windows_share: float
    copies_share: float = 0.0
    changes_share: float
    changes: tuple[int, ...]
    spares_max: int
    patience_us: int
    frames_max: int


SMALL = Size(
    groups=(1, 2, 2, 2, 2, 2, 2, 3),
    replicas=(1, *(3,) * 20, 4, 4, 5, 5, 7),
    messages=(20, 30, 40, 60),
    spans=(1_000_000, 1_000_000, 2_000_000),
    storm_spans=(1_000_000,),
    paces=(0.1, 0.1, 0.2, 0.3),
    storm_pace=0.1,
    beats=(2.0, 3.0, 4.0),
    fault_pace=0.25,
    delays=(500, 2_000, 10_000),
    fsyncs=((0, 0), (50, 300), (50, 300), (1_000, 4_000), (2_000, 15_000)),
    portion_bytes=(Options().portion_bytes, 10_000, 1_000, 100),
    early_max=(Options().early_max, 100, 8, 1),
    pending_max=(Options().pending_max, Options().pending_max, 30, 6),
    queue_frames=(QUEUE_FRAMES_MAX, 200, 40, 20, 12),
    catch_up_bytes=(READ_BYTES, 5_000, 500, 1),
    segment_bytes=(256, 4_096, 1 << 20),
    windows=(0.1, 0.3, 1.0),
    windows_share=0.4,
    changes_share=0.25,
    changes=(1, 2, 3, 5),
    spares_max=3,
    patience_us=300_000,
    frames_max=300_000,
)
LARGE = Size(
    groups=(1, 2, 2, 3, 3, 4),
    replicas=(3, 3, 3, 3, 4, 5, 5, 7),
    messages=(40, 100, 200),
    spans=(3_000_000, 8_000_000, 15_000_000),
    storm_spans=(2_000_000, 4_000_000),
    paces=(1.0, 0.3, 0.1),
    storm_pace=0.1,
    beats=(1.0,),
    fault_pace=1.0,
    delays=(1_000, 5_000, 50_000),
    fsyncs=((0, 0), (50, 300), (1_000, 8_000), (5_000, 40_000)),
    portion_bytes=(Options().portion_bytes, Options().portion_bytes, 10_000),
    early_max=(Options().early_max, Options().early_max, 300),
    pending_max=(Options().pending_max, Options().pending_max, 100),
    queue_frames=(QUEUE_FRAMES_MAX, QUEUE_FRAMES_MAX, 1_000, 40),
    catch_up_bytes=(READ_BYTES, 5_000),
    segment_bytes=(4_096, 65_536, 1 << 20),
    windows=(0.25, 0.5),
    windows_share=0.4,
    changes_share=0.25,
    changes=(1, 2, 3, 5),
    spares_max=3,
    patience_us=2_000_000,
    frames_max=10_000_000,
)
TIGHT = msgspec.structs.replace(
    SMALL,
    replicas=(1, 2, 2, *(3,) * 6, 4, 5),
    uneven=0.3,
    portion_bytes=(Options().portion_bytes, 1_000, 100, 100),
    early_max=(Options().early_max, 8, 1),
    pending_max=(Options().pending_max, 30, 6, 3),
    kept=(0, 1, 4, 16),
    windows=(0.03, 0.1, 0.3),
    copies_share=0.4,
    windows_share=0.75,
    changes_share=1.0,
    changes=(2, 4, 6, 9, 12),
    spares_max=5,
)
_BY_NAME = dict(zip(SIZES, (SMALL, LARGE, TIGHT), strict=True))


def size(protocol: str, seed: int, given: str | None) -> Size:
    """How large the run of this seed is: as `given`, or mostly small. Its other draws do not depend on who decided."""
    if given is not None:
        return _BY_NAME[given]
    return LARGE if random.Random(f"{protocol}/{seed}/size").random() < _LARGE_SHARE else SMALL


def topology(
    rng: random.Random, chosen: Size, protocol: type[MulticastProtocol], groups: int | None, replicas: int | None
) -> Topology:
    """As given, else drawn."""
    drawn = rng.choice(chosen.groups), rng.choice(chosen.replicas)
    return Topology.grid(groups or drawn[0], replicas or (drawn[1] if protocol.specification.fault_tolerant else 1))


def uneven(rng: random.Random, chosen: Size, protocol: type[MulticastProtocol], even: Topology) -> Topology:
    """In a part of the runs groups of different sizes: who counts a quorum of the wrong one is found by that alone."""
    if rng.random() >= chosen.uneven or not protocol.specification.fault_tolerant:
        return even
    return Topology(groups_of([rng.choice(chosen.replicas) for _ in even.groups]))


def groups_of(sizes: Sequence[int]) -> dict[GroupId, range]:
    """Groups 0, 1, ... of so many processes each, which are numbered one after the other."""
    ends = accumulate(sizes)
    return {group: range(end - size, end) for group, (end, size) in enumerate(zip(ends, sizes, strict=True))}


def shape(topology: Topology) -> str:
    """How many groups of which size."""
    sizes = [len(members) for members in topology.groups.values()]
    return f"{len(sizes)}x{sizes[0]}" if len(set(sizes)) == 1 else "+".join(map(str, sizes))


def conditions(rng: random.Random, chosen: Size, options: Options) -> Conditions:
    """What network, disks and hosts are like. Who never asks again (no `retry_us`) does not tolerate a queue that
    overflows."""
    most, queue = rng.choice(chosen.delays), rng.choice(chosen.queue_frames)
    if not hasattr(options, "retry_us"):
        queue = QUEUE_FRAMES_MAX
    return Conditions(
        delay_us=(100, most),
        late_probability=rng.choice((0.0, 0.01, 0.05)),
        late_us=(most, 20 * most),
        fsync_us=rng.choice(chosen.fsyncs),
        batch_us=rng.choice(((0, 0), (0, 0), (0, 500), (1_000, 3_000))),
        acknowledge_frames=rng.choice((1, 16, 256)),
        queue_frames_max=queue,
        catch_up_bytes=rng.choice(chosen.catch_up_bytes),
        reconnect_us=(int(20_000 * chosen.fault_pace), int(100_000 * chosen.fault_pace)),
    )


def payload_bytes(rng: random.Random) -> int:
    """Of one message: mostly small, at most 100 kB."""
    return rng.randrange(rng.choices((1, 40, 400, 4_000, 100_001), (10, 70, 12, 6, 2))[0])


def paced(faults: Sequence[Fault], pace: float) -> list[Fault]:
    """The same faults in a faster world: sooner, shorter, and what they slow down is slowed down less."""
    return [
        msgspec.structs.replace(
            fault, at_us=int(fault.at_us * pace), lasts_us=int(fault.lasts_us * pace),
            amount_us=int(fault.amount_us * pace) if fault.kind in _SLOWED else fault.amount_us,
            cut_us=int(fault.cut_us * pace),
        )
        for fault in faults
    ]  # fmt: skip


# -- options ----------------------------------------------------------------------------------------------------------


def changed_options(options: Options) -> dict[str, Any]:
    """Those that differ from their defaults."""
    return {
        field.name: getattr(options, field.name)
        for field in msgspec.structs.fields(type(options))
        if getattr(options, field.name) != field.default
    }


def protocol_options(protocol: type[MulticastProtocol], values: Mapping[str, str]) -> Options:
    """Options from text. ValueError that names the option for an unknown one or a bad value."""
    known = {field.name for field in msgspec.structs.fields(protocol.specification.options)}
    for key in values:
        if key not in known:
            raise ValueError(f"{protocol.specification.name} has no option {key!r}; it has {', '.join(sorted(known))}")
    try:
        return msgspec.convert(dict(values), protocol.specification.options, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"bad option for {protocol.specification.name}: {error}") from None


def crowd(where: Topology) -> int:
    """So many times more frames do they need who tell everybody; 1 of fewer than twenty processes."""
    return max(1, len(where.processes) ** 2 // _LINKS)


def options(
    rng: random.Random,
    chosen: Size,
    protocol: type[MulticastProtocol],
    where: Topology,
    span_us: int,
    given: Mapping[str, str],
    storm: bool = False,
) -> dict[str, str]:
    """Every option as text: the timers at some pace, the limits, clock and window, the protocol's own (`Options.draw`);
    what is given goes first, and what contradicts it is not drawn."""
    kind = protocol.specification.options
    pace = chosen.storm_pace if storm else rng.choice(chosen.paces)
    beat = pace * rng.choice(chosen.beats)
    paces = {
        field.name: int(field.default * (beat if field.name in _BEATS else pace))
        for field in msgspec.structs.fields(kind)
        if field.name.endswith("_us") and isinstance(field.default, int) and field.default
    }
    limits = {name: rng.choice(getattr(chosen, name)) for name in ("portion_bytes", "early_max", "pending_max")}
    if crowd(where) > 1:  # each message of ToTo tells of every process, and who comes back lacks some of each
        limits["portion_bytes"] = max(limits["portion_bytes"], _CROWDS_PORTION)
    clock: dict[str, Any] = {"clock": rng.choice(("logical", "hybrid"))}
    clock["clock_skew_us_max"] = rng.choice((150_000, Options().clock_skew_us_max))
    window = int(span_us * rng.choice(chosen.windows)) if rng.random() < chosen.windows_share else 0
    if window and given.get("clock", clock["clock"]) == "hybrid":
        clock["dedup_window_us"] = window
    own = kind.draw(rng, where)
    drawn: dict[str, str] = dict(given)
    for some in (clock, limits, paces, own):
        more = {**{name: str(value) for name, value in some.items()}, **drawn}
        try:
            protocol_options(protocol, more)
        except ValueError:
            continue
        drawn = more
    return drawn
