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

Those of several steps are in `forgotten`.

A protocol with `Specification.fault_tolerant` False promises to survive the same faults so long as every process comes
back (its interface says so): they are drawn alike, but it may make no progress meanwhile. At most a minority of each
group is down at once, except when a whole group loses power; safety holds in either case, since promises are on disk.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from multicast.protocol import Specification
from multicast.simulation import forgotten
from multicast.simulation.fault import Fault
from multicast.simulation.forgotten import Forgotten
from multicast.types import ProcessId, Topology

if TYPE_CHECKING:
    from multicast.simulation.world import World

KINDS = (
    "crash", "power", "mid_sync", "blackout", "pause", "partition", "one_sided", "delay", "reset", "clock", "clocks",
    "slow_fsync", "swizzle",
)  # fmt: skip
_WEIGHTS = (4, 3, 6, 1, 4, 4, 3, 4, 4, 2, 3, 3, 3)
DISK_KINDS = ("torn_tail", "failing_fsync", "lost_disk")
GAP_KINDS = ("gap", "first_sync", "deaf_group", "second_loss")
_GAP_WEIGHTS = (8, 2, 2, 3)
_RETURN_POLL_US = 5_000
_RETURN_LIMIT_US = 3_000_000
"""So long a `second_loss` waits until a process is a member again."""
_STORM = ("mid_sync", "pause", "partition", "one_sided", "delay", "slow_fsync", "swizzle")
_STORM_LASTS_US = 300_000
_SKEW_US = 50_000
_DAY_US = 86_400_000_000
_OFF_US_MAX = 1_500_000
"""So far off a majority of the clocks may be, unless a run wants less."""


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
    types = list(specification.messages)
    rare = list(specification.housekeeping) or types
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


def skew(rng: random.Random, world: World) -> None:
    """Clocks that disagree from the start."""
    for node in world.nodes.values():
        node.offset_us = rng.randint(-_SKEW_US, _SKEW_US)


