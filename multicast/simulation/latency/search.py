"""The worst schedule, searched for: coordinate ascent from random starts.

Failure-free latency is a supremum over everything in a `Schedule`. Nothing tells the search what the worst one looks
like. It begins somewhere at random, and then changes a thing or two at a time, keeping what makes m later (or as late:
so it wanders over plateaus): the sender of m; who sends a conflicting message, to whom and when, at an instant at which
something happens in the run at hand or just before one; how far ahead a group's clock is; clock errors; the delay of a
message, of all on a link, of all of a kind, mostly 0 or δ, sometimes between. Starts alternate between two aims, the
first delivery in each group and the last of all; one that gets stuck is given up for a new one, or for one a few
changes away from the worst so far; a good one is polished. One generator, seeded, decides everything, and effort is
counted in messages processed, so a search is repeatable. In the end whatever does not matter is taken out of the worst
schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import msgspec

from multicast.simulation.latency.schedule import (
    DELTA_US,
    EARLIEST_US,
    Conflict,
    Key,
    Model,
    Played,
    Schedule,
    play,
)
from multicast.types import GroupId, ProcessId

EPSILON_US = 1
"""How close to an instant a search goes."""

EVENTS = 400_000
"""How many messages one search processes, at effort 1: a few seconds."""

_STUCK = 150
_KICKS_MAX = 4
_POLISH_BELOW = 0.5
_ANOTHER_CHANGE = 0.35
_SIMPLIFY_RUNS = 200
_STEPS_US = (500, 200, 100, 50, 20, 10, 5, 2, 1)
_AHEAD = (0, 2, 4)
_SUBSETS_GROUPS_MAX = 4

Aim = Callable[[Played], float]


class Found(msgspec.Struct, kw_only=True):
    """The worst that a search saw, by both aims, in δ, and how. runs: how many schedules it tried."""

    first: float
    every: float
    worst_first: Schedule
    worst_every: Schedule
    runs: int


class Search:
    """One search. destinations: of m. conflicts: how many conflicting messages there are. skew_us: the greatest clock
    error. at_leader: "first" is measured at each group's leader. distinct: no two messages are multicast at the same
    instant.
    """

    def __init__(
        self,
        model: Model,
        destinations: tuple[GroupId, ...],
        seed: int,
        *,
        conflicts: int = 1,
        skew_us: int = 0,
        at_leader: bool = False,
        distinct: bool = False,
        effort: float = 1.0,
    ):
        self.model = model
        self.destinations = destinations
        self.conflicts = conflicts
        self.skew_us = skew_us
        self.distinct = distinct
        self.events_max = int(EVENTS * effort)
        self.rng = random.Random(f"{model.protocol.specification.name}/{model.topology.groups}/{seed}")
        self.events = self.runs = 0
        self._first: Aim = (lambda p: p.leader) if at_leader else (lambda p: p.first)
        self._every: Aim = lambda p: p.every
        self._best: dict[str, tuple[float, Schedule]] = {}
        self._sets = self._destination_sets()

    def run(
        self,
        reached: Callable[[float, float], bool] | None = None,
        more: int = 1,
        progress: Callable[[float], None] | None = None,
    ) -> Found:
        """Spend the effort; up to `more` times it while `reached(first, every)` is false. progress: is told the share
        of the effort that is spent."""
        starts = 0
        while self.events < self.events_max or self._goes_on(reached, more):
            name, aim = ("every", self._every) if starts % 2 else ("first", self._first)
            if starts % 4 < 2:
                schedule, played = self._start(calm=starts % 8 < 2)
            else:
                schedule, played = self._kicked(self._best[name][1])
            self._climb(aim, schedule, played)
            starts += 1
            if progress is not None:
                progress(min(1.0, self.events / self.events_max))
        first, every = self._simple("first", self._first), self._simple("every", self._every)
        return Found(first=first[0], every=every[0], worst_first=first[1], worst_every=every[1], runs=self.runs)

    def _simple(self, name: str, aim: Aim) -> tuple[float, Schedule]:
        """The worst schedule without what does not matter."""
        value, schedule = self._best[name]
        budget = _SIMPLIFY_RUNS
        for field in ("delays_us", "skew_us", "ahead"):
            chunk = len(getattr(schedule, field))
            while chunk and budget:
                keys = sorted(getattr(schedule, field))
                for start in range(0, len(keys), chunk):
                    now = getattr(schedule, field)
                    fewer = {k: v for k, v in now.items() if k not in keys[start : start + chunk]}
                    simpler = msgspec.structs.replace(schedule, **{field: fewer})
                    if budget and fewer != now:
                        budget -= 1
                        if aim(self._play(simpler)) >= value:
                            schedule = simpler
                chunk //= 2
        return self._best[name][0], schedule

    def _goes_on(self, reached: Callable[[float, float], bool] | None, more: int) -> bool:
        if reached is None or self.events >= more * self.events_max:
            return False
        return not reached(self._best["first"][0], self._best["every"][0])

    # -- ascent -------------------------------------------------------------------------------------------------------

    def _climb(self, aim: Aim, schedule: Schedule, played: Played) -> None:
        """From here until it is stuck."""
        score = (aim(played), played.mean)
        since = 0
        while since < _STUCK:
            changed = self._change(schedule, played)
            while self.rng.random() < _ANOTHER_CHANGE:
                changed = self._change(changed, played)
            if changed == schedule or self._excluded(changed):
                continue
            after = self._play(changed)
            better = (aim(after), after.mean)
            since = 0 if better > score else since + 1
            if better >= score:
                schedule, played, score = changed, after, better
        if score[0] >= self._best["every" if aim is self._every else "first"][0] - _POLISH_BELOW:
            self._polish(aim, schedule, score[0])

    def _polish(self, aim: Aim, schedule: Schedule, score: float) -> None:
        """Move the conflicting messages' instants, one or all of them, in ever smaller steps, while that helps."""
        every = tuple(range(len(schedule.conflicts)))
        for step in _STEPS_US:
            for some in (every, *((index,) for index in every)):
                for signed in (step, -step):
                    while (moved := self._moved(schedule, some, signed)) is not None:
                        after = aim(self._play(moved))
                        if after <= score:
                            break
                        schedule, score = moved, after

    def _moved(self, schedule: Schedule, some: tuple[int, ...], by_us: int) -> Schedule | None:
        """These conflicting messages earlier or later; None if that is not allowed, or nothing."""
        conflicts = list(schedule.conflicts)
        for index in some:
            at = conflicts[index].at_us + by_us
            if not EARLIEST_US <= at <= -EARLIEST_US:
                return None
            conflicts[index] = msgspec.structs.replace(conflicts[index], at_us=at)
        moved = msgspec.structs.replace(schedule, conflicts=tuple(conflicts))
        return None if moved == schedule or self._excluded(moved) else moved

    def _play(self, schedule: Schedule) -> Played:
        played = play(self.model, schedule, self.model.protocol.specification.housekeeping)
        self.events += played.events
        self.runs += 1
        for name, aim in (("first", self._first), ("every", self._every)):
            value = aim(played)
            if name not in self._best or value > self._best[name][0]:
                self._best[name] = (value, schedule)
        return played

    # -- schedules ----------------------------------------------------------------------------------------------------

    def _kicked(self, schedule: Schedule) -> tuple[Schedule, Played]:
        """A few changes away from this one, for better or worse."""
        played = self._play(schedule)
        for _ in range(self.rng.randint(1, _KICKS_MAX)):
            changed = self._change(schedule, played)
            if not self._excluded(changed):
                schedule = changed
                played = self._play(schedule)
        return schedule, played

    def _excluded(self, schedule: Schedule) -> bool:
        instants = [0, *(c.at_us for c in schedule.conflicts)]
        return self.distinct and len(set(instants)) < len(instants)

    def _start(self, calm: bool) -> tuple[Schedule, Played]:
        """Anywhere. calm: all delays are δ at first."""
        rng, topology = self.rng, self.model.topology
        span = 6 * DELTA_US
        schedule = Schedule(
            sender=rng.choice(topology.processes),
            destinations=self.destinations,
            conflicts=tuple(self._conflict(at) for at in self._instants(span)),
            ahead={g: rng.choice(_AHEAD) for g in topology.groups},
            skew_us={p: self._skew() for p in topology.processes} if self.skew_us else {},
        )
        played = self._play(schedule)
        if calm:
            return schedule, played
        schedule = msgspec.structs.replace(schedule, delays_us=self._delays(played.keys))
        return schedule, self._play(schedule)

    def _instants(self, span: int) -> list[int]:
        """For the conflicts, all different and not m's."""
        instants = self.rng.sample(range(-span, span), self.conflicts)
        return [at if at else span for at in instants]

    def _conflict(self, at_us: int) -> Conflict:
        rng = self.rng
        return Conflict(at_us, rng.choice(self.model.topology.processes), rng.choice(self._sets))

    def _delays(self, keys: list[Key]) -> dict[Key, int]:
        """Some messages, few or many, take no time."""
        share = self.rng.choice((0.05, 0.2, 0.5))
        return {key: 0 for key in keys if self.rng.random() < share}

    def _skew(self) -> int:
        return self.rng.choice((-self.skew_us, 0, self.skew_us))

    def _destination_sets(self) -> list[tuple[GroupId, ...]]:
        """To whom a conflicting message may go: every set of few groups; of many, those of at most two, and m's."""
        groups = tuple(self.model.topology.groups)
        most = len(groups) if len(groups) <= _SUBSETS_GROUPS_MAX else 2
        sets = set(chain.from_iterable(combinations(groups, size) for size in range(1, most + 1)))
        return sorted(sets | {self.destinations})

    # -- changes ------------------------------------------------------------------------------------------------------

    def _change(self, schedule: Schedule, played: Played) -> Schedule:
        """One thing, perhaps, other than it is."""
        rng = self.rng
        kinds: list[tuple[Any, int]] = [(self._other_sender, 2), (self._other_ahead, 3), (self._other_delay, 3)]
        if schedule.conflicts:
            kinds += [(self._other_conflict, 10)]
        if self.skew_us:
            kinds += [(self._other_skew, 3)]
        change = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        return change(schedule, played)  # type: ignore[no-any-return]

    def _other_sender(self, schedule: Schedule, played: Played) -> Schedule:
        return msgspec.structs.replace(schedule, sender=self.rng.choice(self.model.topology.processes))

    def _other_ahead(self, schedule: Schedule, played: Played) -> Schedule:
        group = self.rng.choice(tuple(self.model.topology.groups))
        return msgspec.structs.replace(schedule, ahead={**schedule.ahead, group: self.rng.choice(_AHEAD)})

    def _other_skew(self, schedule: Schedule, played: Played) -> Schedule:
        """Of one process, or of a whole group."""
        rng, topology = self.rng, self.model.topology
        some: tuple[ProcessId, ...] = (rng.choice(topology.processes),)
        if rng.random() < 0.5:
            some = topology.groups[topology.group_of[some[0]]]
        return msgspec.structs.replace(schedule, skew_us={**schedule.skew_us, **dict.fromkeys(some, self._skew())})

    def _other_conflict(self, schedule: Schedule, played: Played) -> Schedule:
        rng = self.rng
        conflicts = list(schedule.conflicts)
        index = rng.randrange(len(conflicts))
        old = conflicts[index]
        what = rng.randrange(7)
        if what == 6:
            every = tuple(range(len(conflicts)))
            return self._moved(schedule, every, rng.choice((-1, 1)) * rng.choice(_STEPS_US)) or schedule
        if what == 0:
            new = msgspec.structs.replace(old, sender=rng.choice(self.model.topology.processes))
        elif what == 1:
            new = msgspec.structs.replace(old, destinations=rng.choice(self._sets))
        elif what == 2:
            new = self._conflict(self._instant(played, old.at_us, schedule))
        else:
            new = msgspec.structs.replace(old, at_us=self._instant(played, old.at_us, schedule))
        conflicts[index] = new
        return msgspec.structs.replace(schedule, conflicts=tuple(conflicts))

    def _instant(self, played: Played, now_us: int, schedule: Schedule) -> int:
        """When something happens, or just before it; there, or one delay earlier; or by another process's clock. Or a
        step from now, large or small."""
        rng = self.rng
        if rng.random() < 0.3:
            at = now_us + rng.choice((-1, 1)) * rng.choice(_STEPS_US)
            return max(EARLIEST_US, min(at, -EARLIEST_US))
        last = max(0, int(played.every * DELTA_US)) if played.every != float("inf") else 0
        instants = [at for at in played.instants_us if at <= last] or [0]
        at = rng.choice(instants) - rng.choice((EPSILON_US, EPSILON_US, 0))
        if rng.random() < 0.3:
            at -= DELTA_US
        if self.skew_us and rng.random() < 0.5:
            one, other = (schedule.skew_us.get(rng.choice(self.model.topology.processes), 0) for _ in range(2))
            at += one - other
        return max(EARLIEST_US, at)

    def _other_delay(self, schedule: Schedule, played: Played) -> Schedule:
        """Of one message; or of all on a link, from or to a process, or of a kind; or all are δ again."""
        rng = self.rng
        if not played.keys:
            return schedule
        chosen = rng.choice(played.keys)
        scope = rng.randrange(8)
        if scope == 7:
            return msgspec.structs.replace(schedule, delays_us={})
        same: dict[int, Callable[[Key], bool]] = {
            0: lambda key: key[:2] == chosen[:2],
            1: lambda key: key[2] == chosen[2],
            2: lambda key: key[0] == chosen[0],
            3: lambda key: key[1] == chosen[1],
        }
        keys = [key for key in played.keys if same[scope](key)] if scope in same else [chosen]
        now = schedule.delays_us.get(chosen, DELTA_US)
        value = rng.randint(0, DELTA_US) if rng.random() < 0.1 else (0 if now else DELTA_US)
        delays = {key: us for key, us in schedule.delays_us.items() if key not in set(keys)}
        if value != DELTA_US:
            delays.update(dict.fromkeys(keys, value))
        return msgspec.structs.replace(schedule, delays_us=delays)
