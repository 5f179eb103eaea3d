"""A group that has become smaller: who is left goes on, whatever they have heard."""

from __future__ import annotations

import random

import pytest

from multicast import registry
from multicast.application import Application
from multicast.membership import Change, ViewAsk, ViewIs, Views, change_payload, view_key
from multicast.parts.ballots import Doubt, LeaderIs, NewLeader
from multicast.protocol import Outbox, PeerError, Saved
from multicast.protocols.primcast import Ack, PrimCast
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.growing import topology_of
from multicast.simulation.network import Conditions
from multicast.simulation.world import World
from multicast.types import VIEW_BITS, AppMessage, Ballot, GroupId, ProcessId, Topology, new_message_id

DELTA, SECOND = 1_000, 1_000_000
PROTOCOLS = [name for name in registry.names() if registry.load(name).specification.changes_members]


class Small:
    """A world of a changing group."""

    def __init__(self, name: str, topology: Topology):
        protocol = registry.load(name)
        options = protocol.specification.options()

        def make(pid: ProcessId, rng: random.Random, disk: SimulatedDisk) -> tuple[object, Application]:
            return protocol(pid, topology_of(topology, pid), options, rng), Application()

        self.world = World(topology, make, 0, Conditions.exact(DELTA))
        self.world.start()
        self.world.run_for(3 * SECOND)
        self._submitted = 0

    def submit(self, origin: ProcessId, groups: tuple[GroupId, ...], payload: bytes = b"") -> None:
        self._submitted += 1
        message = AppMessage(new_message_id(self.world.now, self._submitted), groups, payload, origin)
        assert self.world.submit(origin, message)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_is_removed_hears_that_the_view_has_begun_when_most_others_know_it(name: str) -> None:
    """It ends then. If only the leader knows it when that dies, most of the view before are needed, it among them."""
    small = Small(name, Topology({0: (0, 1, 2, 3), 1: (4, 5, 6)}))
    world = small.world
    small.submit(1, (0,), change_payload(Change(0, False, 3)))
    views = world.node(0).protocol.topology.views[0]
    assert world.run_while(lambda: views.begun != 1, 5 * SECOND, 100)
    world.network.block([(0, 1), (0, 2)])
    world.run_for(100 * DELTA)
    world.crash(0)
    world.network.unblock([(0, 1), (0, 2)])
    assert world.node(3).protocol.role() != "removed"
    assert world.run_while(lambda: world.node(3).protocol.role() != "removed", 5 * SECOND, 100)
    world.crash(3)
    world.run_for(60 * SECOND)
    before = [world.node(p).engine.position for p in (1, 2)]
    small.submit(4, (0,))
    world.run_for(60 * SECOND)
    assert [world.node(p).engine.position for p in (1, 2)] == [position + 1 for position in before]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_is_removed_and_misses_its_leader_is_not_told_by_one_of_the_few_who_know_it(name: str) -> None:
    """It ends then, and if these few die, two of five, the others need most of the view before, it among them."""
    small = Small(name, Topology({0: (0, 1, 2, 3, 4, 5)}))
    world, few, rest = small.world, (0, 1), (2, 3, 4)
    small.submit(1, (0,), change_payload(Change(0, False, 5)))
    views = world.node(0).protocol.topology.views[0]
    assert world.run_while(lambda: views.begun != 1, 5 * SECOND, 100)
    between = [(a, b) for a in few for b in rest] + [(5, p) for p in (0, *rest)]
    cut = [pair for a, b in between for pair in ((a, b), (b, a))]
    world.network.block(cut)
    world.run_for(10 * SECOND)
    assert [world.node(p).protocol.topology.views[0].begun for p in (*few, *rest)] == [1, 1, 0, 0, 0]
    assert world.node(5).protocol.role() != "removed"
    for process in few:
        world.crash(process)
    world.network.unblock(cut)
    assert world.run_while(lambda: world.node(5).protocol.role() != "removed", 60 * SECOND)
    world.crash(5)
    before = [world.node(p).engine.position for p in rest]
    small.submit(3, (0,))
    world.run_for(10 * SECOND)
    assert [world.node(p).engine.position for p in rest] == [position + 1 for position in before]


@pytest.mark.parametrize("asked", [Doubt(Ballot(1, 0), 1), NewLeader(Ballot(2, 1), 1), ViewAsk()])
def test_who_was_removed_tells_the_rest_that_their_view_has_begun(asked: object) -> None:
    """They may not know it, and who told it may have died."""
    topology, views = Topology({0: (0, 1, 2, 3)}), Views((0, 1, 2, 3))
    assert views.change(Change(0, False, 3), 1)
    for protocol in map(registry.load, PROTOCOLS):
        process = protocol(3, topology, protocol.specification.options(), random.Random(1))
        process.on_start(Saved({view_key(0, 1): views.encode(1), b"B": (1).to_bytes(4, "big"), b"X": b""}), 1, Outbox())
        process.on_message(1, asked, 1, out := Outbox())
        assert [(to, message.number) for to, message, *_ in out.sends] == [((1,), 1)]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_that_a_view_has_begun_is_told_when_that_is_on_disk(name: str) -> None:
    """Who is removed by it ends. The one that is left would not know it after a failure of its power, and wait."""
    small = Small(name, Topology({0: (0, 1)}))
    world = small.world
    small.submit(0, (0,), change_payload(Change(0, False, 1)))
    views = world.node(0).protocol.topology.views[0]
    assert world.run_while(lambda: views.latest != 1, 5 * SECOND, 100)
    world.slow_disk(0, SECOND)
    assert world.run_while(lambda: views.begun != 1, 9 * SECOND, 100)
    world.run_for(10 * DELTA)
    world.crash(0, keeps=False)
    world.run_for(5 * DELTA)
    if world.node(1).protocol.role() == "removed":
        world.crash(1)
    world.slow_disk(0, 0)
    world.restart(0)
    world.run_for(60 * SECOND)
    small.submit(0, (0,))
    world.run_for(60 * SECOND)
    assert world.node(0).engine.position == 2