class Injector:
    """Lets faults happen in a world. counts: how many of each kind took place. clock_off_us_max: of all processes, only
    a minority may have clocks that are further off the world's time."""

    def __init__(self, world: World, faults: Sequence[Fault], clock_off_us_max: int = _OFF_US_MAX):
        self.counts: dict[str, int] = {}
        self._clock_off_us_max = clock_off_us_max
        self._world = self.world = world
        self.over = False
        self._forgotten = Forgotten(self)
        self._amnesiacs: dict[ProcessId, tuple[int, int]] = {}
        start = world.now
        for fault in faults:
            world.schedule(start + fault.at_us, self._begin, fault)

    def stop(self) -> None:
        """No fault begins or ends any more (the world is being healed)."""
        self.over = True
        self._world.traps.clear()

    def _begin(self, fault: Fault) -> None:
        world = self._world
        if self.over:
            return
        if fault.aimed:
            fault = self._aim(fault)
        if not self._apply(fault):
            return
        self.count(fault)
        if fault.lasts_us:
            world.schedule(world.now + fault.lasts_us, self._end, fault)

    def _aim(self, fault: Fault) -> Fault:
        leaders = dict.fromkeys(self.leader(victim) for victim in fault.processes)
        peers = fault.peers
        if len(leaders) == 1:
            victim, leader = fault.processes[0], next(iter(leaders))
            peers = tuple(victim if p == leader else p for p in peers)
        return msgspec.structs.replace(fault, processes=tuple(leaders), peers=peers)

    def leader(self, pid: ProcessId) -> ProcessId:
        """Whom this process takes for the leader of its group; itself, if nobody."""
        leader = self._world.nodes[pid].protocol.leader_of(self._world.topology.group_of[pid])
        return pid if leader is None else leader

    def _apply(self, fault: Fault) -> bool:
        """Whether it could take place."""
        world, kind, victim = self._world, fault.kind, fault.processes[0]
        node = world.nodes[victim]
        if kind in ("crash", "power"):
            if not node.up or not self.may_die(victim):
                return False
            world.crash(victim, power=kind == "power")
        elif kind == "mid_sync":
            world.crash_in_sync(victim, lambda: self._die_in_sync(fault))
            return False
        elif kind == "blackout":
            for pid in fault.processes:
                world.crash(pid, power=True)
        elif kind == "torn_tail":
            world.crash_in_sync(victim, lambda: self._tear(fault))
            return False
        elif kind == "failing_fsync":
            if self.may_die(victim):
                world.fail_sync(victim, lambda: self._died_of_disk(fault))
            return False
        elif kind == "lost_disk":
            if not node.up or not self._may_lose_disk(victim):
                return False
            self._amnesiacs[victim] = (node.life, -1)
            world.lose_disk(victim)
        elif kind == "pause":
            if not node.up or node.paused:
                return False
            world.pause(victim, fault.lasts_us)
        elif kind in ("partition", "one_sided"):
            world.network.block(self._pairs(fault))
        elif kind == "swizzle":
            self._swizzle(fault)
        elif kind == "delay":
            self._slow_links(fault, fault.amount_us)
        elif kind == "gap":
            self._arm(fault)
            return False
        elif kind in forgotten.KINDS:
            self._forgotten.begin(fault)
            return False
        elif kind == "first_sync":
            if not self.may_die(victim):
                return False
            world.crash(victim)
        elif kind == "deaf_group":
            if not node.up:
                return False
            world.network.block(self._pairs(fault))
        elif kind == "second_loss":
            if not node.up or not self._may_lose_disk(victim):
                return False
            world.network.block(self._pairs(fault))
        elif kind == "reset":
            for peer in fault.peers:
                world.network.reset(victim, peer)
                world.network.reset(peer, victim)
        elif kind in ("clock", "clocks"):
            if not self._may_jump(fault):
                return False
            for pid in fault.processes:
                world.jump_clock(pid, fault.amount_us)
        else:
            world.slow_disk(victim, fault.amount_us)
        return True

    def _swizzle(self, fault: Fault) -> None:
        """Cut the members off at random instants of the fault's first part, let them back at such of its second."""
        world, rng = self._world, random.Random(fault.amount_us)
        for pid in fault.processes:
            pairs = [(pid, p) for p in fault.peers if p != pid]
            if rng.random() < 0.5:
                pairs += [(b, a) for a, b in pairs]
            cut = rng.randint(0, fault.lasts_us)
            world.schedule(world.now + cut, self._cut, pairs)
            world.schedule(world.now + cut + rng.randint(0, fault.lasts_us), self._join, pairs)

    def _cut(self, pairs: list[tuple[ProcessId, ProcessId]]) -> None:
        if not self.over:
            self._world.network.block(pairs)

    def _join(self, pairs: list[tuple[ProcessId, ProcessId]]) -> None:
        if not self.over:
            self._world.network.unblock(pairs)

    def _die_in_sync(self, fault: Fault) -> None:
        """A `mid_sync` has found its moment."""
        world = self._world
        if self.over or (len(fault.processes) == 1 and not self.may_die(fault.processes[0])):
            return
        self.count(fault)
        for pid in fault.processes:
            world.crash(pid, power=True)
        world.schedule(world.now + fault.lasts_us, self._end, fault)

    def _tear(self, fault: Fault) -> None:
        """A `torn_tail` has found its moment."""
        world, victim = self._world, fault.processes[0]
        if self.over or world.nodes[victim].disk.unsynced < 2 or not self.may_die(victim):
            return
        self.count(fault)
        world.crash(victim, power=True, torn=True)
        world.schedule(world.now + fault.lasts_us, self._end, fault)

    def _died_of_disk(self, fault: Fault) -> None:
        """A `failing_fsync` has killed; nobody may stay dead when faults are over."""
        world = self._world
        self.count(fault)
        if self.over:
            world.restart(fault.processes[0])
        else:
            world.schedule(world.now + fault.lasts_us, self._end, fault)

    # -- gaps ---------------------------------------------------------------------------------------------------------

    def _arm(self, fault: Fault) -> None:
        """Wait for the message, at each of the processes, until one of them sends or receives it."""
        keys = [(pid, fault.sends, fault.tag) for pid in fault.processes]

        def sprung(pid: ProcessId, peers: tuple[ProcessId, ...]) -> None:
            for key in keys:
                if self._world.traps.get(key) is sprung:
                    del self._world.traps[key]
            self._spring(msgspec.structs.replace(fault, processes=(pid,)), peers)

        for key in keys:
            self._world.traps[key] = sprung

    def _spring(self, fault: Fault, peers: tuple[ProcessId, ...]) -> None:
        """The message is about to leave, or to be handled: hold its batch's sync up, and some of its receivers off."""
        world, victim = self._world, fault.processes[0]
        if self.over or not self.may_die(victim):
            return
        mates = [p for p in world.topology.groups[world.topology.group_of[victim]] if p != victim]
        off: list[ProcessId] = []
        if fault.sends and fault.reaches != "all":
            kept = next((p for p in peers if p in mates), None) if fault.reaches == "one" else None
            off = [p for p in mates if p != kept]
            world.network.block([(victim, p) for p in off])
        holders = [p for p in peers if p in mates and p not in off]
        world.slow_disk(victim, fault.amount_us + 1)
        life = world.nodes[victim].life
        world.schedule(world.now + fault.amount_us, self._strike, fault, life, tuple(off), tuple(holders[:1]))

    def _strike(self, fault: Fault, life: int, off: tuple[ProcessId, ...], holders: tuple[ProcessId, ...]) -> None:
        world, victim = self._world, fault.processes[0]
        if self.over:
            return
        world.slow_disk(victim, 0)
        world.network.unblock([(victim, p) for p in off])
        if world.nodes[victim].life != life or not self.hit(victim, fault.then, fault.lasts_us):
            return
        self.count(fault)
        if holders and fault.cut_us:
            self.cut_off((holders[0],), fault.cut_us)

    def hit(self, victim: ProcessId, then: str, lasts_us: int) -> bool:
        """What a fault of these kinds ends with; whether it may be."""
        world = self._world
        if not world.nodes[victim].up:
            return False
        if then == "pause":
            world.pause(victim, lasts_us)
        elif then == "lost_disk" and self._may_lose_disk(victim):
            self._amnesiacs[victim] = (world.nodes[victim].life, -1)
            world.lose_disk(victim)
            world.schedule(world.now + lasts_us, self._restart, victim)
        elif self.may_die(victim):
            world.crash(victim)
            world.schedule(world.now + lasts_us, self._restart, victim)
        else:
            return False
        return True

    def _restart(self, pid: ProcessId) -> None:
        if not self.over:
            self._world.restart(pid)

    def cut_off(self, processes: Sequence[ProcessId], lasts_us: int) -> None:
        """These from everybody else, both ways, for so long."""
        others = tuple(p for p in self._world.topology.processes if p not in processes)
        cut = Fault("partition", 0, lasts_us, tuple(processes), others)
        self._apply(cut)
        self.count(cut)
        self._world.schedule(self._world.now + lasts_us, self._end, cut)

    def _die_again(self, fault: Fault) -> None:
        """A `first_sync`'s next life begins, and ends."""
        world, victim = self._world, fault.processes[0]
        if world.nodes[victim].up:
            return
        world.slow_disk(victim, fault.amount_us + 1)
        world.restart(victim)
        life = world.nodes[victim].life
        again = msgspec.structs.replace(fault, cut_us=0)
        world.schedule(world.now + fault.amount_us, self._strike, again, life, (), ())

    def _lose_another(self, fault: Fault) -> None:
        """A `second_loss` takes a disk, or what is next, and waits until the one that lost it is a member again."""
        world, victim = self._world, fault.processes[0]
        back_us = min(fault.lasts_us, 20_000)
        goes_on = self.hit(victim, "lost_disk" if fault.again else fault.then, back_us) and fault.again > 0
        world.network.unblock(self._pairs(fault))
        if not goes_on:
            return
        world.schedule(
            world.now + _RETURN_POLL_US, self._await_return, fault, victim, world.now + back_us + _RETURN_LIMIT_US
        )

    def _await_return(self, fault: Fault, victim: ProcessId, limit: int) -> None:
        world = self._world
        if self.over or world.now > limit:
            return
        if not world.nodes[victim].up or self.is_forgetful(victim):
            world.schedule(world.now + _RETURN_POLL_US, self._await_return, fault, victim, limit)
            return
        members = world.topology.groups[world.topology.group_of[victim]]
        leader = world.nodes[victim].protocol.leader_of(world.topology.group_of[victim])
        other = leader if leader in members and leader != victim else fault.peers[0]
        mates = tuple(p for p in members if p != other)
        self._begin(msgspec.structs.replace(fault, processes=(other,), peers=mates, aimed=False, again=fault.again - 1))

    def count(self, fault: Fault) -> None:
        """It takes place."""
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        for observer in self._world.observers:
            observer.on_fault(fault, True)

    def _end(self, fault: Fault) -> None:
        if self.over:
            return
        world, kind = self._world, fault.kind
        for observer in world.observers:
            observer.on_fault(fault, False)
        if kind in ("crash", "power", "mid_sync", "blackout", *DISK_KINDS):
            for pid in fault.processes:
                world.restart(pid)
        elif kind in ("partition", "one_sided", "deaf_group"):
            if kind == "deaf_group" and fault.then:
                self.hit(fault.processes[0], fault.then, fault.lasts_us)
            world.network.unblock(self._pairs(fault))
        elif kind == "first_sync":
            self._die_again(fault)
        elif kind == "second_loss":
            self._lose_another(fault)
        elif kind == "delay":
            self._slow_links(fault, 0)
        elif kind == "slow_fsync":
            world.slow_disk(fault.processes[0], 0)
        elif kind == "clocks" and self._may_jump(back := msgspec.structs.replace(fault, amount_us=-fault.amount_us)):
            for pid in back.processes:
                world.jump_clock(pid, back.amount_us)

    def _may_jump(self, fault: Fault) -> bool:
        """Whether most clocks are right nevertheless."""
        nodes, limit = self._world.nodes, self._clock_off_us_max
        jumps = dict.fromkeys(fault.processes, fault.amount_us)
        off = [pid for pid, node in nodes.items() if abs(node.offset_us + jumps.get(pid, 0)) > limit]
        return not set(jumps) & set(off) or len(off) <= (len(nodes) - 1) // 2

    def may_die(self, pid: ProcessId) -> bool:
        """Whether a minority of its group is down with it. A group of one may always lose its process for a while."""
        topology = self._world.topology
        group = topology.group_of[pid]
        members = topology.groups[group]
        missing = sum(p == pid or not self._world.nodes[p].up or self.is_forgetful(p) for p in members)
        return len(members) == 1 or len(members) - missing >= topology.quorum(group)

    def _may_lose_disk(self, pid: ProcessId) -> bool:
        """Whether all its group remembers, and a minority is down with it."""
        members = self._world.topology.groups[self._world.topology.group_of[pid]]
        return len(members) > 1 and self.may_die(pid) and not any(self.is_forgetful(p) for p in members)

    def is_forgetful(self, pid: ProcessId) -> bool:
        """Whether its disk was lost, and what it has learned since may not be on the new one."""
        known = self._amnesiacs.get(pid)
        if known is None:
            return False
        node = self._world.nodes[pid]
        if not node.up or not node.protocol.is_member():
            self._amnesiacs[pid] = (node.life, -1)
            return True
        life, number = known
        if life != node.life or number < 0:
            number = node.ran
            self._amnesiacs[pid] = (node.life, number)
        if node.flushed < number:
            return True
        del self._amnesiacs[pid]
        return False

    @staticmethod
    def _pairs(fault: Fault) -> list[tuple[ProcessId, ProcessId]]:
        pairs = [(a, b) for a in fault.processes for b in fault.peers]
        if fault.kind == "partition":
            pairs += [(b, a) for a, b in pairs]
        return pairs

    def _slow_links(self, fault: Fault, amount_us: int) -> None:
        for a in fault.processes:
            for b in fault.peers:
                self._world.network.slow(a, b, amount_us)
                self._world.network.slow(b, a, amount_us)
