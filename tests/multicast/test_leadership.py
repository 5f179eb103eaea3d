"""Who leads a group, with a protocol whose state is a list of words."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest

from multicast.membership import Change, Membership, ViewAsk, ViewIs, change_payload
from multicast.parts.ballots import (
    CANDIDATE,
    ELECT,
    FOLLOWER,
    JOINED,
    LEADER,
    PROMISED,
    REJOINING,
    REMOVED,
    TRANSITIONS,
    Agreed,
    Doubt,
    Heartbeat,
    Joined,
    LeaderIs,
    Nack,
    NewLeader,
    Pulse,
    State,
    Vote,
)
from multicast.parts.election import Election
from multicast.parts.leadership import Leadership
from multicast.parts.options import GroupOptions
from multicast.parts.rejoin import Highest, Returned
from multicast.protocol import Outbox, PeerError, Saved
from multicast.simulation.leftovers import held
from multicast.types import VIEW_BITS, AppMessage, Ballot, ProcessId, Topology

OPTIONS = GroupOptions(heartbeat_us=1_000, election_timeout_us=10_000, retry_us=5_000)
TOPOLOGY = Topology({0: [0, 1, 2], 1: [3]}, {0: [7]})


class Word(AppMessage):
    """An entry of a vote or a state; `message` is what portions are measured by."""

    @property
    def message(self) -> AppMessage:
        return self


class Member:
    """The state of the longest vote of the latest ballot wins."""

    def __init__(self, pid: ProcessId, to_all: bool = False, saved: Saved | None = None):
        self.words: list[str] = []
        self.position = 0
        self.disk: dict[bytes, bytes] = dict(saved.values) if saved else {}
        self.said: list[str] = []
        self.out = Outbox()
        rng = random.Random(pid)
        self.leadership: Leadership[Vote, State] = Leadership(
            self, self, pid, Membership(TOPOLOGY), OPTIONS, rng, to_all
        )
        self.handlers = self.leadership.handlers(Vote, State)
        self.leadership.start(saved or Saved({}), 0, self.out)

    def _entries(self) -> list[Any]:
        return [Word(b"", (), word.encode(), 0) for word in self.words]

    def vote(self) -> Vote:
        return Vote(self.leadership.election.promised, self.leadership.joined, self.position, self._entries())

    def state(self) -> State:
        return State(self.leadership.joined, self.position, self._entries())

    def choose(self, votes: dict[ProcessId, Vote]) -> State:
        best = max(votes.values(), key=lambda vote: (vote.joined, len(vote.entries)))
        return State(self.leadership.election.promised, self.position, best.entries)

    def adopt(self, state: State, now: int, out: Outbox) -> None:
        self.words = [word.payload.decode() for word in state.entries]

    def accepted(self, out: Outbox) -> Joined:
        return Joined(self.leadership.joined)

    def confirmed(self, now: int, out: Outbox) -> None:
        self.said.append("confirmed")

    def ended(self, now: int, out: Outbox) -> None:
        self.said.append("ended")

    def beat(self, out: Outbox) -> None:
        election = self.leadership.election
        out.send(election.others, Heartbeat(self.leadership.joined, self.position, election.resigning))

    def heard(self, heartbeat: Heartbeat, out: Outbox) -> None:
        self.said.append("heard")

    def leaders_changed(self, now: int) -> None:
        self.said.append("leaders changed")


class Group:
    """Three members; nothing moves by itself. cut: links whose messages are lost. lost: what other groups are told."""

    def __init__(self, to_all: bool = False):
        self.now = 0
        self.cut: set[tuple[ProcessId, ProcessId]] = set()
        self.lost: list[tuple[ProcessId, Any]] = []
        self.members = {p: Member(p, to_all) for p in TOPOLOGY.groups[0]}
        self.settle()

    def __getitem__(self, pid: ProcessId) -> Leadership[Vote, State]:
        return self.members[pid].leadership

    def election(self, pid: ProcessId) -> Election[Vote]:
        return self[pid].election

    def settle(self) -> None:
        under_way: deque[tuple[ProcessId, ProcessId, Any]] = deque()
        while True:
            for pid, member in self.members.items():
                for key, value, _ in member.out.changes:
                    member.disk.update({key: value} if value is not None else {})
                under_way += ((pid, to, message) for tos, message, _ in member.out.sends for to in tos)
                member.out.sends.clear()
                member.out.changes.clear()
            if not under_way:
                return
            sender, to, message = under_way.popleft()
            if to not in self.members:
                self.lost.append((to, message))
            elif (sender, to) not in self.cut:
                self.members[to].handlers[type(message)].call(sender, message, self.now, self.members[to].out)

    def live(self, us: int) -> None:
        """Let time pass; messages take none."""
        for now in range(self.now, self.now + us + 1, OPTIONS.heartbeat_us // 4):
            self.now = now
            for pid, member in self.members.items():
                self[pid].tick(self.now, member.out)
            self.settle()

    def campaign(self, pid: ProcessId) -> None:
        self.election(pid).campaign(self.now, self.members[pid].out)
        self.settle()

    def states(self) -> list[str]:
        return [self.election(p).state for p in self.members]


@pytest.mark.parametrize("to_all", [False, True])
def test_the_first_member_leads_first(to_all: bool) -> None:
    group = Group(to_all)
    assert group.states() == [LEADER, FOLLOWER, FOLLOWER]
    assert [group[p].joined for p in range(3)] == [Ballot(1, 0)] * 3


@pytest.mark.parametrize("to_all", [False, True])
def test_a_quorum_is_brought_into_one_state(to_all: bool) -> None:
    group = Group(to_all)
    group.members[1].words, group.members[2].words = ["a"], ["a", "b"]
    group.cut = {(0, p) for p in range(3)} | {(p, 0) for p in range(3)}
    group.campaign(1)
    assert group.states() == [LEADER, LEADER, FOLLOWER]
    assert group.members[1].words == group.members[2].words == ["a", "b"]
    said = {p: [what for what in group.members[p].said if what != "leaders changed"] for p in (1, 2)}
    assert said[1] == said[2][-2:] == ["ended", "confirmed"]


def test_without_a_quorum_of_votes_nobody_leads() -> None:
    group = Group()
    group.cut = {(1, 0), (1, 2)}
    group.campaign(1)
    assert group.states() == [LEADER, CANDIDATE, FOLLOWER]


def test_without_a_quorum_that_has_joined_nobody_leads() -> None:
    group = Group()
    group.cut = {(0, 1), (1, 0)}
    group.members[2].handlers[State] = group.members[2].handlers[Nack]._replace(call=lambda *_: None)
    group.campaign(1)
    assert group.states() == [LEADER, ELECT, PROMISED]


def test_who_is_told_to_all_follows_when_a_quorum_has_joined() -> None:
    group = Group(to_all=True)
    group.cut = {(1, 2), (0, 2), (0, 1), (1, 0)}
    group.election(2).campaign(0, group.members[2].out)
    group.cut |= {(2, 2)}
    group.settle()
    assert group.election(1).state == PROMISED
    group.cut = set()
    group.campaign(2)
    assert group.states() == [FOLLOWER, FOLLOWER, LEADER]


def test_a_candidate_first_fetches_what_a_voter_has_delivered() -> None:
    group = Group()
    group.cut = {(0, 1), (1, 0)}
    group.members[2].position = 7
    group.campaign(1)
    assert group.election(1).state == CANDIDATE and group.members[1].out.catch_ups == [2]
    group.members[1].position = 7
    group[1].installed(0, group.members[1].out)
    group.settle()
    assert group.election(1).state == LEADER


PATIENCE = 2 * OPTIONS.election_timeout_us


def isolate(*pids: ProcessId) -> set[tuple[ProcessId, ProcessId]]:
    return {pair for p in pids for q in TOPOLOGY.groups[0] for pair in ((p, q), (q, p)) if p != q}


def test_who_alone_misses_the_leader_deposes_nobody() -> None:
    group = Group()
    group.cut = {(0, 2)}
    group.live(5 * PATIENCE)
    assert group.states() == [LEADER, FOLLOWER, FOLLOWER]
    assert {group.election(p).promised for p in range(3)} == {Ballot(1, 0)}


@pytest.mark.parametrize("to_all", [False, True])
def test_when_a_quorum_misses_the_leader_another_one_leads(to_all: bool) -> None:
    group = Group(to_all)
    group.live(OPTIONS.heartbeat_us)
    group.cut = isolate(0)
    group.live(2 * PATIENCE)
    assert sorted(group.states()[1:]) == [FOLLOWER, LEADER]


def test_a_quorum_that_agreed_long_ago_does_not_count() -> None:
    group = Group()
    group.live(OPTIONS.heartbeat_us)
    group.cut = isolate(0, 1) | {(0, 2)}
    group.live(PATIENCE)
    question = group.election(2).detector._question
    group.election(2).detector._on_agreed(1, Agreed(Ballot(1, 0), question - 1), group.now, group.members[2].out)
    assert group.election(2).state is FOLLOWER, "an answer to another question"
    group.election(2).detector.heard(group.now)
    group.election(2).detector._on_agreed(1, Agreed(Ballot(1, 0), question), group.now, group.members[2].out)
    assert group.election(2).state is FOLLOWER, "it has heard its leader since"


def test_an_answer_that_comes_when_the_election_is_won_changes_nothing() -> None:
    group = Group()
    group.cut = {(2, 0), (2, 1)}
    group.campaign(2)
    group.live(2 * PATIENCE)
    question = group.election(2).detector._question
    assert group.election(2).state == CANDIDATE and question, "nobody has heard of it"
    group.cut = set()
    group.members[1].handlers[NewLeader].call(2, NewLeader(Ballot(2, 2), 0), group.now, group.members[1].out)
    group.settle()
    assert group.election(2).state == LEADER
    for p in (0, 1):
        group.election(2).detector._on_agreed(p, Agreed(Ballot(1, 0), question), group.now, group.members[2].out)
    assert group.election(2).state == LEADER and group[2].joined == Ballot(2, 2)


def test_a_leader_that_nobody_answers_has_no_majority_and_is_missed_though_it_is_heard() -> None:
    group = Group()
    group.live(OPTIONS.heartbeat_us)
    assert group.election(0).has_majority and not group.election(1).has_majority
    group.cut = {(1, 0), (2, 0)}
    group.live(OPTIONS.election_timeout_us + 2 * OPTIONS.heartbeat_us)
    assert not group.election(0).has_majority
    group.live(2 * PATIENCE)
    assert sorted(group.states()[1:]) == [FOLLOWER, LEADER]
    group.cut = set()
    group.live(PATIENCE)
    assert group.election(0).state is FOLLOWER


def test_the_first_leader_has_a_majority_once_it_was_answered() -> None:
    group = Group()
    assert group.election(0).state is LEADER and not group.election(0).has_majority
    group.live(OPTIONS.heartbeat_us)
    assert group.election(0).has_majority


def test_a_lost_connection_shortens_patience_with_a_leader_that_is_silent() -> None:
    group = Group()
    group.live(OPTIONS.heartbeat_us)
    group.cut = isolate(0)
    for p in (1, 2):
        group.election(p).on_connected(0, False, group.now)
    group.live(OPTIONS.election_timeout_us // 2)
    assert sorted(group.states()[1:]) == [FOLLOWER, LEADER]


def test_a_lost_connection_is_no_evidence() -> None:
    """Its leader is heard all the while, by other ways, or by a connection that came back at once."""
    group = Group()
    group.live(OPTIONS.heartbeat_us)
    for p in (1, 2):
        group.election(p).on_connected(0, False, group.now)
    group.live(5 * PATIENCE)
    assert group.states() == [LEADER, FOLLOWER, FOLLOWER]


def test_who_was_never_heard_may_be_about_to_start() -> None:
    group = Group()
    group.election(1).on_connected(0, False, 0)
    group.cut = isolate(0)
    group.live(OPTIONS.election_timeout_us // 2)
    assert group.states() == [LEADER, FOLLOWER, FOLLOWER]


def test_who_begins_to_lead_tells_everybody_and_they_ask_again() -> None:
    group = Group()
    group.cut = isolate(0)
    group.campaign(1)
    assert group.members[1].said.count("leaders changed") == group.members[2].said.count("leaders changed") == 1
    assert (3, LeaderIs(Ballot(2, 1))) in group.lost
    group[2].learn_leader(1, Ballot(1, 3), group.now, Outbox(), 3)
    group[2].learn_leader(0, Ballot(2, 1), group.now, Outbox(), 1)
    assert group.members[2].said.count("leaders changed") == 1, "that was known"


def test_a_lower_ballot_is_refused_and_its_leader_stands_above() -> None:
    group = Group()
    group.cut = {(2, 0), (0, 2)}
    for _ in range(3):
        group.campaign(2)
    assert group.states() == [LEADER, FOLLOWER, LEADER]
    group.cut = {(2, 0), (0, 2), (2, 1)}
    group.campaign(0)
    assert group.election(0).state == CANDIDATE and group.election(1).promised == Ballot(4, 2)
    group.now = 20_000
    group[0].tick(group.now, group.members[0].out)
    group.settle()
    assert group[0].joined == group[1].joined == Ballot(5, 0) and group.election(0).state == LEADER


def test_a_leader_that_knows_of_a_higher_ballot_is_not_reassured_by_its_own_messages() -> None:
    group = Group()
    group.members[0].handlers[Nack].call(2, Nack(Ballot(4, 2)), group.now, group.members[0].out)
    waits = group.election(0).detector._timer.deadline
    group[0].hear(0, Ballot(1, 0), waits - 1, group.members[0].out)
    assert group.election(0).detector._timer.deadline == waits


def test_a_leader_stands_above_all_for_which_one_without_memory_may_have_voted() -> None:
    """At once: ballot by ballot it would take as many elections."""
    group = Group()
    group.election(0).on_returned(2, Returned(7, Ballot(9, 1)), group.now, group.members[0].out)
    assert group.election(0).promised == Ballot(10, 0)


def test_a_promised_ballot_gets_no_second_vote() -> None:
    group = Group()
    group.campaign(2)
    out = group.members[1].out
    group.members[1].handlers[NewLeader].call(2, NewLeader(Ballot(2, 2), 0), group.now, out)
    assert out.sends == [((2,), Nack(Ballot(2, 2)), False)]
    assert group.states() == [FOLLOWER, FOLLOWER, LEADER]


def test_a_heartbeat_of_a_lower_ballot_is_refused_and_reassures_nobody() -> None:
    group = Group()
    group.cut = {(2, 0), (0, 2), (1, 2)}
    group.campaign(2)
    assert group.election(1).promised == Ballot(2, 2) and group[1].joined == Ballot(1, 0)
    waits, out = group.election(1).detector._timer.deadline, group.members[1].out
    group.now = OPTIONS.heartbeat_us
    group.members[1].handlers[Heartbeat].call(0, Heartbeat(Ballot(1, 0), 0, False), group.now, out)
    assert ((0,), Nack(Ballot(2, 2)), False) in out.sends
    assert group.election(1).detector._timer.deadline == waits


def test_who_lost_its_disk_hears_of_a_promised_ballot_that_has_not_begun() -> None:
    group = Group()
    group.cut = {(2, 0), (0, 2), (1, 2)}
    group.campaign(2)
    out = group.members[1].out
    group.election(1).on_returned(0, Returned(7, None), group.now, out)
    [answer] = [message for _, message, _ in out.sends if isinstance(message, Highest)]
    assert (group[1].joined, answer.ballot) == (Ballot(1, 0), Ballot(2, 2))


def test_who_missed_an_election_gets_the_present_state_for_an_empty_vote() -> None:
    group = Group()
    group.cut = {(p, 2) for p in range(2)} | {(2, p) for p in range(2)}
    group.campaign(1)
    group.members[1].words = ["late"]
    group.members[2].words = ["its own"]
    group.cut = {(2, 1)}
    group[1].tick(group.now, group.members[1].out)
    group.settle()
    assert group.election(2).state == PROMISED
    group.cut = set()
    group[2].link_reset(1, group.now, group.members[2].out)
    group[1].link_reset(2, group.now, group.members[1].out)
    group.now += OPTIONS.heartbeat_us // 10
    group[1].tick(group.now, group.members[1].out)
    group.settle()
    assert group.election(2).state == FOLLOWER and group.members[2].words == ["late"]
    assert group[1].joined == Ballot(2, 1), "no other election was needed"
    assert group[2].leaders[0] == Ballot(2, 1), "nobody else tells it any more"


def test_who_missed_two_elections_asks_for_each_state_at_once() -> None:
    member = Member(2)
    for ballot in (Ballot(2, 1), Ballot(3, 0)):
        member.handlers[Heartbeat].call(ballot.leader, Heartbeat(ballot, 0, False), 1, member.out)
    assert [m.ballot for _, m, _ in member.out.sends if isinstance(m, Vote)] == [Ballot(2, 1), Ballot(3, 0)]


def test_who_lost_its_disk_fetches_what_its_leader_tells_of_while_it_waits() -> None:
    member = Member(2, saved=Saved({}, first=False, lost=True))
    member.handlers[Heartbeat].call(0, Heartbeat(Ballot(1, 0), 5, False), 1, member.out)
    assert member.out.catch_ups == [0]


def _returning(reach: int) -> tuple[Member, int]:
    """Who has lost its disk, and holds the state of a ballot that it may join when it has deliveries up to `reach`; its
    question."""
    member = Member(2, saved=Saved({}, first=False, lost=True))
    member.leadership.tick(1, member.out)
    [question] = [m.question for _, m, _ in member.out.sends if isinstance(m, Returned)]
    for p in (0, 1):
        member.handlers[Highest].call(p, Highest(question, Ballot(1, 0), 0, 0), 1, member.out)
    member.handlers[State].call(1, State(Ballot(5, 1), reach, []), 1, member.out)
    assert member.leadership.election.state == REJOINING
    member.out.sends.clear()
    member.out.catch_ups.clear()
    return member, question


def test_who_has_its_state_and_lacks_deliveries_only_fetches_them() -> None:
    """Each time that it asks for a state, its leader sends all of it."""
    member, _ = _returning(reach=3)
    member.leadership.tick(100 * OPTIONS.retry_us, member.out)
    assert member.out.catch_ups and not member.out.sends
    member.position = 3
    member.leadership.installed(100 * OPTIONS.retry_us, member.out)
    assert member.leadership.joined == Ballot(5, 1) and member.leadership.election.state == FOLLOWER


def test_a_state_that_comes_once_more_is_not_kept_in_part_by_who_joins_meanwhile() -> None:
    """Its leader answers each question with its state, and who has joined does not take the rest of it."""
    member, _ = _returning(reach=3)
    portions = [State(Ballot(5, 1), 3, [Word(b"", (), b"a", 0)], number=number, count=2) for number in (0, 1)]
    member.handlers[State].call(1, portions[0], 2, member.out)
    assert held(member.leadership.election, {"Assembly": ("_lists",)})
    member.position = 3
    member.leadership.installed(3, member.out)
    member.handlers[State].call(1, portions[1], 4, member.out)
    assert member.leadership.election.state == FOLLOWER
    assert held(member.leadership.election, {"Assembly": ("_lists",)}) == {}


def test_who_may_not_join_its_state_any_more_asks_for_another() -> None:
    """A member was added since, and had promised a higher ballot when it was asked."""
    member, question = _returning(reach=1)
    changed(member, Change(0, True, 7))
    member.handlers[Highest].call(7, Highest(question, Ballot(6, 0), 0, 0), 2, member.out)
    member.leadership.installed(2, member.out)
    assert member.leadership.election.state == REJOINING
    member.leadership.tick(100 * OPTIONS.retry_us, member.out)
    assert [m.bound for _, m, _ in member.out.sends if isinstance(m, Returned)] == [Ballot(6, 0)]


@pytest.mark.parametrize("refused", [[1], [1, 2, 0, 1]])
def test_a_state_of_which_something_was_refused_is_not_taken_over(refused: list[int]) -> None:
    """A member was added while it came, or while it came twice, and answers right before the last portion."""
    member, question = _returning(reach=9)
    words = [Word(b"", (), word, 0) for word in (b"a", b"b", b"c")]
    portions = [State(Ballot(5, 1), 1, [word], number=number, count=3) for number, word in enumerate(words)]
    member.handlers[State].call(1, portions[0], 2, member.out)
    changed(member, Change(0, True, 7))
    for number in refused:
        member.handlers[State].call(1, portions[number], 3, member.out)
    member.handlers[Highest].call(7, Highest(question, Ballot(4, 0), 0, 0), 4, member.out)
    member.handlers[State].call(1, portions[2], 5, member.out)
    assert member.leadership.election.state == REJOINING, member.words
    for portion in portions:
        member.handlers[State].call(1, portion, 6, member.out)
    assert member.leadership.election.state == FOLLOWER and member.words == ["a", "b", "c"]


def test_a_restarted_leader_waits_or_stands_again() -> None:
    group = Group()
    again = Member(0, saved=Saved(group.members[0].disk, first=False))
    assert again.leadership.election.state == PROMISED and again.leadership.role() == "recovering"
    again.leadership.tick(OPTIONS.election_timeout_us, again.out)
    assert [type(message) for _, message, _ in again.out.sends] == [Doubt]
    doubt, again.out.sends = again.out.sends[0][1], []
    group.members[1].handlers[Doubt].call(0, doubt, OPTIONS.election_timeout_us, group.members[1].out)
    [(_, agreed, _)] = group.members[1].out.sends
    assert isinstance(agreed, Agreed), "whom it followed does not lead if it asks"
    again.handlers[Agreed].call(1, agreed, OPTIONS.election_timeout_us, again.out)
    assert again.leadership.election.promised == Ballot(2, 0)
    assert [type(message) for _, message, _ in again.out.sends] == [Vote, NewLeader]


def test_who_lost_its_disk_promises_nothing() -> None:
    member = Member(1, saved=Saved({}, first=False, lost=True))
    member.handlers[NewLeader].call(2, NewLeader(Ballot(9, 2), 0), 0, member.out)
    member.leadership.tick(100 * OPTIONS.election_timeout_us, member.out)
    assert member.leadership.election.state == REJOINING
    assert not any(isinstance(message, Vote | NewLeader) for _, message, _ in member.out.sends)


@pytest.mark.parametrize(
    "message",
    [
        NewLeader(Ballot(9, 2), 0), Heartbeat(Ballot(9, 2), 0, False), State(Ballot(9, 2), 0, []),
        Pulse(Ballot(9, 2), True),
    ],
)  # fmt: skip
def test_nobody_speaks_for_another_leader(message: Any) -> None:
    group = Group()
    with pytest.raises(PeerError, match="somebody else's ballot"):
        group.members[0].handlers[type(message)].call(1, message, 0, Outbox())


def test_what_the_table_does_not_have_does_not_happen() -> None:
    everything = {PROMISED, CANDIDATE, ELECT, JOINED, FOLLOWER, LEADER, REJOINING, REMOVED}
    assert {state for row in TRANSITIONS.values() for pair in row.items() for state in pair} == everything
    assert [what for what, row in TRANSITIONS.items() if REJOINING in row] == ["leave", "promise", "return"]
    group = Group()
    with pytest.raises(AssertionError, match="process 1 is follower: it cannot step down"):
        group.election(1).step_down(0)


def changed(member: Member, *changes: Change) -> None:
    for change in changes:
        member.position += 1
        message = AppMessage(bytes([member.position]) * 16, (0,), change_payload(change), 0)
        member.leadership.delivered(message, member.out)


def test_who_lost_its_disk_does_not_wait_for_one_who_was_removed() -> None:
    member = Member(2, saved=Saved({}, lost=True))
    changed(member, Change(0, True, 7), Change(1, False, 7))
    assert 7 in member.leadership.election.members, "it may still count"
    beat = Heartbeat(Ballot((2 << VIEW_BITS) + 1, 0), 2, False)
    member.handlers[Heartbeat].call(0, beat, 1, member.out)
    assert member.leadership.election.state == REJOINING and member.leadership.election.members == (0, 1, 2)


def test_of_a_view_that_has_begun_also_those_tell_who_have_made_another_one_since() -> None:
    """That one may not begin before who lost its disk is back, and it waits for a removed one unless it is told."""
    member, other = Member(2, saved=Saved({}, lost=True)), Member(1)
    for one in (member, other):
        changed(one, Change(0, True, 7), Change(1, False, 7))
    other.handlers[ViewAsk].call(2, ViewAsk(), 1, other.out)
    assert [view.number for _, view, _ in other.out.sends if type(view) is ViewIs] == [1]
    other.handlers[ViewIs].call(0, ViewIs(2, (0, 1, 2), {}), 1, other.out)
    changed(other, Change(2, False, 0))
    other.out.sends.clear()
    other.handlers[ViewAsk].call(2, ViewAsk(), 1, other.out)
    [view] = [view for _, view, _ in other.out.sends if type(view) is ViewIs]
    assert view.number == 2
    member.handlers[ViewIs].call(1, view, 1, member.out)
    assert member.leadership.election.members == (0, 1, 2)
    again = Member(2, saved=Saved({key: value for key, value, _ in member.out.changes}, 2, True, True))
    assert again.leadership.election.members == (0, 1, 2)


def test_a_leader_does_not_stand_again_for_who_was_removed_but_tells_it() -> None:
    """It has lost its disk, and would never be a member again."""
    group = Group()
    for member in group.members.values():
        changed(member, Change(0, False, 2))
    group.live(OPTIONS.heartbeat_us)
    leader, promised = group.members[0], group.election(0).promised
    assert promised.view == 1 and group.election(0).state == LEADER
    leader.handlers[Returned].call(2, Returned(9, promised), group.now, leader.out)
    assert group.election(0).promised == promised and group.election(0).state == LEADER
    assert [(to, message.members) for to, message, _ in leader.out.sends] == [((2,), (0, 1))]


def test_who_was_removed_learns_it_by_any_later_view() -> None:
    member = Member(2, saved=Saved({}, lost=True))
    changed(member, Change(0, False, 2), Change(1, True, 7))
    member.handlers[ViewIs].call(0, ViewIs(2, (0, 1, 7), {}), 1, member.out)
    assert member.leadership.election.state == REMOVED


def test_who_was_removed_takes_no_view_for_begun_that_it_was_not_told() -> None:
    """It tells others, and with its word one led alone in a view of one."""
    member = Member(2)
    changed(member, Change(0, False, 2), Change(1, False, 1))
    member.handlers[ViewIs].call(0, ViewIs(1, (0, 1), {}), 1, member.out)
    assert member.leadership.election.state == REMOVED
    for number, known in ((1, 1), (2, 2), (3, 3)):
        if number > 1:
            member.handlers[ViewIs].call(0, ViewIs(number, (0, 3)[: number - 1], {}), 1, member.out)
        again = Member(2, saved=Saved({key: value for key, value, _ in member.out.changes}, 2, True))
        for one in (member, again):
            one.out.sends.clear()
            one.handlers[ViewAsk].call(1, ViewAsk(), 1, one.out)
            assert [view.number for _, view, _ in one.out.sends if type(view) is ViewIs] == [known]


def test_who_lacks_a_view_of_another_group_asks_again_though_nothing_more_comes() -> None:
    """Its question, or the answer, was lost; or the leader did not know yet that the view has begun, and died."""
    member, ballot = Member(3), Ballot((1 << VIEW_BITS) + 1, 7)
    for now, expected in ((0, [(7,)]), (OPTIONS.retry_us, [(0, 1, 2, 7)]), (2 * OPTIONS.retry_us, [(0, 1, 2, 7)])):
        if now == 0:
            member.handlers[LeaderIs].call(7, LeaderIs(ballot), now, member.out)
        member.leadership.tick(now, member.out)
        assert [tuple(sorted(to)) for to, message, _ in member.out.sends if type(message) is ViewAsk] == expected
        member.out.sends.clear()
    member.handlers[ViewIs].call(1, ViewIs(1, (0, 2, 7), {}), 3 * OPTIONS.retry_us, member.out)
    member.leadership.tick(3 * OPTIONS.retry_us, member.out)
    assert not [message for _, message, _ in member.out.sends if type(message) is ViewAsk]


def test_who_is_to_be_added_was_not_removed() -> None:
    member = Member(7)
    member.handlers[ViewIs].call(0, ViewIs(0, (0, 1, 2), {}), 1, member.out)
    assert member.leadership.election.state == REJOINING


def test_who_is_new_promises_though_it_has_nothing_and_keeps_to_it() -> None:
    """A view may begin without it: then the group may need it as soon as another one is lost."""
    member, ballot = Member(7), Ballot((1 << VIEW_BITS) + 2, 0)
    member.words = ["heard"]
    member.handlers[NewLeader].call(0, NewLeader(ballot, 1), 1, member.out)
    assert member.out.catch_ups == [0] and member.leadership.election.promised < ballot, "it does not know the view"
    member.position = 1
    message = AppMessage(bytes(16), (0,), change_payload(Change(0, True, 7)), 0)
    member.leadership.delivered(message, member.out)
    member.leadership.tick(2, member.out)
    [(to, vote, durable)] = [sent for sent in member.out.sends if isinstance(sent[1], Vote)]
    assert (to, durable, vote.ballot, vote.position, vote.entries) == ((0,), True, ballot, 1, [])
    member.handlers[Returned].call(2, Returned(5, None), 3, member.out)
    assert [m.ballot for _, m, _ in member.out.sends if isinstance(m, Highest)] == [ballot]

    again = Member(7, saved=Saved({key: value for key, value, _ in member.out.changes}, 1, False))
    again.handlers[State].call(1, State(Ballot(ballot.number - 1, 1), 0, []), 4, again.out)
    assert again.leadership.election.state == REJOINING, "it has promised a higher one"
    again.handlers[State].call(0, State(ballot, 0, []), 5, again.out)
    assert again.leadership.joined == ballot


def test_who_is_new_gives_up_a_state_that_it_holds_when_it_promises_a_higher_ballot() -> None:
    """Else it acknowledged in a ballot whose end it has vouched for."""
    member, ballot = Member(7), Ballot((1 << VIEW_BITS) + 2, 0)
    changed(member, Change(0, True, 7))
    member.handlers[State].call(0, State(ballot, 5, []), 1, member.out)
    member.handlers[NewLeader].call(1, NewLeader(Ballot(ballot.number + 1, 1), 1), 2, member.out)
    member.position = 5
    member.leadership.installed(3, member.out)
    assert member.leadership.election.state == REJOINING and member.leadership.joined < ballot


def test_what_has_come_in_part_goes_with_its_ballot() -> None:
    member = Member(2)
    member.handlers[NewLeader].call(1, NewLeader(Ballot(2, 1), 0), 1, member.out)
    member.handlers[State].call(1, State(Ballot(2, 1), 0, [Word(b"", (), b"a", 0)], number=0, count=2), 1, member.out)
    assert held(member.leadership.election, {"Assembly": ("_lists",)})
    member.handlers[NewLeader].call(0, NewLeader(Ballot(3, 0), 0), 2, member.out)
    assert held(member.leadership.election, {"Assembly": ("_lists",)}) == {}, "its leader was deposed, and is not heard"


def test_what_one_who_is_removed_has_voted_in_part_goes_with_it() -> None:
    group = Group()
    group.election(0).campaign(1, group.members[0].out)
    leader = group.members[0]
    part = Vote(group.election(0).promised, Ballot(1, 0), 0, [Word(b"", (), b"a", 0)], number=0, count=2)
    changed(leader, Change(0, False, 2))
    leader.handlers[Vote].call(2, part, 1, leader.out)
    assert held(leader.leadership.election, {"Assembly": ("_lists",)}), "its promise may be needed"
    leader.leadership._view_begun(1, leader.out)
    leader.handlers[Vote].call(2, part, 1, leader.out)
    assert held(leader.leadership.election, {"Assembly": ("_lists",)}) == {}