@pytest.mark.parametrize("name", PROTOCOLS)
def test_what_a_smaller_group_has_delivered_is_settled_though_nobody_tells_anything_new(name: str) -> None:
    small = Small(name, Topology({0: (0, 1), 1: (2, 3, 4)}))
    small.submit(0, (0, 1))
    small.submit(0, (0,), change_payload(Change(0, False, 1)))
    small.world.run_for(200 * SECOND)
    assert {small.world.node(p).protocol.describe()["unsettled"] for p in (0, 2, 3, 4)} == {0}


def test_who_was_removed_gives_no_view_that_it_was_only_told() -> None:
    """A taker would lack those between."""
    topology, views = Topology({0: (0, 1, 2)}), Views((0, 1, 2))
    assert views.change(Change(0, False, 2), 1)
    disk: dict[bytes, bytes | None] = {
        view_key(0, 1): views.encode(1), b"B": (1).to_bytes(4, "big"), b"X": b"",
    }  # fmt: skip

    def process() -> WhiteBox:
        one = WhiteBox(2, topology, WhiteBox.specification.options(), random.Random(1))
        one.on_start(Saved({key: value for key, value in disk.items() if value is not None}), 1, Outbox())
        return one

    out = Outbox()
    process().on_message(0, ViewIs(4, (0, 1, 7), {}), 1, out)
    disk |= {key: value for key, value, _ in out.changes}
    assert view_key(0, 4) in disk and [*dict(process().leadership.views_given(1))] == [view_key(0, 1)]


def test_a_leader_unheard_of_is_asked_for_and_nobody_is_called_faulty() -> None:
    """It was added; a follower's word comes before its own: there is no link to it yet."""
    topology = Topology({0: (0, 1, 2), 1: (3, 4, 5)})
    one, out = PrimCast(4, topology, PrimCast.specification.options(), random.Random(1)), Outbox()
    one.on_start(Saved({}), 1, Outbox())
    leader = one.leadership.leaders[0]
    ballot = Ballot((1 << VIEW_BITS) + 2, 7)
    for _ in range(3):
        one.on_message(1, Ack(ballot, 5, 1, 1, [], False), 2, out)
    assert [to for to, message, _ in out.sends if type(message).__name__ == "ViewAsk"] == [(0, 1, 2)]
    assert one.leadership.leaders[0] == leader
    one.on_message(0, ViewIs(1, (0, 1, 7), {}), 3, out)
    one.on_message(1, Ack(ballot, 5, 1, 1, [], False), 4, out)
    assert one.leadership.leaders[0] == ballot
    with pytest.raises(PeerError):
        one.on_message(1, Ack(Ballot((1 << VIEW_BITS) + 3, 9), 5, 1, 1, [], False), 5, out)  # nobody of that view


@pytest.mark.parametrize("again", [False, True])
def test_who_belonged_to_a_group_in_between_is_known_also_after_a_restart(again: bool) -> None:
    """What was said of it may come late."""
    topology = Topology({0: (0, 1, 2), 1: (3, 4, 5)})

    def process(saved: Saved) -> PrimCast:
        one = PrimCast(4, topology, PrimCast.specification.options(), random.Random(1))
        one.on_start(saved, 1, Outbox())
        return one

    one, out = process(Saved({})), Outbox()
    for view in (ViewIs(2, (0, 1, 2), {}), ViewIs(1, (0, 1, 2, 7), {})):
        one.on_message(0, view, 1, out)
    if again:
        one = process(Saved({key: value for key, value, _ in out.changes if value is not None}))
    assert one.topology.groups[0] == (0, 1, 2)
    one.on_message(1, LeaderIs(Ballot((1 << VIEW_BITS) + 2, 7)), 2, Outbox())
    assert one.leadership.leaders[0].leader == 7


@pytest.mark.parametrize("name", PROTOCOLS)
def test_who_is_added_waits_for_no_answer_of_a_first_leader_that_was_removed(name: str) -> None:
    small = Small(name, Topology({0: (0, 1, 2), 1: (3, 4, 5)}, {1: (6,)}))
    world = small.world
    small.submit(1, (0,), change_payload(Change(0, False, 0)))
    world.run_for(5 * SECOND)
    world.crash(0)
    world.restart(6)
    small.submit(3, (1,), change_payload(Change(0, True, 6)))
    world.run_for(60 * SECOND)
    before = [world.node(p).engine.position for p in (1, 2)]
    small.submit(6, (0,))
    world.run_for(8 * DELTA)
    assert [world.node(p).engine.position for p in (1, 2)] == [position + 1 for position in before]
