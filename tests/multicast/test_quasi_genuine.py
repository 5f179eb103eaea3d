"""Scenarios of the quasi-genuine draft, Algorithms 1-3, of its errata, and of the module's deviations."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from multicast.application import Application
from multicast.checkpoint import Checkpoints
from multicast.parts.barriers import Barrier, Ordered, Repair, Stamp
from multicast.parts.delivered import LAST_KEY
from multicast.parts.stream import Base, Cast, Null, Stream
from multicast.protocol import MulticastProtocol, Outbox, Overloaded
from multicast.protocols.quasi_genuine import Early, QuasiGenuine, QuasiGenuineOptions, State
from multicast.simulation.checkers import Checker, attach
from multicast.simulation.network import Conditions
from multicast.simulation.runner import Run, Settings
from multicast.simulation.scene import Node
from multicast.simulation.world import World
from multicast.types import (
    AppMessage,
    MessageId,
    ProcessId,
    Topology,
    new_message_id,
)
from tests.multicast.lockstep import Lockstep
from tests.planted.quasi_genuine import NoOwnBarrier
from tests.planted.rewriting import rewrite

SECOND = 1_000_000

encode = msgspec.msgpack.encode
decode_value = msgspec.msgpack.Decoder(Cast | Null).decode


def cluster(groups: int = 2, protocol: type[MulticastProtocol] = QuasiGenuine, **options: Any) -> Lockstep:
    world = Lockstep(Topology.grid(groups, 3), protocol, **options)
    world.settle()
    return world


class FirstOfEqual(Stream):
    def apply(self, base: Base, values: list[bytes]) -> Any:
        casts = [value for value in map(decode_value, values) if isinstance(value, Cast)]
        stamps = [cast.rtc for cast in casts]
        kept = [encode(c) for c in casts if all(stamps.count(rtc) == 1 for rtc in stamps if rtc <= c.rtc)]
        nulls = [value for value in values if isinstance(decode_value(value), Null)]
        return super().apply(base, kept + nulls)


class FirstOfEqualStamps(QuasiGenuine):
    """The loop of lines 27 and 28 as printed: it ends when no stamp is below all others, and drops the rest."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stream.__class__ = FirstOfEqual


@rewrite("want", "if stamp > max(self._stream.base.last, self._null) and", "if", part="leader", after="_new_leader")
class NullPerRequest(QuasiGenuine):
    """Lines 15-20 as printed: each copy of a request makes a null message of its own."""


@rewrite("take", "channel.raise_barrier(stamp)", "channel.barrier = stamp", part="channels")
class LatestBarrier(QuasiGenuine):
    """Line 12 as printed: a barrier is whatever came last."""


# -- order -------------------------------------------------------------------------------------------------------------


def test_a_message_is_delivered_by_every_process_of_its_destinations_only() -> None:
    world = cluster(groups=3)
    m = world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(9)] == [[m]] * 6 + [[]] * 3


def test_the_senders_group_decides_although_it_is_no_destination() -> None:
    world = cluster(groups=3)
    m = world.submit(8, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(9)] == [[m]] * 6 + [[]] * 3
    assert world.protocol(6).stream.base.numbers == {0: 1, 1: 1}
    assert world.protocol(8).describe()["submitted"] == 0


def test_groups_deliver_common_messages_in_one_order_with_equal_timestamps() -> None:
    world = cluster()
    ids = [world.submit(p, 0, 1) for p in (0, 3, 1, 4, 2, 5)]
    world.settle()
    logs = [world.engines[p].application.delivered for p in range(6)]  # type: ignore[attr-defined]
    assert sorted(i for _, i, _ in logs[0]) == sorted(ids)
    assert all(log == logs[0] for log in logs)


def own_barrier_schedule(protocol: type[MulticastProtocol]) -> Lockstep:
    """Group 0 stamps m, undecided; group 1 decides a later m'; then m is decided (erratum 1)."""
    world = cluster(protocol=protocol)
    world.cut = {(0, 1), (0, 2)}
    world.submit(0, 0, 1)
    world.now += 1_000
    world.submit(3, 0, 1)
    world.settle()
    world.cut = set()
    world.settle()
    return world


def test_a_group_is_its_own_barrier() -> None:
    world = own_barrier_schedule(QuasiGenuine)
    orders = [world.delivered(p) for p in range(6)]
    assert len(orders[0]) == 2 and all(order == orders[0] for order in orders)


