"""What a member's log amounts to when it goes on from a peer's state, which is further (parts.group_log)."""

from __future__ import annotations

from multicast.parts.delivered import DeliveredLog
from multicast.parts.group_log import GroupLog, SavedEntry, State
from multicast.parts.window import Window
from multicast.protocol import Outbox
from multicast.types import AppMessage, Ballot, Timestamp, Topology, new_message_id
from tests.multicast.lockstep import START_US

WINDOW_US = 1_000_000
FIRST, LATER = Timestamp(START_US + 1, 0), Timestamp(START_US + 10 * WINDOW_US, 0)


def installed(window_us: int = 0) -> tuple[GroupLog, AppMessage]:
    """A member that has a delivery from a peer's journal, before its Assign."""
    log = GroupLog(DeliveredLog(0, Topology.grid(1, 3), 1, window_us), False, Window(window_us))
    message = AppMessage(new_message_id(START_US, 1), (0,), b"x", 0)
    log.delivered(log.install(message, FIRST, FIRST, Outbox()), Outbox())
    return log, message


def pending(message: AppMessage, local: Timestamp, final: Timestamp | None = None) -> State:
    """Of a peer that has delivered nothing, and has this message in its log."""
    return State(0, 5, local.time, Ballot(1, 0), [], [SavedEntry(message, local, final, True)], 0, 1)


def test_what_waits_in_the_log_of_a_peer_that_has_delivered_less_is_in_the_own_log() -> None:
    """Else this member would wait for its Assign for ever, and lead nothing."""
    log, message = installed()
    assert log.is_behind
    log.adopt(pending(message, FIRST), Outbox())
    assert not log.is_behind and log.entries[FIRST].logged


def test_a_late_copy_in_a_peers_log_is_taken_over_though_the_first_one_is_known_as_delivered() -> None:
    log, message = installed(WINDOW_US)
    added = log.adopt(pending(message, LATER), Outbox())
    assert [entry.local for entry in added] == [LATER] and log.latest(message.id) is added[0]


def test_what_was_delivered_and_has_left_the_own_log_does_not_come_back_with_a_peers() -> None:
    log, message = installed()
    log.adopt(pending(message, FIRST), Outbox())
    log.drop([message.id], Outbox())
    assert not log.entries
    assert log.adopt(pending(message, FIRST), Outbox()) == [] and not log.entries
