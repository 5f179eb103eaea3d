"""Who has been removed from its group."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from multicast.batch import Batch
from multicast.membership import Change, ViewIs
from multicast.parts.ballots import REMOVED, State
from multicast.snapshot import Snapshots
from multicast.types import VIEW_BITS, ZERO, Ballot
from multicast.wire import SnapshotRequest
from tests.multicast.test_leadership import Member, changed


def test_who_is_told_that_an_earlier_view_has_removed_it_tells_its_host() -> None:
    member = Member(2)
    changed(member, Change(0, False, 2), Change(1, False, 1))
    known = member.leadership.membership.processes
    member.handlers[ViewIs].call(0, ViewIs(1, (0, 1), {}), 1, member.out)
    assert member.leadership.election.state == REMOVED
    assert member.leadership.membership.processes is not known


def test_who_was_removed_confirms_no_ballot() -> None:
    """Nobody counts on its word, and it promises nothing any more."""
    member = Member(2)
    assert member.leadership.is_current(member.leadership.joined)
    changed(member, Change(0, False, 2))
    member.handlers[ViewIs].call(0, ViewIs(1, (0, 1), {}), 1, member.out)
    assert member.leadership.election.state == REMOVED
    assert member.leadership.joined == member.leadership.election.promised
    assert not member.leadership.is_current(member.leadership.joined)


def test_who_is_removed_while_it_waits_for_deliveries_gives_up_the_state_that_it_holds() -> None:
    """Its leader had delivered the change, and did not lead to the next view yet."""
    member, ballot = Member(7), Ballot((1 << VIEW_BITS) + 2, 0)
    changed(member, Change(0, True, 7))
    member.handlers[State].call(0, State(ballot, 3, []), 1, member.out)
    changed(member, Change(1, False, 7))
    member.handlers[ViewIs].call(0, ViewIs(2, (0, 1, 2), {}), 2, member.out)
    member.position = 3
    member.leadership.installed(3, member.out)
    assert member.leadership.election.state == REMOVED


def test_who_was_removed_gives_no_snapshot_which_might_lack_a_view() -> None:
    """It follows views no more, though deliveries that were under way go on."""
    member = Member(2)
    changed(member, Change(0, False, 2))
    member.handlers[ViewIs].call(0, ViewIs(1, (0, 1), {}), 1, member.out)
    changed(member, Change(1, True, 7))
    assert len([*member.leadership.views_given(2)]) == 1
    protocol: Any = SimpleNamespace(history=object(), role=member.leadership.role)
    snapshots, batch = Snapshots(protocol, set(), lambda: 2, lambda *sent: None), Batch(1)
    snapshots.enabled = True
    snapshots.on_message(1, SnapshotRequest(0, ZERO, b""), 1, batch)
    assert not batch.rows