def test_the_printed_rule_without_the_own_barrier_breaks_the_order() -> None:
    world = own_barrier_schedule(NoOwnBarrier)
    assert world.delivered(0)[0] != world.delivered(3)[0]


def test_a_barrier_counts_inclusively_so_that_a_message_does_not_block_itself() -> None:
    world = cluster(groups=1)
    m = world.submit(0, 0)
    world.settle()
    assert world.delivered(2) == [m]


def equal_stamps(protocol: type[MulticastProtocol]) -> tuple[Lockstep, list[MessageId]]:
    """Two messages of one stamp are decided in one instance."""
    world = cluster(protocol=protocol)
    world.cut = {(1, 0), (2, 0)}
    first = world.submit(0, 0)
    world.settle()
    world.now += 1_000
    world.cut = {(a, 0) for a in (1, 2)} | {(0, a) for a in (1, 2)}
    blocker = world.submit(0, 0)
    world.cut = {(0, 1), (0, 2)}
    world.now += 1_000
    equal = [world.submit(p, 0) for p in (1, 2)]
    world.settle()
    world.cut = set()
    world.settle()
    return world, [first, blocker, *equal]


def test_equal_stamps_are_all_taken() -> None:
    world, ids = equal_stamps(QuasiGenuine)
    assert world.delivered(0) == world.delivered(2) == ids
    assert world.protocol(0).stream.base.last == (world.now, 1)
    assert world.protocol(0).paxos.decided == 3


def test_the_printed_loop_drops_what_has_equal_stamps() -> None:
    world, ids = equal_stamps(FirstOfEqualStamps)
    assert world.delivered(0) == ids[:2]


def test_a_message_that_is_decided_too_late_for_its_stamp_gets_the_next_one() -> None:
    world = cluster()
    world.cut = {(1, 0)}
    early = world.submit(1, 0)
    world.now += 1_000
    late = world.submit(0, 0)
    world.settle()
    world.cut = set()
    world.settle()
    assert world.delivered(2) == [late, early]
    (_, _, first), (_, _, second) = world.engines[2].application.delivered  # type: ignore[attr-defined]
    assert (first.time, second.time, second.tiebreak) == (second.time, world.now, 1 << 16)


def test_a_senders_messages_stay_in_order_when_some_are_lost() -> None:
    world = cluster()
    ids = [world.submit(1, 0, 1) for _ in range(3)]
    del world.links[1, 0][0]
    world.settle()
    assert world.delivered(4) == []
    world.advance(SECOND)
    assert world.delivered(4) == ids


