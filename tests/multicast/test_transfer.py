"""A member that comes too late takes over a peer's state, once the peer's deliveries are here."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from multicast.parts.deadlines import Deadlines
from multicast.parts.transfer import StateAsk, StateTransfer
from multicast.protocol import Outbox

PERIOD = 100


class State(msgspec.Struct, array_like=True):
    position: int
    items: list[int]
    number: int
    count: int


class Member:
    """Process 0 of three."""

    def __init__(self) -> None:
        self.position, self.needed = 0, True
        self.adopted: list[list[int]] = []
        self.given = [State(7, [1], 0, 2), State(7, [2], 1, 2)]
        self.deadlines = Deadlines({})
        self.transfer = StateTransfer(
            0, (0, 1, 2), PERIOD, self.deadlines, State, position=lambda: self.position,
            is_needed=lambda: self.needed, give=lambda: self.given, adopt=self.adopt,
        )  # fmt: skip

    def adopt(self, state: State, now: int, out: Outbox) -> None:
        self.needed = False
        self.adopted.append(state.items)

    def hear(self, sender: int, message: Any, now: int = 0) -> Outbox:
        out = Outbox()
        self.transfer.handlers[type(message)].call(sender, message, now, out)
        return out


@pytest.fixture
def member() -> Member:
    return Member()


def asked(out: Outbox) -> list[int]:
    return [to[0] for to, message, _ in out.sends if type(message) is StateAsk]


def test_one_member_after_the_other_is_asked_and_not_more_often_than_once_a_period(member):
    out = Outbox()
    member.transfer.ask(0, out)
    member.transfer.ask(PERIOD - 1, out)
    member.deadlines.run(PERIOD, out)
    assert sorted(asked(out)) == [1, 2]


def test_who_is_asked_for_a_state_does_not_depend_on_who_is_asked_for_deliveries(member):
    out = Outbox()
    for period in range(2):
        member.transfer.next_peer()
        member.deadlines.run(period * PERIOD, out)
        member.transfer.ask(period * PERIOD, out)
    assert sorted(asked(out)) == [1, 2]


def test_nobody_else_is_asked_while_a_state_comes_and_they_are_asked_more_seldom_after_that(member):
    """On a slow link ever more states would be under way, and before none of them what it waits for."""
    member.transfer.ask(0, Outbox())
    out = Outbox()
    for number in range(20):
        member.hear(1, State(7, [number], number, 20), now=number * PERIOD)
        member.deadlines.run(number * PERIOD + PERIOD - 1, out)
    assert asked(out) == []  # all is here but the deliveries
    for period in range(20, 60):
        member.deadlines.run(period * PERIOD, out)
    assert sorted(set(asked(out))) == [1, 2]
    assert 4 <= len(asked(out)) <= 8
    member.transfer.forget(1)  # a link was reset
    lost = Outbox()
    for period in range(60, 62):
        member.deadlines.run(period * PERIOD, lost)
    assert asked(lost)


def test_after_however_long_an_outage_somebody_is_asked_soon(member):
    member.transfer.ask(0, Outbox())
    for period in range(1, 1_000):
        member.deadlines.run(period * PERIOD, Outbox())
    out = Outbox()
    for period in range(1_000, 1_016):
        member.deadlines.run(period * PERIOD, out)
    assert len(asked(out)) == 1


def test_nobody_is_asked_once_nothing_is_lacked(member):
    member.transfer.ask(0, Outbox())
    member.needed = False
    out = Outbox()
    member.deadlines.run(PERIOD, out)
    assert asked(out) == []
    assert member.deadlines.wake_at is None


def test_a_state_is_adopted_when_all_its_portions_and_the_deliveries_before_it_are_here(member):
    first, second = member.given
    member.hear(1, first)
    out = member.hear(1, second)
    assert out.catch_ups == [1]
    assert member.adopted == []
    member.position = 7
    member.transfer.adopt_if_due(1, Outbox())
    member.transfer.adopt_if_due(2, Outbox())
    assert member.adopted == [[1, 2]]


def test_a_state_that_still_waits_is_asked_for_again_elsewhere(member):
    for portion in member.given:
        member.hear(1, portion)
    member.needed = False
    out = Outbox()
    member.deadlines.run(PERIOD, out)
    assert asked(out) != []
    assert out.catch_ups == [1]


def test_portions_of_two_lives_do_not_make_one_state(member):
    member.position = 7
    member.hear(1, member.given[0])
    member.transfer.forget(1)
    member.hear(1, member.given[1])
    assert member.adopted == []


def test_who_is_asked_gives_all_portions_or_nothing(member):
    assert [message for _, message, _ in member.hear(2, StateAsk()).sends] == member.given
    member.given = []
    assert member.hear(2, StateAsk()).sends == []
