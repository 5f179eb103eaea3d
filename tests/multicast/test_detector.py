"""Whether a leader is missed: pulses and their echoes, and the question that is asked before anybody campaigns."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from multicast.membership import Views
from multicast.parts.ballots import FOLLOWER, LEADER, Agreed, Doubt, Echo, Nack, Pulse
from multicast.parts.deadlines import Deadlines
from multicast.parts.detector import FailureDetector
from multicast.parts.options import GroupOptions
from multicast.protocol import Outbox
from multicast.types import Ballot

FIRST, LATER = Ballot(1, 0), Ballot(2, 1)


class Member:
    """Process `pid` of three, of which process 0 leads ballot 1; `campaigns` are the instants at which it did so."""

    def __init__(self, pid: int, **options: Any):
        self.campaigns: list[int] = []
        self.election: Any = SimpleNamespace(
            views=Views((0, 1, 2)), members=(0, 1, 2), others=tuple({0, 1, 2} - {pid}),
            state=FOLLOWER if pid else LEADER, promised=FIRST, highest=FIRST, is_member=True, promises=True,
            knows_view=lambda *_: True, campaign=lambda now, _: self.campaigns.append(now),
            begun=lambda *_: None, tell_removed=lambda *_: None,
        )  # fmt: skip
        self.deadlines = Deadlines({})
        given = GroupOptions(**{"heartbeat_us": 10, "election_timeout_us": 100, **options})
        self.out = Outbox()
        self.deadlines.add("beat", lambda now, out: None)
        self.detector = FailureDetector(self.election, pid, given, random.Random(1), self.deadlines)

    def hear(self, sender: int, message: Any, now: int) -> list[Any]:
        """What it sends in answer."""
        self.detector.handlers[type(message)].call(sender, message, now, self.out)
        return self.sent()

    def pass_time(self, now: int) -> list[Any]:
        """What it sends because of its timer."""
        self.deadlines.run(now, self.out)
        return self.sent()

    def sent(self) -> list[Any]:
        sent = [message for _, message, _ in self.out.sends]
        self.out.sends.clear()
        return sent


def test_who_hears_nothing_asks_first_and_campaigns_when_a_quorum_agrees() -> None:
    member = Member(1)
    member.detector.wait(0)
    assert member.pass_time(99) == []
    [doubt] = member.pass_time(200)
    assert doubt == Doubt(FIRST, 201) and member.campaigns == []
    member.hear(2, Agreed(FIRST, doubt.question), 201)
    assert member.campaigns == [201]


def test_an_answer_to_a_question_that_the_leader_has_settled_meanwhile_is_void() -> None:
    member = Member(1)
    member.detector.wait(0)
    [doubt] = member.pass_time(200)
    assert member.hear(0, Pulse(FIRST, True), 201) == [Echo(FIRST)]
    member.hear(2, Agreed(FIRST, doubt.question), 202)
    assert member.campaigns == []


def test_without_a_question_first_it_campaigns_at_once() -> None:
    member = Member(1, ask_first=False)
    member.detector.wait(0)
    assert member.pass_time(200) == [] and member.campaigns == [200]


def test_a_member_agrees_only_if_it_misses_its_leader_too() -> None:
    member = Member(1)
    member.detector.wait(0)
    member.hear(0, Pulse(FIRST, True), 50)
    assert member.hear(2, Doubt(FIRST, 7), 100) == []
    assert member.hear(2, Doubt(FIRST, 7), 151) == [Agreed(FIRST, 7)]


def test_who_should_not_lead_itself_agrees_that_a_leader_is_relieved_that_asks_for_it() -> None:
    """Else one whose clock is right asks for ever in vain where most are wrong."""
    member = Member(1)
    member.detector.on_clock(True, 0)
    member.detector.wait(0)
    member.detector.heard(50, True)
    assert member.hear(2, Doubt(FIRST, 7), 60) == [Agreed(FIRST, 7)]
    member.hear(0, Pulse(FIRST, True), 70)
    assert member.hear(2, Doubt(FIRST, 7), 80) == [Agreed(FIRST, 7)], "a pulse does not take that back"
    member.detector.heard(90, False)
    assert member.hear(2, Doubt(FIRST, 7), 100) == []
    member.detector.heard(110, True)
    member.election.promised = member.election.highest = LATER
    assert member.hear(0, Doubt(LATER, 8), 120) == [], "another one leads"


def test_who_asks_in_a_lower_ballot_is_told_the_higher_one() -> None:
    member = Member(2)
    member.election.promised = member.election.highest = LATER
    member.detector.wait(0)
    assert member.hear(1, Pulse(LATER, True), 50) == [Echo(LATER)]
    assert member.hear(0, Doubt(FIRST, 7), 60) == [Nack(LATER)]


def test_a_leader_whose_pulses_nobody_answers_says_so_and_is_missed_though_it_speaks() -> None:
    leader, member = Member(0), Member(1)
    leader.detector.begin(has_majority=True)
    member.detector.wait(0)
    assert all(leader.detector.pulse(0, leader.out) for _ in range(10)) and leader.detector.has_majority
    assert not leader.detector.pulse(0, leader.out) and not leader.detector.has_majority
    said = leader.sent()[-1]
    assert said == Pulse(FIRST, False)
    member.hear(0, said, 90)
    member.detector.heard(190)
    assert member.pass_time(300) == [Doubt(FIRST, 301)]


def test_a_leader_has_its_majority_again_with_the_echo_of_one_of_two() -> None:
    leader = Member(0)
    leader.detector.begin(has_majority=False)
    leader.hear(1, Echo(LATER), 5)
    assert not leader.detector.has_majority
    leader.hear(1, Echo(FIRST), 5)
    assert leader.detector.has_majority
    assert leader.detector.answering(50) == {0, 1}
    leader.detector.on_connected(1, False, 50)
    assert leader.detector.answering(50) == {0}


def test_a_leader_whose_disk_hangs_is_not_obeyed_however_many_answer() -> None:
    leader = Member(0)
    leader.detector.begin(has_majority=True)
    leader.detector.on_disk(True, 0)
    assert not leader.detector.pulse(0, leader.out)
    leader.hear(1, Echo(FIRST), 5)
    assert not leader.detector.has_majority
    leader.detector.on_disk(False, 10)
    leader.hear(1, Echo(FIRST), 15)
    assert leader.detector.has_majority


def test_that_a_leader_asked_to_be_relieved_does_not_count_against_the_next_one() -> None:
    member = Member(2)
    member.detector.wait(0)
    member.detector.heard(10, resigning=True)
    assert member.hear(1, Doubt(FIRST, 7), 11) == [Agreed(FIRST, 7)]
    member.election.promised = member.election.highest = LATER
    member.detector.wait(20)
    member.detector.heard(30)
    assert member.hear(0, Doubt(LATER, 8), 31) == []


def test_a_leader_that_should_not_lead_agrees_that_it_is_missed() -> None:
    """With one other member down, who asks has no quorum without it."""
    leader = Member(0)
    leader.detector.begin(True)
    assert leader.hear(1, Doubt(FIRST, 7), 10) == []
    leader.detector.on_clock(True, 20)
    assert leader.hear(1, Doubt(FIRST, 8), 30) == [Agreed(FIRST, 8)]


def test_a_leader_that_has_heard_of_a_higher_ballot_asks_nobody() -> None:
    leader = Member(0)
    leader.detector.wait(0)
    assert leader.pass_time(300) == [] and leader.campaigns == []
    leader.election.highest = LATER
    leader.detector.wait(300)
    leader.pass_time(600)
    assert leader.campaigns == [600]


def test_whose_disk_hangs_does_not_stand_though_others_agree() -> None:
    """What it asked before it hung, say: nothing that it promised would be on disk."""
    member = Member(1)
    member.detector.wait(0)
    [doubt] = member.pass_time(200)
    member.detector.disk_hangs = True
    member.hear(2, Agreed(FIRST, doubt.question), 201)
    assert member.campaigns == []
