"""Scenarios of PrimCast, Algorithms 1-3, named by the paper's lines, and of the module's deviations."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import msgspec
import pytest

from multicast.engine import Engine
from multicast.membership import ViewAsk
from multicast.parts.ballots import Agreed, Doubt, NewLeader
from multicast.parts.delivered import Known, Watermark
from multicast.parts.payloads import Want
from multicast.parts.rejoin import Returned
from multicast.parts.submissions import Copies
from multicast.protocol import MulticastProtocol, Outbox, Overloaded, PeerError, Saved
from multicast.protocols.primcast import Accept, Ack, Bump, PrimCast, Promise, Start
from multicast.records import Delivered
from multicast.types import VIEW_BITS, ZERO, AppMessage, Ballot, MessageId, Timestamp, Topology
from tests.multicast.lockstep import START_US, Lockstep, Recorder
from tests.multicast.scripted import changes
from tests.planted.primcast import PrintedLine73, WithoutQuorumClock

SECOND = 1_000_000


def cluster(
    groups: int = 2, replicas: int = 3, protocol: str | type[MulticastProtocol] = "primcast", **options: object
) -> Lockstep:
    world = Lockstep(Topology.grid(groups, replicas), protocol, **options)
    world.settle()
    return world


def test_who_lacks_a_view_of_another_group_asks_until_it_has_it() -> None:
    world, asked = cluster(), []
    for _ in range(2):
        out = Outbox()
        world.protocol(3).on_message(0, Ack(Ballot(1 << VIEW_BITS | 1, 0), START_US, 0, 0, []), world.now, out)
        asked += [to for to, message, _ in out.sends if type(message) is ViewAsk]
    assert asked == [(0,), (0,)]


def test_what_another_group_has_delivered_moves_the_clock() -> None:
    """Nothing is stamped below it any more, or it would wait for the next message."""
    world = cluster()
    world.cut = {(p, q) for p in (3, 4, 5) for q in (0, 1, 2)}
    m = world.submit(0, 0, 1)
    world.settle()
    process, out = world.protocol(1), Outbox()
    assert process.entries[m].epoch is not None
    final = Timestamp(process.clock.value + 9, 1)
    process.on_message(3, Known(m, final), world.now, out)
    process.end_batch(world.now, out)
    assert [message.clock for _, message, _ in out.sends if type(message) is Bump] == [final.time]


def test_who_waits_for_the_clocks_of_its_group_asks_for_them_and_is_told() -> None:
    """The last word of them may be lost, and nothing raises a clock until the next message comes."""
    world = cluster()
    world.cut = {(p, q) for p in (3, 4, 5) for q in (0, 1, 2)}
    m = world.submit(0, 0, 1)
    world.settle()
    process, out = world.protocol(1), Outbox()
    entry = process.entries[m]
    entry.locals[1] = entry.ts + 9
    process._refresh(entry, world.now)
    assert process._missing(entry) == (0, 2)
    process.on_message(2, Ack(Ballot(1, 0), entry.ts, 1, 0, [], True), world.now, out)
    process.end_batch(world.now, out)
    assert [(to, message.clock) for to, message, _ in out.sends if type(message) is Ack] == [((2,), entry.ts)]


def recorded(world: Lockstep, process: int) -> list[tuple[int, MessageId, Timestamp]]:
    """What this process has delivered: position, id, timestamp."""
    return world.engines[process].application.delivered  # type: ignore[attr-defined, no-any-return]


def lose_disk(world: Lockstep, process: int) -> None:
    """The process dies, and comes back with an empty disk."""
    old = world.protocol(process)
    fresh = type(old)(process, world.topology, old.options, random.Random(7))
    engine = world.engines[process] = Engine(fresh, Recorder(), incarnation=2, copy_to_self=True)
    for link in [link for link in world.links if process in link]:
        world.links[link].clear()
    world._carry_out(process, engine.recover((), world.now, True))
    for other in world.engines:
        if other != process:
            world.engines[other].peer_reset(process)


def watch(world: Lockstep, kind: type) -> list[tuple[int, int]]:
    """The links that will have carried a message of this type."""
    links: list[tuple[int, int]] = []
    for process, engine in world.engines.items():
        inner = engine.protocol.on_message

        def on_message(sender: int, message: Any, now: int, out: Outbox, to: int = process, inner: Any = inner) -> None:
            if type(message) is kind:
                links.append((sender, to))
            inner(sender, message, now, out)

        engine.protocol.on_message = on_message  # type: ignore[method-assign]
    return links


def test_line_8_the_first_process_of_each_group_is_primary_first() -> None:
    world = cluster()
    assert [world.protocol(p).role() for p in range(6)] == ["leader", "follower", "follower"] * 2


def test_line_32_a_message_is_delivered_by_every_process_of_its_destinations_only() -> None:
    world = cluster(groups=3)
    m = world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(9)] == [[m]] * 6 + [[]] * 3


@pytest.mark.parametrize(("count", "frames"), [(3, 3), (200, 4)])
def test_what_piled_up_while_its_sender_stood_still_leaves_in_few_messages(count: int, frames: int) -> None:
    world = cluster()
    alone, together = watch(world, Start), watch(world, Copies)
    messages = [world.message(0, 1) for _ in range(count)]
    for message in messages:
        world.engines[0].submit(message)
    world._run(0)
    world.settle()
    starts = alone + together
    assert {to: starts.count((0, to)) for to in range(6)} == dict.fromkeys(range(6), frames)
    assert all(sorted(world.delivered(p)) == sorted(m.id for m in messages) for p in range(6))


def test_lines_39_and_45_every_process_acknowledges_to_every_process() -> None:
    world = cluster()
    links = watch(world, Ack)
    world.submit(0, 0, 1)
    world.settle()
    assert sorted(set(links)) == [(p, q) for p in range(6) for q in range(6)]
    assert len(links) == 36


def test_acknowledgements_of_one_batch_to_the_same_groups_are_one_message() -> None:
    world = cluster(groups=1)
    links = watch(world, Ack)
    for _ in range(5):
        world.engines[0].submit(world.message(0))
    world._run(0)
    world.settle()
    assert links.count((0, 1)) == 1 and links.count((1, 2)) == 1
    assert len(world.delivered(2)) == 5


def test_groups_deliver_common_messages_in_one_order() -> None:
    world = cluster()
    ids = [world.submit(p, 0, 1) for p in (0, 3, 1, 4, 2, 5)]
    world.settle()
    orders = [world.delivered(p) for p in range(6)]
    assert sorted(orders[0]) == sorted(ids)
    assert all(order == orders[0] for order in orders)


def test_line_10_one_group_without_quorum_holds_a_message_back() -> None:
    world = cluster()
    world.cut = {(3, 4), (3, 5)}
    world.submit(0, 0, 1)
    world.settle()
    assert [world.delivered(p) for p in range(6)] == [[]] * 6
    world.cut = set()
    world.settle()
    assert all(len(world.delivered(p)) == 1 for p in range(6))


def test_line_29_delivery_waits_for_a_quorum_of_clocks() -> None:
    world = cluster()
    for _ in range(5):
        world.submit(3, 1)
    world.settle()
    world.cut = {(p, q) for p in range(3) for q in range(3) if p != q}
    world.submit(0, 0, 1)
    world.settle()
    world.cut = {(1, 0), (1, 2), (2, 0), (2, 1)}  # the primary's proposal arrives, nobody's clock does
    for follower in (1, 2):
        while world.step(0, follower):
            pass
    world.settle()
    assert (world.protocol(0).clocks.leader_clock, world.protocol(0).clocks.quorum_clock) == (6, 0)
    assert world.delivered(0) == []
    world.cut = set()
    world.settle()
    assert [len(world.delivered(p)) for p in range(3)] == [1, 1, 1]


def _primary_dies_when_only_its_clock_was_raised(protocol: type[MulticastProtocol]) -> tuple[Lockstep, MessageId]:
    """Group 1 has stamped m at 6, which of group 0 only the primary has heard when it dies; the next stamps lower."""
    world = cluster(protocol=protocol)
    for _ in range(5):
        world.submit(3, 1)
    world.settle()
    world.cut = {(p, q) for p in range(3, 6) for q in (1, 2)}
    m = world.submit(0, 0, 1)
    world.step(0, 0)
    for follower in (1, 2):
        while world.step(0, follower):
            pass
    world.cut |= {(0, 1), (0, 2)}
    world.settle()
    world.crash(0)
    world.advance(5 * SECOND)
    world.submit(next(p for p in (1, 2) if world.protocol(p).role() == "leader"), 0)
    world.settle()
    world.cut = set()
    world.advance(2 * SECOND)
    return world, m


def test_line_29_a_later_primary_stamps_above_what_was_delivered() -> None:
    world, m = _primary_dies_when_only_its_clock_was_raised(PrimCast)
    assert world.delivered(0) == []
    assert world.delivered(1) == world.delivered(2)
    assert len(world.delivered(1)) == 2 and world.delivered(1)[1] == m


def test_line_29_left_out_processes_deliver_in_different_orders() -> None:
    world, m = _primary_dies_when_only_its_clock_was_raised(WithoutQuorumClock)
    assert world.delivered(0) == [m]
    assert len(world.delivered(1)) == 2 and world.delivered(1)[1] == m


def test_line_50_a_higher_stamp_of_another_group_is_told_to_the_own_group() -> None:
    world = cluster()
    for _ in range(5):
        world.submit(3, 1)
    world.settle()
    links = watch(world, Bump)
    m = world.submit(0, 0, 1)
    world.settle()
    assert {to // 3 for _, to in links} == {0}
    assert world.delivered(2) == [m]
    assert [world.protocol(p).clock.value for p in range(3)] == [6, 6, 6]
    assert [world.protocol(p).clocks.quorum_clock for p in range(3)] == [6, 6, 6]


def test_line_57_a_follower_takes_over_and_delivers_what_was_accepted() -> None:
    world = cluster()
    world.cut = {(p, q) for p in range(1, 6) for q in (0, 1, 2) if p != q}
    m = world.submit(0, 0, 1)
    world.settle()
    assert world.protocol(1).entries[m].epoch == Ballot(1, 0)
    assert world.delivered(1) == []
    world.crash(0)
    world.cut = set()
    world.advance(5 * SECOND)
    assert [world.delivered(p) for p in range(1, 6)] == [[m]] * 5
    assert sorted(world.protocol(p).role() for p in (1, 2)) == ["follower", "leader"]
    last = world.submit(3, 0, 1)
    world.settle()
    assert world.delivered(3) == [m, last]
    assert world.protocol(3).leader_of(0) == next(p for p in (1, 2) if world.protocol(p).role() == "leader")


def test_line_42_a_promised_process_that_has_joined_takes_the_primarys_proposals() -> None:
    world = cluster(groups=1, replicas=5)
    world.cut = {(p, 4) for p in range(4)}
    world.crash(0)
    world.advance(5 * SECOND)
    leader = next(p for p in range(1, 4) if world.protocol(p).role() == "leader")
    m = world.submit(leader, 0)
    world.settle()
    world.cut = {(p, 4) for p in range(4) if p != leader}
    while world.protocol(4).leadership.joined.leader != leader and world.step(leader, 4):
        pass
    assert world.protocol(4).role() == "recovering"
    while world.step(leader, 4):
        pass
    assert world.protocol(4).role() == "follower"
    assert world.protocol(4).t.length == world.protocol(leader).t.length == 1
    assert world.protocol(4).entries[m].ts == world.protocol(leader).entries[m].ts


def _silent_clocks(protocol: type[MulticastProtocol]) -> Lockstep:
    """Group 0 has m at 1, group 1 at 9; only process 2 hears of 9, before process 0 dies and another takes over."""
    world = cluster(protocol=protocol)
    for _ in range(8):
        world.submit(3, 1)
    world.settle()
    world.cut = {(p, q) for p in (3, 4, 5) for q in (0, 1)}
    world.submit(0, 0, 1)
    world.settle()
    assert [world.protocol(p).clock.value for p in range(3)] == [1, 1, 9]
    world.crash(0)
    world.advance(5 * SECOND)
    world.cut = set()
    world.advance(20 * SECOND)
    return world


def test_line_73_the_clock_that_an_epoch_begins_with_is_announced() -> None:
    world = _silent_clocks(PrimCast)
    assert len(world.delivered(1)) == len(world.delivered(2)) == 1


def test_line_73_as_printed_blocks_for_ever() -> None:
    world = _silent_clocks(PrintedLine73)
    assert len(world.delivered(3)) == 9
    assert world.delivered(1) == world.delivered(2) == []


def test_lines_66_and_67_a_candidate_takes_the_longest_t_of_the_highest_epoch() -> None:
    world = cluster(groups=1)
    world.cut = {(0, 1), (1, 0), (2, 0)}
    ids = [world.submit(0, 0) for _ in range(3)]
    world.settle()
    assert (world.protocol(1).t.length, world.protocol(2).t.length) == (0, 3)
    world.crash(0)
    world.cut = set()
    world.advance(5 * SECOND)
    assert world.delivered(1) == world.delivered(2) == ids


def test_a_message_that_reached_one_group_only_is_asked_for() -> None:
    world = cluster()
    world.cut = {(2, p) for p in (3, 4, 5)}
    m = world.submit(2, 0, 1)
    world.settle()
    world.crash(2)
    world.cut = set()
    wants = []
    for process in (3, 4, 5):
        inner = world.protocol(process).on_tick

        def on_tick(now: int, out: Outbox, inner: Any = inner) -> int | None:
            wake: int | None = inner(now, out)
            wants.extend(message for _, message, _ in out.sends if type(message) is Want)
            return wake

        world.protocol(process).on_tick = on_tick
    world.advance(2 * SECOND)
    assert wants and all(want.ids == [m] for want in wants)
    assert [world.delivered(p) for p in (0, 1, 3, 4, 5)] == [[m]] * 5


def test_a_start_that_reached_followers_only_is_handed_to_the_primary() -> None:
    world = cluster(groups=1)
    world.cut = {(2, 0)}
    m = world.submit(2, 0)
    world.settle()
    world.crash(2)
    world.cut = set()
    world.advance(2 * SECOND)
    assert world.delivered(0) == world.delivered(1) == [m]


def test_replicas_of_a_group_use_the_primarys_copy_when_copies_differ() -> None:
    world = cluster(groups=1, stability_us=10 * SECOND)
    message = world.message(0)
    other = AppMessage(message.id, message.destinations, b"something else", 1)
    codec = world.engines[0].codec
    world.engines[1].receive(2, codec.encode(0, Start(other)))
    world._run(1)
    payloads = []
    application = world.engines[1].application
    deliver = application.on_deliver

    def on_deliver(delivery: Delivered, *args: Any) -> None:
        payloads.append(delivery.message.payload)
        deliver(delivery, *args)

    application.on_deliver = on_deliver  # type: ignore[method-assign]
    world.engines[0].submit(message)
    world._run(0)
    world.advance(SECOND)
    assert payloads == [b"x"]


def test_a_proposal_lost_with_its_link_is_fetched() -> None:
    world = cluster(groups=1)
    world.cut = {(0, 2)}
    lost = world.submit(1, 0)
    world.settle()
    world.links[0, 2].clear()
    world.cut = set()
    m = world.submit(1, 0)
    world.settle()
    assert (world.protocol(2).t.length, world.protocol(1).t.length) == (0, 2)
    assert world.delivered(2) == []
    world.advance(SECOND)
    assert world.protocol(2).t.length == 2
    assert world.protocol(2).entries == {} or world.protocol(2).entries[m].place == 1
    assert world.delivered(1) == [lost, m]


def test_what_a_follower_has_no_room_for_it_fetches_at_once_when_it_is_due() -> None:
    world = cluster(groups=1, early_max=1)
    for _ in range(4):
        world.engines[0].submit(world.message(0))
    world._run(0)
    world.settle()
    assert [len(world.delivered(p)) for p in range(3)] == [4, 4, 4], "no heartbeat has told of them"


def test_a_deposed_primary_cannot_deliver() -> None:
    world = cluster(groups=1)
    world.cut = {(0, 1), (0, 2), (1, 0), (2, 0)}
    lost = world.submit(0, 0)
    world.advance(5 * SECOND)
    m = world.submit(1, 0)
    world.advance(SECOND)
    assert world.delivered(0) == [] and world.delivered(1) == world.delivered(2) == [m]
    world.cut = set()
    world.advance(10 * SECOND)
    assert world.delivered(1) == world.delivered(2)
    assert set(world.delivered(1)) == {m, lost}
    assert world.protocol(0).role() == "follower"


def test_a_candidate_learns_of_a_higher_epoch_and_overtakes_it() -> None:
    world = cluster(groups=1)
    world.cut = {(1, 0), (1, 2)}
    world.advance(20 * SECOND)
    world.cut = set()
    world.advance(10 * SECOND)
    assert sorted(world.protocol(p).role() for p in range(3)) == ["follower", "follower", "leader"]
    m = world.submit(0, 0)
    world.advance(3 * SECOND)
    assert world.delivered(1) == [m]


def test_a_restarted_primary_does_not_lead_in_its_old_epoch() -> None:
    world = cluster(groups=1)
    values: dict[bytes, bytes] = {}
    out = Outbox()
    first = PrimCast(0, world.topology, PrimCast.specification.options(), world.rng)
    first.on_start(Saved({}), world.now, out)
    ((_, accept, _),) = out.sends
    first.on_message(0, accept, world.now, out)
    first.end_batch(world.now, out)
    assert first.role() == "leader"
    values.update({k: v for k, v, _ in out.changes if v is not None})
    again = PrimCast(0, world.topology, PrimCast.specification.options(), world.rng)
    again.on_start(Saved(values, first=False), world.now, Outbox())
    assert again.role() == "recovering"
    out = Outbox()
    again.on_tick(world.now + SECOND, out)
    [doubt] = [m for _, m, _ in out.sends if type(m) is Doubt]
    again.on_message(1, Agreed(Ballot(1, 0), doubt.question), world.now + SECOND, out)
    assert [m.ballot for _, m, _ in out.sends if type(m) is NewLeader] == [Ballot(2, 0)]


def test_what_a_process_told_others_is_restored() -> None:
    world = cluster()
    kept: dict[int, dict[bytes, bytes]] = {p: {} for p in range(6)}
    for process, engine in world.engines.items():
        run = engine.run

        def watched(now: int, run: Any = run, values: dict[bytes, bytes] = kept[process]) -> Any:
            batch = run(now)
            for key, value in changes(batch.journal):
                if value is None:
                    values.pop(key, None)
                else:
                    values[key] = value
            return batch

        engine.run = watched  # type: ignore[method-assign]
    world.cut = {(p, q) for p in (3, 4, 5) for q in (0, 1, 2)}
    m = world.submit(0, 0, 1)
    world.settle()
    before = world.protocol(1)
    kept[1][b"b"] = msgspec.msgpack.encode((before.election.promised, before.leadership.joined))
    again = PrimCast(1, world.topology, PrimCast.specification.options(), world.rng)
    again.on_start(Saved(kept[1], first=False), world.now, Outbox())
    assert (again.clock.value, again.t.length, again.entries[m].ts) == (before.clock.value, 1, before.entries[m].ts)
    assert again.role() == "recovering"


def test_entries_go_once_a_quorum_of_each_destination_has_delivered() -> None:
    world = cluster()
    for _ in range(50):
        world.submit(0, 0, 1)
        world.submit(0, 0)
    world.settle()
    assert all(world.protocol(p).describe()["entries"] == 100 for p in range(3))
    world.advance(SECOND)
    assert [world.protocol(p).describe()["entries"] for p in range(6)] == [0] * 6
    assert all(not len(world.protocol(p).t) and not world.protocol(p).t.waiting for p in range(6))


def test_a_settled_message_is_recognised_and_not_delivered_again() -> None:
    world = cluster()
    m = world.submit(0, 0, 1)
    original = world.protocol(0).entries[m].message
    world.advance(SECOND)
    world.engines[4].submit(original)
    world.engines[0].receive(3, world.engines[0].codec.encode(0, Start(original)))
    world.advance(3 * SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_a_sender_outside_the_destinations_learns_that_its_message_was_delivered() -> None:
    world = cluster(groups=3)
    m = world.submit(8, 0, 1)
    assert world.protocol(8).describe()["submitted"] == 1
    world.settle()
    assert world.delivered(0) == world.delivered(5) == [m]
    assert world.protocol(8).describe()["submitted"] == 0


def test_a_large_state_changes_primaries_in_portions() -> None:
    world = cluster(groups=1, replicas=5, retry_us=60 * SECOND)
    world.cut = {(p, q) for p in range(1, 5) for q in range(5) if p != q}
    for n in range(12):
        message = world.message(0)
        message.payload = bytes([n]) * 1_000_000
        world.engines[0].submit(message)
    world._run(0)
    world.settle()
    world.crash(0)
    for link in world.cut:
        world.links.get(link, deque()).clear()
    world.cut = set()
    longest = 0
    for engine in world.engines.values():
        receive = engine.receive

        def measured(peer: int, data: bytes, receive: Any = receive) -> None:
            nonlocal longest
            longest = max(longest, len(data))
            receive(peer, data)

        engine.receive = measured  # type: ignore[method-assign]
    world.advance(10 * SECOND)
    assert [len(world.delivered(p)) for p in range(1, 5)] == [12] * 4
    assert 4_000_000 < longest < 6_000_000


def test_too_many_pending_messages_are_refused() -> None:
    world = cluster(pending_max=2)
    world.cut = {(p, q) for p in range(6) for q in range(6) if p != q}
    world.submit(0, 0, 1)
    world.submit(0, 0, 1)
    with pytest.raises(Overloaded, match="limit is 2"):
        world.protocol(0).on_submit(world.message(0, 1), world.now, world.engines[0]._out)


def test_what_no_correct_peer_sends_is_refused() -> None:
    world = cluster()
    out = Outbox()
    with pytest.raises(PeerError, match="at group 0"):
        world.protocol(0).on_message(3, Start(world.message(1)), world.now, out)
    with pytest.raises(PeerError, match="Bump from group 1"):
        world.protocol(0).on_message(3, Bump(Ballot(1, 3), 5, 0), world.now, out)
    with pytest.raises(PeerError, match="somebody else's ballot"):
        world.protocol(0).on_message(1, NewLeader(Ballot(7, 2), 0), world.now, out)


def test_a_primary_that_hears_from_another_group_that_its_message_is_settled_catches_up() -> None:
    world = cluster(retry_us=20 * SECOND)
    world.cut = {(p, 0) for p in (3, 4, 5)}
    m = world.submit(0, 0, 1)
    world.advance(SECOND)
    assert world.delivered(0) == [] and world.delivered(1) == world.delivered(5) == [m]
    assert world.protocol(1).describe()["entries"] == 0
    out = Outbox()
    world.protocol(0).on_message(4, Known(m, world.protocol(4).log.known(m)[0]), world.now, out)
    world.protocol(0).on_message(4, Known(m, world.protocol(4).log.known(m)[0]), world.now, out)
    assert sorted(out.catch_ups) == [1, 2]


def test_who_is_stuck_asks_members_that_are_ahead_until_it_has_delivered() -> None:
    world = cluster(groups=1)
    process, ahead, level = world.protocol(2), Ack(Ballot(1, 0), 1, 0, 1, []), Ack(Ballot(1, 0), 1, 0, 0, [])

    def asks(ack: Ack) -> list[int]:
        process.on_message(1, ack, world.now, out := Outbox())
        return out.catch_ups

    assert asks(ahead) == [], "nothing has waited for long"
    world.cut = {(2, 0), (2, 1), (1, 2)}
    m = world.submit(2, 0)
    world.cut |= {(0, 2)}
    world.step(2, 2)
    process._take_start(2, process.copies.payload(m) or world.message(0), world.now, Outbox())
    process._stuck = True
    assert (asks(ahead), asks(level)) == ([1], [])
    world.cut = set()
    world.advance(5 * SECOND)
    assert world.delivered(2) == [m] and asks(Ack(Ballot(1, 0), 1, 0, 2, [])) == []


def test_who_is_asked_twice_in_one_batch_answers_once() -> None:
    world, out = cluster(groups=1), Outbox()
    world.cut = {(1, 0), (2, 0)}
    m = world.submit(0, 0)
    world.advance(10_000)
    process = world.protocol(0)
    stamp = process.entries[m].stamp(False)
    for _ in range(3):
        process.on_message(2, Ack(Ballot(1, 0), 1, 0, 0, [stamp], True), world.now, out)
    process.end_batch(world.now, out)
    answers = [sent.stamps for to, sent, _ in out.sends if type(sent) is Ack and to == (2,)]
    assert [[one.id for one in stamps] for stamps in answers] == [[m]]


def test_who_has_heard_of_a_later_copy_does_not_say_that_it_is_settled() -> None:
    world = cluster(groups=1)
    m = world.submit(0, 0)
    world.advance(SECOND)
    process = world.protocol(1)
    assert process.copies.settled_at(m) is not None and m not in process.entries
    process.t.pending(m, world.now)
    process.on_message(0, Want([m]), world.now, out := Outbox())
    assert out.sends == []


def test_who_holds_what_its_own_group_has_settled_fetches_it_from_who_says_so() -> None:
    world = cluster()
    world.cut = {(p, 2) for p in (3, 4, 5)}
    m = world.submit(0, 0, 1)
    world.settle()
    process = world.protocol(2)
    assert process.entries[m].epoch is not None and not process.entries[m].position
    process.on_message(1, Known(m, world.protocol(1).log.known(m)[0]), world.now, out := Outbox())
    assert out.catch_ups == [1]


def test_who_lost_its_disk_says_nothing_until_it_is_readmitted() -> None:
    world = cluster()
    world.cut = {(p, q) for p in range(3, 6) for q in range(3)} | {(0, 2), (1, 2), (2, 1)}
    m = world.submit(0, 0, 1)
    world.settle()
    said = [watch(world, kind) for kind in (Ack, Bump, Promise, Accept)]
    lose_disk(world, 1)
    world.advance(300_000)
    assert not world.protocol(1).is_member() and not [link for links in said for link in links if link[0] == 1]
    assert world.protocol(1).election.rejoin.bound is None  # process 2 has not answered
    world.cut = {(p, q) for p in range(3, 6) for q in range(3)}
    world.advance(3 * SECOND)
    back = world.protocol(1)
    assert back.is_member() and back.leadership.joined > Ballot(1, 0)
    assert back.entries[m].ts == world.protocol(2).entries[m].ts
    world.cut = set()
    world.advance(5 * SECOND)
    assert [world.delivered(p) for p in range(6)] == [[m]] * 6


def test_what_a_member_told_before_it_lost_its_disk_counts_no_more() -> None:
    world = cluster()
    process, out = world.protocol(0), Outbox()
    epoch = process.leadership.joined
    process.on_message(2, Bump(epoch, 9, 0), world.now, out)
    process.on_message(2, Watermark(Timestamp(9, 0)), world.now, out)
    process.on_message(2, Returned(5, None), world.now, out)
    process.on_message(1, Bump(epoch, 9, 0), world.now, out)
    assert process.clocks.quorum_clock == 0, "nobody else is at 9"
    assert process.log.watermark_of(2) == ZERO


def test_a_stamp_decided_with_the_help_of_who_then_lost_its_disk_stays_decided() -> None:
    world = cluster()
    world.cut = {(0, 2), (1, 2), (2, 0), (2, 1)} | {(p, q) for p in range(3, 6) for q in range(3)}
    m = world.submit(0, 0, 1)
    world.settle()
    final = recorded(world, 3)[0][2]
    assert world.delivered(0) == [] and m not in world.protocol(2).entries
    lose_disk(world, 1)
    world.cut = {(p, q) for p in range(3, 6) for q in range(3)}
    world.submit(2, 0)
    world.advance(5 * SECOND)
    assert world.protocol(1).is_member()
    world.cut = set()
    world.advance(5 * SECOND)
    assert [world.delivered(p).count(m) for p in range(6)] == [1] * 6
    assert {at for p in range(6) for _, i, at in recorded(world, p) if i == m} == {final}


def test_who_asks_a_group_that_has_settled_a_message_learns_its_final_timestamp() -> None:
    world = cluster()
    world.cut = {(p, q) for p in range(3, 6) for q in range(3)}
    m = world.submit(0, 0, 1)
    world.settle()
    final = recorded(world, 3)[0][2]
    for p in range(3):
        assert world.delivered(p) == []
        engine = world.engines[p]
        engine.receive(3, world.engines[3].codec.encode(0, Known(m, final)))
        world._run(p)
    world.settle()
    assert [world.delivered(p) for p in range(3)] == [[m]] * 3
    assert {at for p in range(6) for _, _, at in recorded(world, p)} == {final}
