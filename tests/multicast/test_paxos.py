"""Multi-Paxos for one group: what Lamport's "The Part-Time Parliament" and the part's docstring promise."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast.application import Application
from multicast.parts import paxos
from multicast.parts.ballots import FOLLOWER, Agreed, Doubt, Heartbeat
from multicast.parts.options import GroupOptions
from multicast.parts.paxos import Accept, Accepted, Begun, Chosen, Fetch, Paxos
from multicast.parts.rejoin import Highest, Returned
from multicast.protocol import MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.simulation.network import Conditions
from multicast.simulation.scene import EPOCH_US
from multicast.simulation.world import World
from multicast.types import AppMessage, Ballot, ProcessId, Topology, new_message_id
from tests.multicast.lockstep import Lockstep

SECOND = 1_000_000


class LogOptions(GroupOptions, kw_only=True):
    instances_max: int = 1


class Log(MulticastProtocol):
    """The smallest user of the part: the leader's submissions become values, and every value is delivered."""

    specification = Specification(
        name="log", summary="", paper="", options=LogOptions, messages=paxos.MESSAGES,
        housekeeping=paxos.HOUSEKEEPING, fault_tolerant=True, genuine=True,
    )  # fmt: skip

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.paxos = Paxos(self_id, topology.groups[self.group], self.options, rng, self.options.instances_max)
        self.values: list[bytes] = []
        self.batches: list[int] = []

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        self.paxos.on_start(saved.values, now, out)
        self._take()

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.paxos.propose(message.id)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        self.paxos.on_message(sender, message, now, out)
        self._take()

    def _take(self) -> None:
        for instance, values in self.paxos.instances.take():
            assert instance == len(self.batches) + 1
            self.batches.append(len(values))
            self.values += values

    def end_batch(self, now: int, out: Outbox) -> None:
        self.paxos.end_batch(now, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        return self.paxos.tick(now, out)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.paxos.on_peer_reset(peer, now)

    def role(self) -> str:
        return self.paxos.role()


def group(replicas: int = 3, **options: Any) -> Lockstep:
    world = Lockstep(Topology.grid(1, replicas), Log, **options)
    world.settle()
    return world


def values(world: Lockstep) -> list[list[bytes]]:
    return [world.protocol(p).values for p in world.topology.processes if p not in world.down]


def leader(world: Lockstep) -> ProcessId:
    leaders = [p for p in world.topology.processes if p not in world.down and world.protocol(p).paxos.leading]
    assert len(leaders) == 1, leaders
    return leaders[0]


def drop(world: Lockstep, process: ProcessId) -> None:
    """What is under way to this process is lost."""
    for link in [link for link in world.links if link[1] == process]:
        world.links[link].clear()


def isolate(world: Lockstep, process: ProcessId) -> None:
    world.cut = {(process, p) for p in world.topology.processes} | {(p, process) for p in world.topology.processes}


def test_the_first_member_leads_first_without_asking() -> None:
    world = group()
    assert [world.protocol(p).role() for p in range(3)] == ["leader", "follower", "follower"]
    assert world.protocol(0).paxos.promised == Ballot(1, 0)


def test_all_members_learn_one_sequence() -> None:
    world = group(5)
    ids = [world.submit(0, 0) for _ in range(10)]
    world.settle()
    assert values(world) == [ids] * 5


def test_values_that_come_while_an_instance_runs_share_the_next_one() -> None:
    world = group()
    for _ in range(6):
        world.submit(0, 0)
    world.settle()
    assert [world.protocol(p).batches for p in range(3)] == [[1, 5]] * 3


def test_with_several_instances_under_way_values_need_not_wait() -> None:
    world = group(instances_max=4)
    for _ in range(6):
        world.submit(0, 0)
    world.settle()
    assert [world.protocol(p).batches for p in range(3)] == [[1, 1, 1, 1, 2]] * 3


def test_all_proposals_that_were_lost_are_sent_again_together() -> None:
    world = group(instances_max=100)
    world.cut = {(0, 1), (0, 2)}
    ids = [world.submit(0, 0) for _ in range(100) if world.settle() is None]
    world.cut = set()
    for peer in (1, 2):
        world.lose_link(0, peer)
    assert values(world) == [[], [], []]
    world.advance(250_000)
    assert values(world) == [ids] * 3


def test_a_reset_link_does_not_get_everything_undecided_at_once() -> None:
    """What overflowed a queue of the link would overflow it again, and for ever."""
    world = group(instances_max=100)
    world.cut = {(0, 1), (0, 2)}
    for _ in range(100):
        world.submit(0, 0)
        world.settle()
    world.advance(150_000)
    for _ in range(3):
        world.lose_link(0, 1)
        world.submit(0, 0)
        world.advance(10_000)
    assert 0 < len(world.links[(0, 1)]) < 40
    world.cut = set()
    world.lose_link(0, 2)
    world.advance(1_000_000)
    assert [len(some) for some in values(world)] == [103] * 3


def test_nothing_is_decided_without_a_quorum() -> None:
    world = group()
    world.cut = {(1, 0), (2, 0), (0, 1), (0, 2)}
    world.submit(0, 0)
    world.settle()
    assert values(world) == [[], [], []]


def test_a_minority_may_be_dead() -> None:
    world = group(5)
    world.crash(3)
    world.crash(4)
    m = world.submit(0, 0)
    world.settle()
    assert values(world) == [[m]] * 3


def test_a_new_leader_completes_what_one_member_accepted() -> None:
    world = group()
    world.cut = {(0, 2), (1, 0), (1, 2)}
    m = world.submit(0, 0)
    world.settle()
    world.crash(0)
    world.cut = set()
    world.advance(5 * SECOND)
    assert values(world) == [[m], [m]]
    assert leader(world) in (1, 2)


def test_a_deposed_leader_decides_nothing_and_learns_what_was_decided() -> None:
    world = group()
    isolate(world, 0)
    world.submit(0, 0)
    world.advance(5 * SECOND)
    new = next(p for p in (1, 2) if world.protocol(p).paxos.leading)
    m = world.submit(new, 0)
    world.settle()
    assert values(world) == [[], [m], [m]]
    world.cut = set()
    world.advance(5 * SECOND)
    assert values(world) == [[m], [m], [m]]
    leader(world)


def test_a_new_leader_that_is_far_behind_holds_all_that_it_proposes_again() -> None:
    """What is too far ahead of a member it drops, and the leader sends it again; nobody sends it to the leader."""
    world = group(instances_max=2, early_max=1)
    world.cut = {(0, 2), (1, 2)}
    ids = [world.submit(0, 0) for _ in range(10) if world.settle() is None]
    world.settle()
    assert values(world) == [ids, ids, []]
    world.crash(0)
    drop(world, 2)
    world.cut = {(1, 2)}
    world.protocol(1).paxos.election.on_clock(True, world.now)
    while not world.links[(1, 2)]:  # the promise that it answers with
        world.advance(100_000)
    world.cut = set()
    world.settle()
    assert leader(world) == 2
    world.advance(5 * SECOND)
    assert values(world) == [ids, ids]


def test_a_member_takes_the_next_proposals_although_it_has_not_heard_that_the_last_ones_are_decided() -> None:
    """As many as a leader sends again at once, however few may come early: refused, each took it two heartbeats."""
    part = Paxos(1, (0, 1, 2), GroupOptions(early_max=1), random.Random(1))
    part.on_start({}, 0, Outbox())
    for instance in range(1, 12):
        part.on_message(0, Accept(Ballot(1, 0), instance, [b"x"], instance - 1), 1, Outbox())
    assert list(map(int, part.inspect()["accepted"])) == list(range(1, 10))


def test_of_two_accepted_batches_the_one_of_the_higher_ballot_survives() -> None:
    world = group(5)
    isolate(world, 0)
    world.submit(0, 0)
    world.advance(5 * SECOND)
    new = next(p for p in (1, 2, 3, 4) if world.protocol(p).paxos.leading)
    others = [p for p in (1, 2, 3, 4) if p != new]
    world.cut |= {(new, p) for p in others[1:]} | {(p, new) for p in others}
    later = world.submit(new, 0)
    world.settle()
    assert values(world) == [[]] * 5
    world.crash(new)
    world.cut = {link for link in world.cut if others[2] in link} | {(others[2], p) for p in range(5)}
    world.advance(20 * SECOND)
    world.cut = set()
    world.advance(20 * SECOND)
    assert values(world) == [[later]] * 4


def test_a_candidate_learns_of_a_higher_ballot_and_overtakes_it() -> None:
    world = group()
    isolate(world, 1)
    world.advance(20 * SECOND)
    world.cut = set()
    drop(world, 1)
    world.advance(10 * SECOND)
    m = world.submit(leader(world), 0)
    world.advance(SECOND)
    assert values(world) == [[m]] * 3


def test_a_member_fetches_the_instances_that_it_missed() -> None:
    world = group()
    isolate(world, 2)
    ids = [world.submit(0, 0) for _ in range(5)]
    world.settle()
    drop(world, 2)
    world.cut = set()
    world.advance(SECOND)
    assert values(world) == [ids] * 3


def test_an_accept_tells_what_is_decided_before_the_next_heartbeat_does() -> None:
    world = group()
    member, out = world.protocol(2).paxos, Outbox()
    member.on_message(0, Accept(Ballot(1, 0), 4, [b"x"], 3), world.now, out)
    member.tick(world.now + member.heartbeat_us, out)
    assert [(to, asked.first) for to, asked, _ in out.sends if isinstance(asked, Fetch)] != []


def test_a_lost_accept_is_sent_again() -> None:
    world = group()
    m = world.submit(0, 0)
    drop(world, 1)
    drop(world, 2)
    world.advance(SECOND)
    assert values(world) == [[m]] * 3


def test_a_leader_that_hears_of_a_loss_sends_again_with_its_next_heartbeat() -> None:
    """It need not see first that nothing was decided from one heartbeat to the next."""
    world = group()
    world.advance(SECOND)
    m = world.submit(0, 0)
    world.lose_link(0, 1)
    world.lose_link(0, 2)
    world.advance(world.protocol(0).options.heartbeat_us)
    assert values(world) == [[m]] * 3


def test_lost_accepts_of_which_few_go_at_once_follow_one_another_at_once() -> None:
    """Not a heartbeat apart."""
    world = group(portion_bytes=1, instances_max=8)
    world.advance(SECOND)
    ids = [world.submit(0, 0) for _ in range(6)]
    world.lose_link(0, 1)
    world.lose_link(0, 2)
    world.advance(world.protocol(0).options.heartbeat_us)
    assert values(world) == [ids] * 3


def test_dropped_instances_are_gone_and_who_asks_for_them_learns_so() -> None:
    world = group()
    isolate(world, 2)
    world.submit(0, 0)
    world.settle()
    drop(world, 2)
    out = Outbox()
    for p in (0, 1):
        part = world.protocol(p).paxos
        part.instances.truncate(part.decided, out)
        assert part.describe()["kept"] == 0
    assert [value for _, value, _ in out.changes] == [None, None]
    world.cut = set()
    world.advance(SECOND)
    late = world.protocol(2).paxos
    assert late.stranded and late.stranded_below == 2
    late.jump(1, world.now, out)
    assert not late.stranded and late.decided == 1
    world.protocol(2).batches = [0]
    m = world.submit(0, 0)
    world.settle()
    assert world.protocol(2).values == [m]


def test_who_takes_over_a_state_fetches_what_follows_at_once_and_once() -> None:
    """A heartbeat later a group that decides something all the while has dropped that, too, and so again and again."""
    world, out = group(), Outbox()
    member = world.protocol(2).paxos
    member.jump(3, world.now, out)
    for heartbeats in range(9):
        member.tick(world.now + heartbeats * member.heartbeat_us, out)
        assert [asked.first for _, asked, _ in out.sends if isinstance(asked, Fetch)] == [4]


def test_a_leader_that_takes_over_a_state_proposes_what_follows() -> None:
    world, out = group(), Outbox()
    member = world.protocol(0).paxos
    member.jump(3, world.now, out)
    member.propose(b"x")
    member.end_batch(world.now, out)
    assert [accept.instance for _, accept, _ in out.sends if isinstance(accept, Accept)] == [4]


def test_a_candidate_that_lacks_dropped_instances_does_not_lead() -> None:
    world = group()
    isolate(world, 2)
    world.submit(0, 0)
    world.settle()
    drop(world, 2)
    world.protocol(1).paxos.instances.truncate(1, Outbox())
    world.crash(0)
    world.cut = {(1, 2)}
    world.advance(3 * SECOND)
    world.cut = set()
    late = world.protocol(2).paxos
    for _ in range(100):
        world.advance(SECOND // 10)
        assert not late.leading
    assert late.stranded
    late.jump(1, world.now, Outbox())
    world.advance(10 * SECOND)
    assert sorted(world.protocol(p).role() for p in (1, 2)) == ["follower", "leader"]


def test_what_is_asked_for_repeatedly_in_one_batch_is_accepted_once() -> None:
    part, out = Paxos(1, (0, 1, 2), GroupOptions(), random.Random(1)), Outbox()
    part.on_start({}, 0, out)
    part.on_message(0, Heartbeat(Ballot(7, 0), 0, False), 1, out)
    for instance in (1, 2, 1, 2):
        part.on_message(0, Accept(Ballot(7, 0), instance, [b"a"], 0), 1, out)
    part.end_batch(2, out)
    assert [sent.instances for _, sent, _ in out.sends if type(sent) is Accepted] == [[1, 2]]


def test_a_restarted_member_keeps_promise_batches_and_decisions() -> None:
    saved: dict[bytes, bytes] = {}
    part = Paxos(1, (0, 1, 2), GroupOptions(), random.Random(1))
    out = Outbox()
    part.on_start(saved, 0, out)
    part.on_message(0, Heartbeat(Ballot(7, 0), 0, False), 1, out)
    part.on_message(0, Accept(Ballot(7, 0), 1, [b"a"], 0), 1, out)
    part.on_message(0, Accept(Ballot(7, 0), 2, [b"b"], 0), 1, out)
    part.on_message(0, Chosen(1, [[b"a"]], 1, 1), 2, out)
    part.end_batch(2, out)
    for key, value, _ in out.changes:
        assert value is not None
        saved[key] = value
    again = Paxos(1, (0, 1, 2), GroupOptions(), random.Random(2))
    again.on_start(saved, 9, Outbox())
    assert (again.promised, again.decided, again.leading) == (Ballot(7, 0), 1, False)
    assert again.instances.take() == [(1, [b"a"])]
    assert again.inspect() == part.inspect() == {"accepted": {"1": [7, 0], "2": [7, 0]}}


def test_who_lost_its_disk_returns_with_all_that_a_ballot_above_its_bound_began_with_and_stays_in_it() -> None:
    saved: dict[bytes, bytes] = {}
    out = Outbox()
    part = Paxos(2, (0, 1, 2), GroupOptions(), random.Random(1))
    part.on_start(saved, 0, out, lost=True)
    part.tick(0, out)
    [question] = [message.question for _, message, _ in out.sends if isinstance(message, Returned)]
    for other in (0, 1):
        part.on_message(other, Highest(question, Ballot(3, 1), 0, 0), 1, out)
    part.on_message(0, Begun(Ballot(4, 0), 1), 2, out)
    part.tick(SECOND, out)
    assert part.amnesiac
    part.on_message(0, Chosen(1, [[b"a"]], 1, 1), 2 * SECOND, out)
    part.tick(3 * SECOND, out)
    assert (part.amnesiac, part.promised, part.role()) == (False, Ballot(4, 0), FOLLOWER)
    for key, value, _ in out.changes:
        saved[key] = value or b""
        if value is None:
            del saved[key]
    again = Paxos(2, (0, 1, 2), GroupOptions(), random.Random(2))
    again.on_start(saved, 9, Outbox())
    assert (again.amnesiac, again.promised) == (False, Ballot(4, 0))


def test_a_leader_tells_what_its_own_ballot_began_with() -> None:
    world, out = group(), Outbox()
    part = world.protocol(1).paxos
    part.election.campaign(world.now, world.engines[1]._out)
    world._run(1)
    world.settle()
    part.on_message(0, Begun(Ballot(1, 0), 7), world.now, out)  # comes late
    part.on_message(2, Returned(1, Ballot(1, 0)), world.now, out)
    assert [message for _, message, _ in out.sends if type(message) is Begun] == [Begun(part.promised, 0)]


def test_what_was_proposed_in_a_batch_waits_already() -> None:
    world = group()
    part = world.protocol(leader(world)).paxos
    assert part.idle
    part.propose(b"")
    assert not part.idle


def test_a_restarted_leader_leads_only_in_a_new_ballot() -> None:
    saved: dict[bytes, bytes] = {}
    for life in range(2):
        out = Outbox()
        part = Paxos(0, (0, 1, 2), GroupOptions(), random.Random(life))
        part.on_start(saved, 0, out)
        saved.update({k: v for k, v, _ in out.changes if v is not None})
    assert part.role() == FOLLOWER
    out.sends.clear()
    part.tick(SECOND, out)
    [(_, doubt, _)] = out.sends
    assert doubt == Doubt(Ballot(1, 0), doubt.question), "it asks, and does not lead"
    part.on_message(2, Agreed(Ballot(1, 0), doubt.question), SECOND, out)
    assert part.promised == Ballot(2, 0)


def test_a_follower_does_not_propose() -> None:
    world = group()
    with pytest.raises(AssertionError, match="only a leader"):
        world.protocol(1).paxos.propose(b"x")


def test_what_no_correct_member_sends_is_the_peers_error() -> None:
    part = Paxos(1, (0, 1, 2), GroupOptions(), random.Random(1))
    part.on_start({}, 0, Outbox())
    wrong = [(0, Heartbeat(Ballot(1, 2), 0, False)), (0, Accept(Ballot(3, 2), 1, [], 0)), (9, Chosen(1, [], 0, 1))]
    for sender, message in wrong:
        with pytest.raises(PeerError):
            part.on_message(sender, message, 1, Outbox())


@pytest.mark.parametrize("replicas", [1, 3, 5, 7])
def test_consensus_takes_two_message_delays_from_the_leaders_proposal(replicas: int) -> None:
    delta = 1_000
    topology = Topology.grid(1, replicas)
    learned: dict[ProcessId, int] = {}

    class Timed(Log):
        def _take(self) -> None:
            super()._take()
            if self.values:
                learned.setdefault(self.self_id, world.now)

    def make(pid: ProcessId, rng: random.Random, disk: object) -> tuple[MulticastProtocol, Application]:
        return Timed(pid, topology, LogOptions(), rng), Application()

    world = World(topology, make, 1, Conditions.exact(delta))
    world.start()
    world.run_for(10_500)
    start = world.now
    world.submit(0, AppMessage(new_message_id(EPOCH_US, 1), (0,), b"", 0))
    world.run_for(10 * delta)
    expected = 2 if replicas > 1 else 0
    assert (learned[0] - start) / delta == expected
    assert max(learned.values()) - start == expected * delta
