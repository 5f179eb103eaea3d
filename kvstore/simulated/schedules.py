"""Three schedules in which atomic multicast alone, or signals sent too early, are not strictly serializable.

Both rest on one thing: a group's leader learns late how high another group has stamped a message, and meanwhile stamps
something of its own lower. Clocks: the late one's is behind. Links: everything takes 1 ms, but what the slow group
sends to the late one's leader takes 100 ms (all of it: in PrimCast followers tell their group's stamps, too).

two-groups. t3 writes to A and B; A stamps it high, and B does not hear of it. A has B's stamp and delivers t3. A client
reads t3's write at A (t1), and then reads at B (t2), which B orders before t3: t1 -> t2 in real time, but t2 < t3 < t1.
Without signals.

three-groups. z1 writes to B and C; C stamps it high, and B does not hear of it. C has B's stamp and delivers z1, then
z2, which writes to A and C. A delivers z2. A client reads z2's write at A (a), and then reads at B (b), which B orders
before z1: a -> b in real time, but b < z1 < z2 < a. Without signals, and also if C signals z2 when it delivers it: C
has not executed z1 then. With the store's rule C signals z2 only after z1, that is, after B has delivered z1.

four-groups. The same with a longer chain, b < w < z1 < z2 < a: w writes to B and D, which is slow to tell B; z1 writes
to C and D, z2 to A and C. Where delivery waits until every destination's leader knows the stamps (White-Box with
`leaders_in_quorum`), two groups are safe without signals, and three with signals at delivery: C has delivered z1, so B
knows its stamp. With four groups C delivers z1 while D still holds it back behind w.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvstore.api.model import Get, Operation, Put, Transaction
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.core.signals import SignalRule
from kvstore.simulated.checks import check
from kvstore.simulated.clients import History, Operated
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.runner import write_run
from multicast import registry
from multicast.simulation.network import Conditions
from multicast.simulation.observe import Observer
from multicast.types import GroupId, new_message_id

DELAY_US = 1_000
LATE_US = 100_000
AHEAD_US = 50_000
"""How far the slow group's clocks are ahead: more than what happens before its stamp is known, less than LATE_US."""

A, B, C, D = 0, 1, 2, 3


class Step(msgspec.Struct, frozen=True):
    """A transaction. entry: the shard at whose leader it enters; if the protocol does not take it there (the options
    say who may send to whom), it enters at the leader of the slow group."""

    name: str
    entry: GroupId
    writes: tuple[str, ...] = ()
    read: str = ""


class Schedule(msgspec.Struct, frozen=True):
    """A key is named by the letter of its shard. background: sent 5 ms apart; client: one after the other, 20 ms later.
    slow, late: what `slow` sends to the leader of `late` takes LATE_US; the clocks of `slow` are ahead."""

    shards: int
    slow: GroupId
    late: GroupId
    background: tuple[Step, ...]
    client: tuple[Step, ...]


SCHEDULES = {
    "two-groups": Schedule(
        shards=2,
        slow=A,
        late=B,
        background=(Step("t3", B, ("a", "b")),),
        client=(Step("t1", A, read="a"), Step("t2", B, read="b")),
    ),
    "three-groups": Schedule(
        shards=3,
        slow=C,
        late=B,
        background=(Step("z1", B, ("b", "c")), Step("z2", A, ("a", "c"))),
        client=(Step("a", A, read="a"), Step("b", B, read="b")),
    ),
    "four-groups": Schedule(
        shards=4,
        slow=D,
        late=B,
        background=(Step("w", B, ("b", "d")), Step("z1", C, ("c", "d")), Step("z2", A, ("a", "c"))),
        client=(Step("a", A, read="a"), Step("b", B, read="b")),
    ),
}


class Played(msgspec.Struct):
    """lines: what happened, for people. violations: what the checks here say."""

    lines: list[str]
    violations: list[str]


