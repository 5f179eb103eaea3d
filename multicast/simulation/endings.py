"""How a run ends once its faults are over, alike for bare protocols and for whole stores.

1. *A minority dead for good*, in a part of the runs with faults: a minority of every group never comes back (in some
   runs leaders, in some with their disks lost), and the rest must finish everything that is owed. Whoever is down when
   the faults end may be among them; the others die then or a little later. In a part of these runs the dead come back
   after all, and then everybody must be complete.
2. *Latency*: once nothing is under way any more from before (what is late holds up everything behind it on its link),
   and after a quiet time, on a network with known delay, probes to each group, to all of them and to some are sent,
   each twice, since the first may have to find out who leads. Links have room: two messages and a heartbeat
   may be a dozen frames, and where that is too many the connection is gone for longer than anybody may take. Whoever
   is then slower than `promised_us` has not recovered: it lives on being asked, on catching up, or on retries. And
   where stamps follow the time, theirs do.
3. *Leaders stay*, in runs with faults in which candidates ask first: one who does not lead restarts, another one does
   not hear its leader for long, connections break, the leader's disk is slow beyond every timer. None of that may cost
   a group its leader. (What one group stamps in time and another one late may, by parts.stamps; so not while copies
   come late, and under a short window a leader may begin anew.)
4. *Restart of everything*: power fails everywhere in the middle of a few last multicasts; everybody comes back from
   what is durable, at once or one after the other, and must finish everything that is owed, and one more probe. (Not in
   a calm run.)
5. *Nothing is left*: what is over everywhere, nobody keeps anything of, or waits for any more; nor what was over before
   the restart. (Nor if somebody is dead, or copies come late.)
6. *Nobody stands still*: see `stalls`, for bare protocols.
7. *Quiet*: see `quiet`.
8. *Links stay broken*: see `parting`. (Not in a calm run.)

Whatever is owed is decided by who watches the run (`Judged`); the invariants are checked all the while.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from multicast.disk import HANGS_US
from multicast.protocol import Options, Specification
from multicast.session import QUEUE_FRAMES_MAX
from multicast.simulation import leftovers, parting, quiet, stays
from multicast.simulation.casualties import Casualties
from multicast.simulation.fault import Fault
from multicast.simulation.injector import Injector
from multicast.simulation.probe import Probe
from multicast.simulation.stalls import LINK_US, Stalls
from multicast.types import Ballot, GroupId, ProcessId, quorum_of

if TYPE_CHECKING:
    from multicast.simulation.world import World

LIVENESS_LIMIT_US = 60_000_000
"""How long a healed world may take, at most, until everything owed is delivered everywhere."""
_LIVENESS_LEAST_US = 12_000_000
_LIVENESS_TIMEOUTS = 60
DELTA_US = 100
"""Of a message, while latency is judged: far below every timer, so that one who waits for a timer is seen."""
FACTOR = 3
"""A probe may take so many times the collision-free latency as published. Twice that is the worst of two messages that
conflict (every protocol's failure-free latency); and a store's entry replica may have to forward its request."""
_TOTO_DELAYS = 6
"""ToTo publishes no latency in message delays: a cast, the receipts of all members, and their receipts."""
_EARLY_MIN = 8
"""Who may keep fewer messages that came before their turn drops some even now, and asks for them: it takes longer."""
_SOON_US = 15 * DELTA_US
"""What can wait waits for so long meanwhile: longer than most protocols take. Who has multicast the probe must not
notice."""
ANSWER_US = 100_000
"""An answer may take so long after the delivery: less than whoever misses something waits until he asks for it."""
_QUIET_US_MAX = 1_000_000
_COPIES_US = 1_500_000
"""So long clients may go on to repeat themselves."""
_SLOW_DISK_TIMEOUTS = 12
"""A slow disk is slow for about so many timers."""


_STAYS_TIMEOUTS = 6
"""For so many of the longest timers nobody keeps anything that goes when it is done, when all is well."""


class Judged(Protocol):
    """What runs in the world, as its endings see it. dead: who is never going to come back."""

    def unfinished(self, dead: Collection[ProcessId]) -> bool:
        """Whether something that is owed is missing at one of the others."""

    def finish(self, dead: Collection[ProcessId]) -> None:
        """Report what is missing, and whatever can be judged only at the end."""

    def multicast(self, sender: ProcessId, destinations: tuple[GroupId, ...]) -> None:
        """Multicast something, by (or, in a store, through) this process, which is up."""

    def expects_copies(self) -> bool:
        """Whether late copies of messages are still to be multicast."""

    def answered_us(self) -> int:
        """When who multicast the last thing had his answer; 0: nobody waits for one, or not for that alone."""

    def left(self, pid: ProcessId) -> dict[str, int]:
        """How much of what a process keeps only as long as somebody may need it: name -> number."""


def _longest_us(options: Options) -> int:
    """The longest timer of a protocol."""
    return max(getattr(options, name, 0) for name in ("election_timeout_us", "retry_us", "stability_us"))


def liveness_limit_us(options: Options) -> int:
    """What a bare protocol needs with these timers: a run that stands still should not be simulated for a minute."""
    return min(LIVENESS_LIMIT_US, _LIVENESS_LEAST_US + _LIVENESS_TIMEOUTS * _longest_us(options))


def promised_us(specification: Specification, options: Options, clocks_apart_us: int) -> int:
    """Within which time a message that meets no other must be delivered everywhere, when every message takes
    `DELTA_US` and the disk nothing. clocks_apart_us: the greatest difference of two of `MulticastProtocol.real_clock`.

    An optimistic quasi-genuine group proposes a message `wait_us` after its stamp (w(p), Section 3.2), a periodic one
    sends its barriers `barrier_threshold_us` apart, both by its own clock: what that is behind of the one that gave the
    stamp, they are late.
    """
    delays = specification.latency[1] if specification.latency is not None else _TOTO_DELAYS
    return FACTOR * delays * DELTA_US + waits_us(options, clocks_apart_us)


def waits_us(options: Options, clocks_apart_us: int) -> int:
    """How much of `promised_us` is for clocks."""
    optimistic = getattr(options, "optimistic", False)
    periodic = getattr(options, "liveness", "request") == "periodic"
    waits = 2 * optimistic * getattr(options, "wait_us", 0) + 2 * periodic * getattr(options, "barrier_threshold_us", 0)
    if optimistic or periodic:
        waits += 2 * clocks_apart_us
    return waits


def clocks_apart_us(world: World) -> int:
    """By the clocks from which stamps are taken: a wall clock that is off counts for nothing."""
    up = [node for node in world.nodes.values() if node.up]
    clocks = [clock for node in up if (clock := node.protocol.real_clock(node.clock()))]
    return max(clocks) - min(clocks) if clocks else 0


class Endings:
    """Call `run` instead of `World.heal`. injector: of the faults that the run had, which end then; without faults
    nobody dies for good.

    all_return: nobody stays dead.
    limit_us: how long everything owed may take. own: for what `stalls` draws, if it is to judge. counts: of faults that
    took place, and these endings, by kind.
    It stops at the first thing that is wrong.
    """

    def __init__(
        self,
        world: World,
        specification: Specification,
        options: Options,
        judged: Judged,
        rng: random.Random,
        injector: Injector | None,
        limit_us: int = LIVENESS_LIMIT_US,
        own: random.Random | None = None,
    ):
        self._world = world
        self._limit_us = limit_us
        self._specification = specification
        self._options = options
        self._judged = judged
        self._rng = rng
        self._injector = injector
        self.counts: dict[str, int] = {} if injector is None else injector.casualties.counts
        self._probe = Probe(world.topology)
        self._last_death = 0
        self.all_return = False
        self._timeout_us = _longest_us(options)
        world.observers.append(self._probe)
        self._stalls = None if own is None else Stalls(world, judged, own, max(self._timeout_us, LINK_US))
        if self._stalls is not None:
            self._stalls.most_us *= 1 + (options.early_max < _EARLY_MIN)
            world.observers.append(self._stalls)

    def run(self, healed: Callable[[], None] = lambda: None) -> None:
        """Everything above. healed: called as soon as the faults are over."""
        rng, world, injector = self._rng, self._world, self._injector
        dead: tuple[ProcessId, ...] = ()
        if injector is not None:
            injector.casualties.stop()
            if self._specification.fault_tolerant and not self.all_return and rng.random() < 0.4:
                dead = self._bury(injector)
        world.heal(dead)
        healed()
        world.run_until(max(world.now, self._last_death))
        returns = bool(dead) and rng.random() < 0.6
        asked = injector is not None and self._stalls is not None and self._stalls.asks
        if self._stalls is not None and asked:
            world.run_until(max(world.now, world.network.calm_at))
            self._stalls.ask(dead)
        settled = self._settle(dead, quiet=returns)
        if self._stalls is not None and asked:
            self._stalls.judge("when all is healed")
        if not settled or world.violations:
            return
        if returns:
            self._come_back(dead)
            dead = ()
            if not self._settle(dead, quiet=False):
                return
        looked = None if dead or self._judged.expects_copies() else stays.Look(world)
        if self._promised_us() < self._limit_us:  # else no majority is alive and knows the time
            self._judge_latency(dead)
        if injector is not None and not dead and not world.violations:
            self._keep_leaders()
        if injector is not None and not world.violations:
            if looked is not None and not self._judged.expects_copies():
                looked.judge(_STAYS_TIMEOUTS * self._timeout_us)
            self._restart_everything()
        if not dead and not world.violations and not self._judged.expects_copies():
            self._judge_left()
        if injector is not None and not dead and not world.violations:
            self._judge_stalls()
        if not dead and not world.violations and not self._judged.expects_copies():
            quiet.judge(world, self._options, max(self._timeout_us, 1_000))
        if injector is not None and self._specification.fault_tolerant and not dead and not world.violations:
            self._part()

    # -- a minority dead for good -------------------------------------------------------------------------------------

    def _bury(self, injector: Injector) -> tuple[ProcessId, ...]:
        """Who stays dead, of every group as many as it may lose. Some of them die only when the rest is healed."""
        rng, world, topology = self._rng, self._world, self._world.topology
        aim, late_us = rng.choice((0.0, 0.6)), rng.choice((0, 0, self._timeout_us, 4 * self._timeout_us))
        dead: list[ProcessId] = []
        for group, members in topology.groups.items():
            many = min(len(some) - quorum_of(len(some)) for some in topology.counting(group))
            forgetful = [p for p in members if injector.casualties.is_forgetful(p)]
            leader = world.nodes[rng.choice(members)].protocol.leader_of(group)
            chosen = forgetful[:many]
            if leader in members and leader not in chosen and rng.random() < aim:
                chosen.append(leader)
            chosen += rng.sample([p for p in members if p not in chosen], max(0, many - len(chosen)))
            chosen = chosen[:many]
            loses = self._specification.survives_lost_disk and not forgetful and rng.random() < 0.3
            for place, pid in enumerate(chosen):
                at = world.now + (0 if pid in forgetful else rng.randint(0, late_us))
                self._last_death = max(self._last_death, at)
                world.schedule(at, self._die, pid, loses and place == 0, injector.casualties)
            dead += chosen
        world.run_for(0)
        if dead:
            self._tell("minority_dead", tuple(dead))
        return tuple(dead)

    def _die(self, pid: ProcessId, with_disk: bool, casualties: Casualties) -> None:
        if with_disk and not casualties.has_dropped(self._world.topology.groups[self._world.topology.group_of[pid]]):
            self._world.lose_disk(pid)
        else:
            self._world.crash(pid)

    def _come_back(self, dead: tuple[ProcessId, ...]) -> None:
        self._tell("minority_back", dead)
        self._begin_again(dead, self._rng.choice((0, self._timeout_us)))

    def _begin_again(self, processes: Collection[ProcessId], within_us: int) -> None:
        world = self._world
        for pid in processes:
            world.schedule(world.now + self._rng.randint(0, within_us), world.restart, pid)
        world.run_for(within_us)

    # -- latency ------------------------------------------------------------------------------------------------------

    def _judge_latency(self, dead: Collection[ProcessId]) -> None:
        world, rng = self._world, self._rng
        world.run_until(max(world.now, world.network.calm_at))
        kept = world.conditions
        world.conditions = world.network.conditions = msgspec.structs.replace(
            kept, delay_us=(DELTA_US, DELTA_US), fsync_us=(0, 0), batch_us=(0, 0), soon_us=_SOON_US,
            queue_frames_max=QUEUE_FRAMES_MAX,
        )  # fmt: skip
        world.network.have_room()
        world.run_for(2 * self._quiet_us if dead else self._quiet_us)  # a new leader has yet to miss the other dead
        alive = [p for p in world.topology.processes if p not in dead]
        for destinations in self._shapes():
            sender = rng.choice(alive)
            for warm, again in ((False, False), (True, False), (True, True)):
                self._probe.expect(destinations, dead)
                begun, least = world.now, self._least_clock()
                self._judged.multicast(sender, destinations)
                wait_us = self._promised_us() if warm else 2 * self._quiet_us  # the cold one finds out who leads now
                world.run_while(self._probe.is_missing, wait_us, DELTA_US)
                if not self._settle(dead, quiet=False):
                    return
                if warm and self._probe.sent and all(map(world.belongs, (sender, *self._probe.members))):
                    late = list(self._late(begun, sender))
                    if late and 0 < 2 * self._options.dedup_window_us < _COPIES_US and not again:
                        world.run_for(_COPIES_US)  # perhaps a late copy was in its way, until somebody recognised it
                        continue
                    for text in late:
                        world.report("latency", text)
                    self._judge_timestamp(least)
                world.run_for(20 * DELTA_US)
                if warm:
                    break
        world.conditions = world.network.conditions = kept
        world.network.have_room()

    def _shapes(self) -> list[tuple[GroupId, ...]]:
        """Each group, all of them, and another part of them."""
        groups = list(self._world.topology.groups)
        shapes = {(g,) for g in groups} | {tuple(groups)}
        shapes.add(tuple(sorted(self._rng.sample(groups, self._rng.randint(1, len(groups))))))
        return sorted(shapes)

    def _late(self, begun: int, sender: ProcessId) -> Iterator[str]:
        """Who has delivered the probe too late, in sentences."""
        world, probe, most = self._world, self._probe, self._promised_us()
        if self._options.early_max < _EARLY_MIN:
            most *= 2
        for pid in probe.members:
            took = probe.delivered.get(pid, world.now) - begun
            if took > most + (pid != sender) * _SOON_US:
                role = world.nodes[pid].protocol.role()
                yield (
                    f"process {pid} ({role}) delivers what process {sender} multicasts to groups {probe.destinations}"
                    f" after {took / 1000:.1f} ms, when everything has long been healed; {most / 1000:.1f} ms is enough"
                    f" with {DELTA_US / 1000} ms per message"
                )
        waited_us = self._judged.answered_us() - max(probe.delivered.values(), default=world.now)
        if waited_us > ANSWER_US:
            yield (
                f"process {sender} answers what it has multicast to groups {probe.destinations}"
                f" {waited_us / 1000:.1f} ms after that was delivered everywhere, when everything has long been healed"
            )

    def _least_clock(self) -> int:
        """What every stamp from now on is above, where stamps follow the time; else 0."""
        protocols = [(node.protocol, node.clock()) for node in self._world.nodes.values() if node.up]
        return min(protocol.real_clock(now) if protocol.reads_real_clock() else 0 for protocol, now in protocols)

    def _judge_timestamp(self, least: int) -> None:
        behind_us = least - self._probe.timestamp.time
        if self._probe.delivered and behind_us > 0:
            text = f"a probe to groups {self._probe.destinations} is delivered at a timestamp {behind_us / 1e6:.6f} s"
            self._world.report("true time", f"{text} behind the clocks of all that may have stamped it")

    def _promised_us(self) -> int:
        return promised_us(self._specification, self._options, clocks_apart_us(self._world))

    # -- leaders stay -------------------------------------------------------------------------------------------------

    def _keep_leaders(self) -> None:
        """What is no reason for a change of leaders, one after the other, in one group."""
        world, rng = self._world, self._rng
        members = world.topology.groups[rng.choice(list(world.topology.groups))]
        before = self._ballots()
        shown = [node.offset_us for node in world.nodes.values() if node.life]
        off = max(shown) - min(shown) > self._options.clock_skew_us_max // 2  # by then, or as soon as it is measured
        asks_first = getattr(self._options, "ask_first", False)
        if off or not asks_first or len(members) < 3 or members[0] not in before or self._judged.expects_copies():
            return
        leader = max(before[p] for p in members).leader
        other, deaf = rng.sample([p for p in members if p != leader], 2)
        disturbances = [
            ("other_restarts", other, self._restart_one), ("leader_unheard", deaf, self._deafen),
            ("links_break", leader, self._break_links), ("leaders_disk", leader, self._slow_disk),
        ]  # fmt: skip
        short = 0 < self._options.dedup_window_us < _SLOW_DISK_TIMEOUTS * self._timeout_us
        if short:
            del disturbances[-1]  # what is decided too late for its id may be a reason for a new leader
        for kind, victim, disturb in disturbances:
            self._tell(kind, (victim,))
            disturb(victim, leader)
            world.run_for(3 * self._timeout_us)
            if not self._settle((), quiet=False):
                return
            after = self._ballots()
            if any(after[p].leader != before[p].leader if short else after[p] != before[p] for p in before):
                text = f"a leader was deposed: {before}, and after {kind} at process {victim}: {after}"
                world.report("leaders", text)
                return

    def _ballots(self) -> dict[ProcessId, Ballot]:
        """What each process has promised, where leaders are elected."""
        elections = {pid: node.protocol.election for pid, node in self._world.nodes.items() if node.life}
        return {pid: election.promised for pid, election in elections.items() if election is not None}

    def _restart_one(self, victim: ProcessId, leader: ProcessId) -> None:
        self._world.crash(victim)
        self._begin_again((victim,), self._rng.choice((0, self._timeout_us)))

    def _deafen(self, victim: ProcessId, leader: ProcessId) -> None:
        """The leader does not reach it, and cannot be dialled; the other way, and with others, all is well."""
        pair = [(leader, victim)] if leader != victim else []
        self._world.network.block(pair)
        self._world.run_for(3 * self._timeout_us)
        self._world.network.unblock(pair)

    def _break_links(self, victim: ProcessId, leader: ProcessId) -> None:
        """All of the leader's, which come back soon."""
        timeout_us: int = getattr(self._options, "election_timeout_us", 0)
        soon = (timeout_us // 20, timeout_us // 10)
        network = self._world.network
        network.conditions = msgspec.structs.replace(network.conditions, reconnect_us=soon)
        for pid in self._world.topology.processes:
            if pid != victim:
                self._world.network.reset(pid, victim)
                self._world.network.reset(victim, pid)

    def _slow_disk(self, victim: ProcessId, leader: ProcessId) -> None:
        """Syncs take longer than anybody's patience, and there is always one to wait for. (The disk does not hang.)"""
        self._world.slow_disk(victim, min(3 * self._timeout_us, HANGS_US - self._timeout_us // 10))
        for _ in range(6):
            self._judged.multicast(victim, tuple(self._world.topology.groups))
            self._world.run_for(self._timeout_us)
        self._world.slow_disk(victim, 0)

    # -- everything restarts ------------------------------------------------------------------------------------------

    def _restart_everything(self) -> None:
        rng, world = self._rng, self._world
        processes = tuple(world.topology.processes)
        groups = tuple(world.topology.groups)
        for _ in range(rng.choice((0, 1, 3))):
            up = [p for p in processes if world.nodes[p].up]
            self._judged.multicast(rng.choice(up), groups)
            world.run_for(rng.choice((0, 200, 2_000)))
        for pid in processes:
            world.crash(pid)
        staggered = rng.random() < 0.4
        self._tell("all_staggered" if staggered else "all_restarted", processes)
        self._begin_again(processes, rng.choice((1_000, 3 * self._timeout_us)) if staggered else 0)
        if self._settle(()):
            self._judged.multicast(rng.choice(processes), groups)
            self._settle((), quiet=False)

    # -- nothing is left ----------------------------------------------------------------------------------------------

    def _judge_left(self) -> None:
        world = self._world
        for pid, left in leftovers.wait(world, self._judged.left, self._timeout_us).items():
            role = world.nodes[pid].protocol.role()
            world.report("left", f"process {pid} ({role}) keeps {left}, when everything has long been done")

    # -- nobody stands still ------------------------------------------------------------------------------------------

    def _judge_stalls(self) -> None:
        stalls = self._stalls
        if stalls is None or not stalls.deafens or not self._specification.fault_tolerant:
            return
        concerned = stalls.deafen()
        if concerned:
            self._tell("deaf_and_dead", concerned)
            self._settle((), quiet=False)

    # -- links that stay broken ---------------------------------------------------------------------------------------

    def _part(self) -> None:
        """Some never work again; what is for the groups at their ends is delivered everywhere, and only the leader who
        is at an end of all of them gives way."""
        how = self._rng, self._judged, self._timeout_us, self._limit_us
        parting.Parting(self._world, *how, lambda: self._settle((), quiet=False), self._tell, self._ballots).run()

    # -- waiting ------------------------------------------------------------------------------------------------------

    @property
    def _quiet_us(self) -> int:
        """After which time whatever is still going to happen by itself has begun."""
        return min(_QUIET_US_MAX, 2 * self._timeout_us) if self._timeout_us else _QUIET_US_MAX

    def _settle(self, dead: Collection[ProcessId], quiet: bool = True) -> bool:
        """Everything owed is there, and so it stays; False: not in time, or something else is wrong."""
        world, judged = self._world, self._judged
        since, deadline, before = world.now, world.now + self._limit_us, len(world.violations)

        def unfinished() -> bool:
            owed = judged.unfinished(dead)
            if owed and self._stalls is not None:
                self._stalls.watch(max(since, world.network.calm_at))
            return owed

        while world.run_while(unfinished, deadline - world.now):
            if quiet:
                world.run_for(self._quiet_us)
            if not judged.unfinished(dead):
                break
        judged.finish(dead)
        if dead and len(world.violations) > before:
            checker, text = world.violations[before]
            world.violations[before] = (checker, f"{text} (with processes {list(dead)} dead for good)")
        return not world.violations

    def _tell(self, kind: str, processes: tuple[ProcessId, ...]) -> None:
        """It takes place."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        for observer in self._world.observers:
            observer.on_fault(Fault(kind, 0, 0, processes), True)