def test_whom_the_leader_does_not_reach_knows_what_is_decided_from_the_others() -> None:
    """It sends no more casts than a few until it knows that they are decided."""
    world = cluster()
    world.cut = {(0, 1)}
    ids = []
    for _ in range(20):
        ids.append(world.submit(1, 0))
        world.advance(SECOND // 4)
    world.advance(5 * SECOND)
    assert world.delivered(1) == world.delivered(0) == ids


# -- barriers ----------------------------------------------------------------------------------------------------------


def test_what_a_reset_link_has_lost_is_sent_again_little_at_a_time() -> None:
    """A queue that is shorter than what waits would overflow with all of it, be reset, and overflow again."""
    world = cluster()
    world.cut = {(1, 0)}
    ids = [world.submit(1, 0) for _ in range(100)]
    for _ in range(3):
        world.lose_link(1, 0)
        world._run(1)
        assert 0 < len(world.links[1, 0]) < 20
    world.cut = set()
    world.settle()
    assert world.delivered(2) == ids


def test_a_request_is_answered_by_one_null_message_and_repeated_ones_by_none() -> None:
    world = cluster()
    world.submit(0, 0, 1)
    world.settle()
    assert [world.protocol(p).paxos.decided for p in (0, 3)] == [1, 1]
    stamp = world.protocol(0).stream.base.last
    for p in (3, 4, 5):
        world.protocol(p)._take_wants([(0, stamp), (1, stamp)], world.engines[p]._out)
        world.engines[p].request(1, None)
        world._run(p)
    world.settle()
    assert [world.protocol(p).paxos.decided for p in (3, 4, 5)] == [1, 1, 1]


def test_the_printed_rule_makes_a_null_message_per_request() -> None:
    world = cluster(protocol=NullPerRequest)
    world.cut = {(3, 4), (3, 5)}
    world.protocol(3)._take_wants([(0, (world.now, 0)), (1, (world.now, 0))], world.engines[3]._out)
    world.protocol(3)._take_wants([(0, (world.now, 0))], world.engines[3]._out)
    assert world.protocol(3).paxos.describe()["queued"] == 3


def test_copies_of_a_request_make_one_null_message() -> None:
    world = cluster()
    world.cut = {(3, 4), (3, 5)}
    for _ in range(3):
        world.protocol(3)._take_wants([(0, (world.now, 0))], world.engines[3]._out)
    assert world.protocol(3).paxos.describe()["queued"] == 1


def test_a_blocking_group_that_is_no_destination_stores_nothing() -> None:
    world = cluster(groups=3)
    for _ in range(3):
        world.submit(0, 0, 1)
    world.settle()
    for p in (6, 7, 8):
        assert len(world.protocol(p).channels.waiting) == 0
        assert world.protocol(p).stream.base.numbers == {}
    assert world.protocol(6).stream.base.last == world.protocol(0).stream.base.last


def old_barrier(protocol: type[MulticastProtocol]) -> tuple[Stamp, Stamp]:
    """A group's barrier before and after an old one of its comes once more."""
    world = cluster(protocol=protocol)
    world.submit(0, 0, 1)
    world.settle()
    before = world.protocol(3).channels.of[0].barrier
    world.links[0, 3].append(world.engines[0].codec.encode(0, Barrier((1, 0), 0)))
    world.settle()
    return before, world.protocol(3).channels.of[0].barrier


def test_a_barrier_never_goes_back() -> None:
    before, after = old_barrier(QuasiGenuine)
    assert after == before > (1, 0)


def test_the_printed_barrier_goes_back() -> None:
    _, after = old_barrier(LatestBarrier)
    assert after == (1, 0)


def test_a_barrier_does_not_pass_a_lost_message() -> None:
    world = cluster()
    world.cut = {(0, 3)}
    lost = world.submit(0, 0, 1)
    world.settle()
    world.links[0, 3].clear()
    world.cut = set()
    m = world.submit(0, 1)
    while world.links.get((0, 3)) is None or not world.links[0, 3]:
        assert any(world.step(a, b) for a, b in list(world.links) if (a, b) != (0, 3))
    assert isinstance(world.engines[3].codec.decode(world.links[0, 3][0])[1], Ordered)
    world.step(0, 3)
    assert world.delivered(3) == []
    world.advance(2 * SECOND)
    assert world.delivered(3) == world.delivered(4) == [lost, m]


def test_what_a_dead_leader_decided_and_did_not_forward_is_asked_for() -> None:
    world = cluster()
    world.cut = {(0, p) for p in (3, 4, 5)}
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.protocol(1).stream.base.numbers == {0: 1, 1: 1}
    world.crash(0)
    world.cut = set()
    world.advance(10 * SECOND)
    assert [world.delivered(p) for p in range(1, 6)] == [[m]] * 5


class OnePartAtOnce(QuasiGenuine):
    """A repair has one part, whose end is told with it."""

    parts = 0

    def _on_ask(self, sender: ProcessId, ask: Any, now: int, out: Outbox) -> None:
        sent = len(out.sends)
        super()._on_ask(sender, ask, now, out)
        repairs = [message for _, message, _ in out.sends[sent:] if isinstance(message, Repair)]
        assert len(repairs) == 1
        self.parts += 1


def test_the_next_part_of_a_repair_comes_after_the_last() -> None:
    world = cluster(protocol=OnePartAtOnce, portion_bytes=100)
    world.cut = {(0, 3)}
    for _ in range(10):
        world.submit(0, 0, 1)
    world.settle()
    world.lose_link(0, 3)
    world.cut = set()
    world.advance(SECOND)
    assert world.protocol(3).channels.of[0].received == 10
    assert world.protocol(0).parts == 10


def test_a_lost_request_is_repeated_by_the_blocked_destination() -> None:
    world = cluster(groups=3)
    world.cut = {(0, p) for p in (6, 7, 8)}
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.delivered(0) == world.delivered(3) == []
    for p in (6, 7, 8):
        world.links.pop((0, p), None)
    world.cut = set()
    world.advance(2 * SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


# -- periodic barriers (Algorithm 2) -----------------------------------------------------------------------------------


def test_what_has_waited_for_a_dead_group_does_not_come_one_message_per_period() -> None:
    """Their requests for barriers were lost with it; what the first of them asks for is good for all."""
    topology = Topology.grid(2, 3)
    options = QuasiGenuineOptions(clock="hybrid")
    world = World(topology, lambda p, rng, _: (QuasiGenuine(p, topology, options, rng), Application()), 1)
    world.start()
    world.run_for(SECOND)
    for process in topology.groups[1]:
        world.crash(process)
    for number in range(1, 31):
        world.submit(0, AppMessage(new_message_id(world.now, number), (0, 1), b"", 0))
        world.run_for(SECOND // 20)
    for process in topology.groups[1]:
        world.restart(process)
    assert world.node(0).engine.position == 0
    world.run_for(8 * options.retry_us)
    assert [world.node(process).engine.position for process in topology.processes] == [30] * 6


def test_with_periodic_barriers_nobody_requests_any() -> None:
    world = cluster(groups=3, liveness="periodic", barrier_threshold_us=20_000)
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.delivered(0) == []
    world.advance(100_000)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_a_silent_group_decides_one_null_message_per_threshold() -> None:
    world = cluster(liveness="periodic", barrier_threshold_us=20_000)
    world.advance(SECOND)
    assert 40 <= world.protocol(0).paxos.decided <= 60


def test_after_a_pause_one_null_message_suffices() -> None:
    world = cluster(liveness="periodic", barrier_threshold_us=20_000)
    world.now += 10 * SECOND
    for p in range(6):
        world._run(p)
    world.advance(30_000)  # first it asks what the others' clocks show, after such a lapse
    assert world.protocol(0).stream.base.last[0] >= world.now - 40_000
    assert world.protocol(0).paxos.decided <= 3


def fast_clock(**options: Any) -> tuple[World, dict[ProcessId, list[int]]]:
    """Process 1 is 30 s ahead of the others. It multicasts to both groups, then process 3. When each was delivered."""
    topology = Topology.grid(2, 3)
    delivered: dict[ProcessId, list[int]] = {p: [] for p in topology.processes}

    class Watch(Checker):
        def on_deliver(self, node: Node, *args: Any) -> None:
            delivered[node.pid].append(node.world.now)

    def make(pid: ProcessId, rng: random.Random, disk: object) -> tuple[MulticastProtocol, Application]:
        periodic = QuasiGenuineOptions(liveness="periodic", **options)
        return QuasiGenuine(pid, topology, periodic, rng), Application()

    world = World(topology, make, 1, Conditions.exact(1_000))
    attach(world, Watch())
    world.nodes[1].offset_us = 30 * SECOND
    world.start()
    world.run_for(SECOND)
    for pid in (1, 3):
        world.submit(pid, AppMessage(new_message_id(world.now, pid), (0, 1), b"", pid))
        world.run_for(10_000)
    return world, delivered


def test_a_fast_clock_holds_nobody_up() -> None:
    world, delivered = fast_clock()
    world.run_for(200_000)
    assert all(len(times) == 2 for times in delivered.values())


def test_a_fast_clock_that_is_believed_holds_nobody_up_for_barriers_beyond_a_clock_are_requested() -> None:
    """They came when a destination had been blocked for a retry period, for each message again, as long as stamps were
    ahead of clocks: as when all clocks had been set back."""
    world, delivered = fast_clock(clock_skew_us_max=0, stamp_ahead_us_max=60 * SECOND)
    world.run_for(200_000)
    assert all(len(times) == 2 for times in delivered.values())


def test_a_stamp_is_bounded_to_what_the_leader_allows_beyond_its_own_clock() -> None:
    world, _ = fast_clock(clock_skew_us_max=0, stamp_ahead_us_max=2 * SECOND)
    world.run_for(4 * SECOND)
    assert world.nodes[1].engine.protocol.log.timestamp.time <= world.now  # type: ignore[attr-defined]
    late, _ = fast_clock(clock_skew_us_max=0, stamp_ahead_us_max=60 * SECOND)
    late.run_for(4 * SECOND)
    assert late.nodes[1].engine.protocol.log.timestamp.time > late.now + 20 * SECOND  # type: ignore[attr-defined]


# -- who may send to whom ----------------------------------------------------------------------------------------------


def test_a_request_ahead_of_the_clock_does_not_wait_for_a_clock_that_is_not_known_any_more() -> None:
    world = cluster(optimistic=True)
    protocol = world.protocol(3)
    stamp = (world.now + 2 * SECOND, 0)
    protocol._on_early(0, Early(1, 1, stamp[0], None, [(0, stamp)]), world.now, Outbox())
    assert protocol._take_ahead_wants(world.now, Outbox()) == world.now + SECOND
    assert 0 not in protocol.leader.wanted
    protocol.clock_correction = None
    assert protocol._take_ahead_wants(world.now, Outbox()) is None
    assert 0 in protocol.leader.wanted


def test_only_groups_that_may_send_can_block() -> None:
    world = cluster(groups=3, senders="0<1 1<0 2<")
    for p in (6, 7, 8):
        world.crash(p)
    m = world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_a_message_to_a_group_that_one_may_not_send_to_is_refused() -> None:
    world = cluster(groups=3, senders="0<1 1<0 2<")
    protocol = world.protocol(0)
    with pytest.raises(Overloaded, match="group 0 may not send to group 2"):
        protocol.on_submit(world.message(0, 2), world.now, world.engines[0]._out)


def test_more_than_the_limit_is_refused() -> None:
    world = cluster(pending_max=2)
    world.cut = {(1, 0)}
    protocol, out = world.protocol(1), world.engines[1]._out
    protocol.on_submit(world.message(0), world.now, out)
    protocol.on_submit(world.message(0), world.now, out)
    with pytest.raises(Overloaded, match="2 messages are pending, the limit is 2"):
        protocol.on_submit(world.message(0), world.now, out)


@pytest.mark.parametrize("senders", ["", "0< 1<0"])
def test_what_a_dead_group_does_not_take_is_refused_beyond_the_limit(senders: str) -> None:
    """Its senders decide it, and wait for nobody; without a limit they would keep ever more of it."""
    world = cluster(pending_max=2, senders=senders)
    for p in (3, 4, 5):
        world.crash(p)
    for _ in range(3):
        world.submit(1, 1)
        world.advance(SECOND)
    protocol, out = world.protocol(1), world.engines[1]._out
    assert protocol.describe()["outgoing"] == 2
    with pytest.raises(Overloaded, match="2 messages are pending, the limit is 2"):
        protocol.on_submit(world.message(1), world.now, out)
    protocol.on_submit(world.message(0), world.now, out)


@pytest.mark.parametrize(
    "options",
    [
        {"liveness": "never"},
        {"senders": "0-1"},
        {"retry_us": 0},
        {"stamp_ahead_us_max": -1},
        {"election_timeout_us": 1},
    ],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))[:5]):
        QuasiGenuineOptions(**options)


# -- copies and garbage ------------------------------------------------------------------------------------------------


def test_a_message_that_two_groups_order_is_delivered_once() -> None:
    world = cluster()
    message = world.message(0, 1)
    for p in (0, 3):
        world.engines[p].submit(message)
        world._run(p)
    world.settle()
    assert [world.delivered(p) for p in range(6)] == [[message.id]] * 6
    assert [world.protocol(p).stream.base.numbers for p in (0, 3)] == [{0: 1, 1: 1}] * 2


def test_a_delivered_message_is_not_ordered_again() -> None:
    world = cluster()
    message = world.message(0, 1)
    for _ in range(2):
        world.engines[1].submit(message)
        world._run(1)
        world.settle()
    assert world.protocol(0).stream.base.numbers == {0: 1, 1: 1}


def left(world: Lockstep) -> list[tuple[int, int, int]]:
    described = [world.protocol(p).describe() for p in world.topology.processes if p not in world.down]
    return [(d["kept"], d["outgoing"], d["pending"]) for d in described]


def test_instances_and_messages_go_once_quorums_have_them() -> None:
    world = cluster(groups=3)
    for _ in range(30):
        world.submit(0, 0, 1)
        world.submit(7, 1, 2)
    world.settle()
    world.advance(3 * SECOND)
    assert left(world) == [(0, 0, 0)] * 9


def test_a_dead_member_does_not_stop_garbage_collection() -> None:
    world = cluster()
    for p in range(6):
        world.protocol(p).stream.spare = 0
    world.crash(5)
    world.crash(2)
    for _ in range(30):
        world.submit(0, 0, 1)
    world.advance(3 * SECOND)
    assert left(world) == [(0, 0, 0)] * 4


def test_two_copies_that_come_very_late_are_delivered_once() -> None:
    """Through the leaders of two groups, two windows after the message was made."""
    world = cluster(clock="hybrid", dedup_window_us=SECOND)
    old = AppMessage(new_message_id(world.now - 5 * SECOND, 7), (0, 1), b"x", 0)
    for p in (0, 3):
        world.engines[p].submit(old)
        world._run(p)
    world.advance(SECOND)
    assert [world.delivered(p) for p in range(6)] == [[old.id]] * 6


def test_what_is_kept_on_disk_does_not_grow() -> None:
    topology = Topology.grid(2, 3)

    def make(pid: ProcessId, rng: random.Random, disk: object) -> tuple[MulticastProtocol, Application]:
        options = QuasiGenuineOptions(clock="hybrid", dedup_window_us=SECOND)
        return QuasiGenuine(pid, topology, options, rng), Application()

    world = World(topology, make, 1)
    world.start()
    sizes = []
    for number in range(4):
        for bits in range(100):
            world.submit(bits % 6, AppMessage(new_message_id(world.now, number << 20 | bits), (0, 1), b"x", bits % 6))
            world.run_for(20_000)
        world.run_for(6 * SECOND)
        values = [Checkpoints(node.journal).advance().values for node in world.nodes.values()]
        sizes.append(max(map(len, values)))
    assert max(sizes[2:]) <= sizes[0] + 110, sizes
    assert all(LAST_KEY in v for v in values)


# -- under faults ------------------------------------------------------------------------------------------------------


class Fifo(Checker):
    """FIFO order of each sender's life, for messages that were multicast once."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[tuple[ProcessId, int], list[AppMessage]] = {}
        self.times: dict[MessageId, int] = {}

    def on_submit(self, node: Node, message: AppMessage) -> None:
        self.sent.setdefault((node.pid, node.life), []).append(message)
        self.times[message.id] = self.times.get(message.id, 0) + 1

    def inverted(self, log: list[MessageId], group: int) -> list[tuple[MessageId, MessageId]]:
        places = {message_id: place for place, message_id in reversed(list(enumerate(log)))}
        found = []
        for messages in self.sent.values():
            mine = [m.id for m in messages if group in m.destinations]
            for i, later in enumerate(mine):
                if self.times[later] == 1 and later in places:
                    found += [(e, later) for e in mine[:i] if places.get(e, len(log)) > places[later]]
        return found


LONG = (501, 504, 505, 508, 509, 510, 511)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.full] * (seed in LONG)) for seed in range(500, 512)]
)
def test_a_senders_messages_are_delivered_in_their_order_under_faults(seed: int) -> None:
    run = Run(QuasiGenuine, seed, Settings(options={"dedup_window_us": "0"}))
    fifo = Fifo()
    attach(run.world, fifo)
    assert run.execute().violations == []
    for group, log in run.properties.logs.items():
        assert fifo.inverted([entry[0] for entry in log], group) == []


def test_a_null_message_is_its_stamp() -> None:
    assert Null((5, 0)) == Null((5, 0)) != Null((5, 1))


def test_what_is_decided_by_a_peers_state_is_not_cast_again() -> None:
    world = cluster()
    process = world.protocol(1)
    world.cut = {(1, 0)}
    world.submit(1, 0)
    (cast,) = process._casts
    base = Base(9, (cast.rtc, 0), {0: 1}, {1: (cast.life, 1)})
    process._adopt(State(0, base, [], [], 0, 1), world.now, Outbox())
    assert not process._casts


def test_a_leader_that_comes_to_its_barrier_by_a_peers_state_tells_it_who_waits_for_it() -> None:
    leader, out = cluster().protocol(0), Outbox()
    stamp = (leader.stream.base.last[0] + SECOND, 0)
    leader._take_wants([(1, stamp)], Outbox())
    leader._adopt(State(0, Base(9, stamp, {0: 1}, {}), [], [], 0, 1), 0, out)
    assert [to for to, message, _ in out.sends if message == Barrier(stamp, 0)] == [(3, 4, 5)]
