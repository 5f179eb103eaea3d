"""What a failure-free run of the latency model depends on, as data: who sends what when, and how long it takes.

A schedule names one measured message m, the messages that conflict with it, how far ahead every group's clock is, and
every message delay that is not δ. `play` runs it. Instants are microseconds after multicast(m).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from multicast.protocol import MulticastProtocol, Options
from multicast.simulation.latency.stage import EPOCH_US, Stage
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Topology, new_message_id

DELTA_US = 1_000
"""δ, one message delay. The least step of time is thus δ / 1000."""

WARM_UP_US = 2 * DELTA_US
START_US = 40 * DELTA_US
"""When m is multicast, after the start: what was sent at WARM_UP_US is over, and no heartbeat falls in between."""

LIMIT_US = 50 * DELTA_US
"""When, after multicast(m), a run is given up."""

EARLIEST_US = -15 * DELTA_US
"""Conflicting messages are multicast from here on; delays are scripted from here on."""

Key = tuple[ProcessId, ProcessId, str, int]
"""One message on its way: (sender, receiver, kind of message, how many of that kind were on that link before)."""


class Conflict(msgspec.Struct, frozen=True):
    """A message that m meets. at_us: against multicast(m)."""

    at_us: int
    sender: ProcessId
    destinations: tuple[GroupId, ...]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """ahead: group -> how many messages it had ordered before; its clock has counted them. skew_us: process -> its
    clock's error. delays_us: those that are not δ."""

    sender: ProcessId
    destinations: tuple[GroupId, ...]
    conflicts: tuple[Conflict, ...] = ()
    ahead: dict[GroupId, int] = {}
    skew_us: dict[ProcessId, int] = {}
    delays_us: dict[Key, int] = {}

    def lines(self) -> list[str]:
        """For people, in δ."""
        text = [f"m: multicast by process {self.sender} at 0 to groups {_groups(self.destinations)}"]
        text += [
            f"conflicting: by process {c.sender} at {c.at_us / DELTA_US:g} to groups {_groups(c.destinations)}"
            for c in self.conflicts
        ]
        text += [f"group {g} has ordered {count} messages before" for g, count in sorted(self.ahead.items()) if count]
        text += [f"clock of process {p} is {us / DELTA_US:+g}" for p, us in sorted(self.skew_us.items()) if us]
        text += [
            f"{kind} number {number + 1} from process {a} to process {b} takes {us / DELTA_US:g}"
            for (a, b, kind, number), us in sorted(self.delays_us.items())
        ]
        return [*text, "every other message takes 1, to oneself 0"]


def _groups(groups: tuple[GroupId, ...]) -> str:
    return ",".join(map(str, groups))


class Played(msgspec.Struct, kw_only=True):
    """How a run went. first: m's first delivery in each group, in the worst group, in δ; leader: at each group's
    leader, in the worst group; every: its last delivery of all; early: its last optimistic delivery of all, None if
    there is none; infinite if it is not there in time. instants_us: at which
    something arrived. keys: the messages that could be delayed. sent: per message type. events: messages processed."""

    first: float
    leader: float
    every: float
    early: float | None
    mean: float
    instants_us: list[int]
    keys: list[Key]
    sent: dict[str, int]
    events: int


class Model(msgspec.Struct, frozen=True):
    """What schedules are played on."""

    protocol: type[MulticastProtocol]
    topology: Topology
    options: Options


class _Script:
    """Delays as a schedule has them, from `begin` on."""

    def __init__(self, schedule: Schedule, housekeeping: tuple[type, ...]):
        self.keys: list[Key] = []
        self._counters: dict[tuple[ProcessId, ProcessId, str], int] | None = None
        self._delays = schedule.delays_us
        self._housekeeping = housekeeping

    def begin(self) -> None:
        self._counters = {}

    def __call__(self, now: int, sender: ProcessId, receiver: ProcessId, message: Any) -> int:
        counters = self._counters
        if counters is None or isinstance(message, self._housekeeping):
            return DELTA_US
        link = (sender, receiver, type(message).__name__)
        number = counters.get(link, 0)
        counters[link] = number + 1
        key = (*link, number)
        self.keys.append(key)
        return self._delays.get(key, DELTA_US)


def play(model: Model, schedule: Schedule, housekeeping: tuple[type, ...] = ()) -> Played:
    """One run. `housekeeping`: types not counted in `sent`."""
    topology = model.topology
    script = _Script(schedule, housekeeping)
    stage = Stage(model.protocol, topology, model.options, script, schedule.skew_us)
    identify = _ids()
    for group, count in sorted(schedule.ahead.items()):
        for _ in range(count):
            sender = topology.groups[group][0]
            stage.submit(EPOCH_US + WARM_UP_US, sender, AppMessage(next(identify), (group,), b"", sender))
    start = EPOCH_US + START_US
    stage.run_until(start + EARLIEST_US - 1)
    script.begin()
    for conflict in schedule.conflicts:
        message = AppMessage(next(identify), conflict.destinations, b"", conflict.sender)
        stage.submit(start + conflict.at_us, conflict.sender, message)
    message = AppMessage(next(identify), schedule.destinations, b"", schedule.sender)
    stage.submit(start, schedule.sender, message)
    stage.watch()
    members = topology.members(schedule.destinations)
    stage.run_while(
        lambda: any((p, message.id) not in stage.delivered for p in members), start + LIMIT_US, DELTA_US
    )
    return _outcome(stage, schedule, message.id, start, script.keys, housekeeping)


def _ids() -> Iterator[MessageId]:
    number = 0
    while True:
        number += 1
        yield new_message_id(EPOCH_US, number)


def _outcome(
    stage: Stage, schedule: Schedule, message: MessageId, start: int, keys: list[Key], housekeeping: tuple[type, ...]
) -> Played:
    topology = stage.topology

    def when(process: ProcessId) -> float:
        at = stage.delivered.get((process, message))
        return float("inf") if at is None else (at - start) / DELTA_US

    groups = [[when(p) for p in topology.groups[g]] for g in schedule.destinations]
    leaders = []
    for group in schedule.destinations:
        leader = stage.protocol(topology.groups[group][0]).leader_of(group)
        leaders.append(when(topology.groups[group][0] if leader is None else leader))
    everybody = [at for group in groups for at in group]
    early = [at for p in topology.members(schedule.destinations) if (at := stage.early.get((p, message))) is not None]
    return Played(
        first=max(min(group) for group in groups),
        leader=max(leaders),
        every=max(everybody),
        early=(max(early) - start) / DELTA_US if early else None,
        mean=sum(everybody) / len(everybody),
        instants_us=sorted(instant - start for instant in stage.instants),
        keys=keys,
        sent={kind.__name__: count for kind, count in stage.sent.items() if not issubclass(kind, housekeeping)},
        events=stage.events,
    )
