"""Faults, drawn from a seed before a run begins.

Kinds: `crash` (the process dies; what it had written stays), `power` (its machine dies: unsynced bytes are lost, a
batch may be torn), `mid_sync` (power fails while a sync is under way, for one process or its whole group), `blackout`
(power fails for a whole group), `pause`, `partition` (a process or a group is cut off both ways), `one_sided` (one
direction of some links is dead), `delay` (a process's links are slow for a while), `reset` (some connections break),
`clock` (a wall clock jumps), `clocks` (those of a minority, or of one leader of each group, jump, and are set right
again in most cases), `slow_fsync`, `swizzle` (the members of a group are cut off one after the other, and let back
in another order; FoundationDB's swizzle-clogging: leaders change and change back). Whoever crashes comes back before
the run's second phase, or at its beginning.

A part of the runs has faults of disks, too: `torn_tail` (power fails while a sync is under way, and a part of what was
being written is left), `failing_fsync` (a sync fails, the process dies of it), and for protocols that survive it
`lost_disk` (power fails, and the process comes back with an empty disk). A process without memory counts as down until
that it is a member again is durable; a group has at most one of them.

Most runs have faults at the instants that random ones seldom hit (`draw_gaps`):
- `gap`: the first of some processes that sends or is about to receive a message of a drawn type (often one of leader
  changes, readmission or watermarks) loses power within a drawn time, and no sync that begins meanwhile ends: what it
  told without waiting for the disk, or was told, is on others' disks and not on its own. Or it pauses, or loses its
  disk. Often the message reaches only a part of those whom it is for; often one who has it is then cut off, so that the
  next leader is elected by those who have not.
- `first_sync`: a process dies, and once more within the first sync of its next life.
- `deaf_group`: what a process tells its own group is held up, not what it tells others; in half of these it then ends
  as in a gap, and its group has never heard it.
- `second_loss`: a process, often the leader, has its group deaf to it, and loses its disk; and as soon as it is a
  member again, the same happens to another one of its group, or it loses power, is paused or cut off; and so on.

Those of several steps are in `forgotten`. `injector` lets them all happen.

A protocol with `Specification.fault_tolerant` False promises to survive the same faults so long as every process comes
back (its interface says so): they are drawn alike, but it may make no progress meanwhile. At most a minority of each
group is down at once, except when a whole group loses power; safety holds in either case, since promises are on disk.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from multicast import membership
from multicast.protocol import Specification
from multicast.simulation.fault import Fault
from multicast.simulation.scene import Scene
from multicast.types import ProcessId, Topology

KINDS = (
    "crash", "power", "mid_sync", "blackout", "pause", "partition", "one_sided", "delay", "reset", "clock", "clocks",
    "slow_fsync", "swizzle",
)  # fmt: skip
_WEIGHTS = (4, 3, 6, 1, 4, 4, 3, 4, 4, 2, 3, 3, 3)
DISK_KINDS = ("torn_tail", "failing_fsync", "lost_disk")
GAP_KINDS = ("gap", "first_sync", "deaf_group", "second_loss")
_GAP_WEIGHTS = (8, 2, 2, 3)
_STORM = ("mid_sync", "pause", "partition", "one_sided", "delay", "slow_fsync", "swizzle")
_STORM_LASTS_US = 300_000
_SKEW_US = 50_000
_DAY_US = 86_400_000_000


def draw(rng: random.Random, topology: Topology, span_us: int, storm: bool = False) -> list[Fault]:
    """Faults for a phase of `span_us`. Each seed has its own taste: some kinds, some rate, some favourite victims. In a
    storm they are short and come fast, mostly at leaders: leaders change before they have finished anything."""
    kinds = [k for k in (_STORM if storm else KINDS) if rng.random() < 0.6] or ["power"]
    weights = [_WEIGHTS[KINDS.index(k)] for k in kinds]
    gap_us = rng.choice((100_000, 200_000) if storm else (60_000, 200_000, 500_000, 1_000_000, 2_000_000))
    aim = 0.7 if storm else rng.choice((0.0, 0.4, 0.8))
    processes = list(topology.processes)
    if rng.random() < (0.6 if storm else 0.3):
        processes = list(topology.groups[rng.choice(list(topology.groups))])
    faults: list[Fault] = []
    at = rng.randint(0, gap_us)
    while at < span_us:
        kind = rng.choices(kinds, weights)[0]
        fault = _draw_one(kind, at, rng, topology, processes)
        if storm:
            fault = msgspec.structs.replace(fault, lasts_us=min(fault.lasts_us, _STORM_LASTS_US))
        faults.append(msgspec.structs.replace(fault, aimed=_has_one_victim(fault) and rng.random() < aim))
        at += int(rng.expovariate(1 / gap_us)) + 1
    return faults


def _has_one_victim(fault: Fault) -> bool:
    """One per group, or one at all."""
    return len(fault.processes) == 1 or fault.kind == "clocks"


def _draw_one(kind: str, at: int, rng: random.Random, topology: Topology, processes: Sequence[ProcessId]) -> Fault:
    victim = rng.choice(processes)
    lasts = rng.choice((2_000, 20_000, 200_000, 1_000_000, 3_000_000))
    lasts = rng.randint(lasts // 2, lasts)
    everybody = topology.processes
    if kind == "blackout" or (kind == "mid_sync" and rng.random() < 0.3):
        return Fault(kind, at, lasts, topology.groups[topology.group_of[victim]])
    if kind == "swizzle":
        members = list(topology.groups[topology.group_of[victim]])
        rng.shuffle(members)
        return Fault(kind, at, lasts, tuple(members), everybody, rng.getrandbits(32))
    if kind == "partition":
        inside = topology.groups[topology.group_of[victim]] if rng.random() < 0.3 else (victim,)
        return Fault(kind, at, lasts, inside, tuple(p for p in everybody if p not in inside))
    if kind in ("one_sided", "reset"):
        others = [p for p in everybody if p != victim]
        return Fault(
            kind, at, lasts, (victim,), tuple(rng.sample(others, rng.randint(1, len(others)))) if others else ()
        )
    if kind == "delay":
        return Fault(
            kind, at, lasts, (victim,), tuple(p for p in everybody if p != victim), rng.choice((2_000, 20_000, 300_000))
        )
    if kind == "clock":
        return Fault(kind, at, 0, (victim,), (), _draw_jump(rng))
    if kind == "clocks":
        victims = [rng.choice(members) for members in topology.groups.values()]
        if rng.random() < 0.5:
            victims = rng.sample(everybody, max(1, (len(everybody) - 1) // 2))
        return Fault(kind, at, lasts if rng.random() < 0.8 else 0, tuple(victims), (), _draw_jump(rng))
    if kind == "slow_fsync":
        return Fault(kind, at, lasts, (victim,), (), rng.choice((4_000, 30_000, 400_000)))
    return Fault(kind, at, lasts, (victim,))


def _draw_jump(rng: random.Random) -> int:
    """From a millisecond to a day, either way."""
    return rng.choice((-1, 1)) * int(1_000 * (_DAY_US / 1_000) ** rng.random())


def draw_disk(
    rng: random.Random, topology: Topology, span_us: int, survives_lost_disk: bool, storm: bool = False
) -> list[Fault]:
    """Faults of disks, in half of the runs or more, in addition to those of `draw`. When a disk is lost, somebody else
    of the group is often cut off for longer: then those who still remember are no quorum with whom does not."""
    if rng.random() < (0.25 if survives_lost_disk else 0.5):
        return []
    kinds = [k for k in DISK_KINDS if (k != "lost_disk" or survives_lost_disk) and rng.random() < 0.7]
    aim = rng.choice((0.0, 0.4, 0.8))
    faults: list[Fault] = []
    for _ in range(rng.choice((1, 2, 4, 8)) if kinds else 0):
        kind, at = rng.choice(kinds), rng.randrange(span_us)
        most = _STORM_LASTS_US if storm else rng.choice((20_000, 200_000, 2_000_000))
        lasts, victim = rng.randint(most // 10, most), rng.choice(topology.processes)
        faults.append(Fault(kind, at, lasts, (victim,), aimed=rng.random() < aim))
        others = [p for p in topology.groups[topology.group_of[victim]] if p != victim]
        if kind == "lost_disk" and others and rng.random() < 0.5:
            other = rng.choice(others)
            rest = tuple(p for p in topology.processes if p != other)
            begin = max(0, at - rng.randrange(200_000))
            end = at + lasts + rng.randrange(2_000_000)
            faults.append(Fault("partition", begin, end - begin, (other,), rest, aimed=rng.random() < 0.5))
    return sorted(faults, key=lambda fault: fault.at_us)


def draw_gaps(rng: random.Random, topology: Topology, span_us: int, specification: Specification) -> list[Fault]:
    """Faults at instants that random ones seldom hit, in most runs, in addition to those of `draw`."""
    if rng.random() < 0.25:
        return []
    ends = ["power", "power", "power", "pause", *(["lost_disk"] if specification.survives_lost_disk else [])]
    kinds = [kind for kind in GAP_KINDS if kind != "second_loss" or specification.survives_lost_disk]
    weights = [_GAP_WEIGHTS[GAP_KINDS.index(kind)] for kind in kinds]
    types = [t for t in specification.messages if t not in membership.MESSAGES]
    rare = [t for t in specification.housekeeping if t not in membership.MESSAGES] or types
    group = rng.choice(list(topology.groups))
    faults: list[Fault] = []
    for _ in range(rng.choice((2, 4, 8))):
        kind, at = rng.choices(kinds, weights)[0], rng.randrange(span_us)
        if rng.random() < 0.3:
            group = rng.choice(list(topology.groups))
        members = topology.groups[group]
        victim = rng.choice(members)
        mates = tuple(p for p in members if p != victim)
        lasts = rng.choice((2_000, 20_000, 200_000, 600_000))
        about = rng.choice(rare if rng.random() < 0.6 else types)
        fault = Fault(
            kind, at, rng.randint(lasts // 2, lasts), (victim,), mates, rng.choice((0, 300, 3_000, 30_000)),
            tag=about.__struct_config__.tag,  # type: ignore[attr-defined]
            message=about.__name__, sends=rng.random() < 0.6, then=rng.choice(ends),
            reaches=rng.choice(("all", "all", "one", "none")), cut_us=rng.choice((0, 100_000, 500_000, 2_000_000)),
        )  # fmt: skip
        if kind == "deaf_group" and rng.random() < 0.5:
            fault = msgspec.structs.replace(fault, then="")
        if kind == "gap":
            fault = msgspec.structs.replace(fault, processes=members if rng.random() < 0.6 else (victim,))
            if rng.random() < 0.5:
                faults.append(Fault("pause", at, rng.choice((50_000, 300_000, 1_500_000)), (victim,), aimed=True))
        else:
            fault = msgspec.structs.replace(fault, aimed=rng.random() < 0.7, again=rng.choice((1, 1, 2)))
        faults.append(fault)
    return faults


def skew(rng: random.Random, world: Scene) -> None:
    """Clocks that disagree from the start."""
    for node in world.nodes.values():
        node.offset_us = rng.randint(-_SKEW_US, _SKEW_US)