class _Player:
    def __init__(self, name: str, protocol: str, signals: SignalRule, options: Mapping[str, str]):
        self.schedule = SCHEDULES[name]
        replicas = 3 if registry.load(protocol).specification.fault_tolerant else 1
        self.cluster = SimulatedCluster(
            protocol,
            self.schedule.shards,
            replicas,
            f"{name}/{protocol}",
            signals=signals,
            options=options,
            conditions=Conditions.exact(DELAY_US),
            script=self._delay,
            name=signals,
        )
        self.history = History()
        self.lines: list[str] = []
        self._ids = 0
        groups = self.cluster.topology.groups
        self._leaders = {shard: members[0] for shard, members in groups.items()}
        for pid in groups[self.schedule.slow]:
            self.cluster.world.node(pid).offset_us = AHEAD_US

    def _delay(self, sender: int, receiver: int, message: Any) -> int:
        slow = self.cluster.topology.groups[self.schedule.slow]
        return LATE_US if sender in slow and receiver == self._leaders[self.schedule.late] else DELAY_US

    def _key(self, letter: str) -> bytes:
        shard = "abcd".index(letter)
        return next(k for k in (b"%c%d" % (ord(letter), i) for i in range(1000)) if self._owner(k) == shard)

    def _owner(self, key: bytes) -> GroupId:
        return self.cluster.shard_map.shard_of(key)

    def play(self) -> None:
        world, schedule = self.cluster.world, self.schedule
        world.start()
        world.run_for(3 * LATE_US)  # clocks have been compared
        waiting = {step.name for step in (*schedule.background, *schedule.client)}
        for process, step in enumerate(schedule.background):
            self._send(process, step, waiting, None)
            world.run_for(5_000)
        world.run_for(20_000)
        steps = iter(schedule.client)
        process = len(schedule.background)

        def go_on() -> None:
            step = next(steps, None)
            if step is not None:
                self._send(process, step, waiting, go_on)

        go_on()
        world.run_while(lambda: bool(waiting) or self.cluster.unfinished(), 10_000_000)
        if waiting:
            raise AssertionError(f"{', '.join(sorted(waiting))} did not end")
        world.stop()

    def _send(self, process: int, step: Step, waiting: set[str], done: Callable[[], None] | None) -> None:
        world = self.cluster.world
        operations: list[Operation] = [Put(self._key(letter), step.name.encode()) for letter in step.writes]
        if step.read:
            operations.append(Get(self._key(step.read)))
        self._ids += 1
        message_id = new_message_id(world.now, self._ids)
        operation = Operated(message_id, step.name, Transaction(success=tuple(operations)), world.now)
        begun = world.now
        self.history.invoke(process, begun, operation)

        def answered(answer: Any) -> None:
            if isinstance(answer, Refused) and answer.code == "overloaded":
                world.request(slow_leader, request, answered)
                return
            if not isinstance(answer, Answered):
                raise AssertionError(f"{step.name} was answered {answer!r}")
            operation.result = answer.result
            self.history.end(process, "ok", world.now, operation)
            self.lines.append(self._line(step, begun, operation))
            waiting.discard(step.name)
            if done is not None:
                world.after(1_000, done)

        slow_leader = self._leaders[self.schedule.slow]
        request = Execute(message_id, operation.transaction)
        world.request(self._leaders[step.entry], request, answered)

    def _line(self, step: Step, begun: int, operation: Operated) -> str:
        from_ms, to_ms = ((at - self._origin()) / 1000 for at in (begun, self.cluster.world.now))
        what = f"writes {', '.join(step.writes)}" if step.writes else f"reads {step.read}"
        if step.read and operation.result is not None:
            found = operation.result.results[0].found
            what += f": {found.value.decode()}" if found else ": nothing"
        version = operation.result.version if operation.result else ""
        return f"{from_ms:8.1f} ms to {to_ms:8.1f} ms  {step.name:3} {what:16} version {version}"

    def _origin(self) -> int:
        return min(op.invoked_us for op in self.history.operations.values())


def play(
    name: str,
    protocol: str,
    signals: SignalRule,
    out: Path | None = None,
    options: Mapping[str, str] | None = None,
    observers: Sequence[Observer] = (),
) -> Played:
    """Play one of SCHEDULES; `out`: write the run directory there. observers: who else watches."""
    player = _Player(name, protocol, signals, options or {})
    player.cluster.world.observers += observers
    player.play()
    if out is not None:
        write_run(player.cluster, player.history, out)
    return Played(sorted(player.lines), check(player.cluster, player.history))
