"""What is asked of a shard until its replicas are as they are wanted."""

from __future__ import annotations

import pytest

from kvstore.config import ReplicaConfig
from kvstore.core.bundles import decode_bundle
from kvstore.members import TooFew, Unfit, Wanted, change_for, check_enough, decode_note, is_done
from multicast.membership import Change, Views, change_payload
from multicast.types import AppMessage

NEW = ReplicaConfig(id=7, shard=0, host="127.0.0.1", peer_port=1007, http_port=1107, added=True)


def test_a_replica_is_added_once() -> None:
    views = Views((0, 1, 2))
    change = change_for(views, Wanted(add=NEW))
    assert change is not None and (change.view, change.adds, change.process) == (0, True, 7)
    assert decode_note(change.note) == NEW
    assert not is_done(views, Wanted(add=NEW)) and views.change(change)
    assert not is_done(views, Wanted(add=NEW)), "the view has not begun"
    assert change_for(views, Wanted(add=NEW)) is None, "one change after the other"
    views.begin(1)
    assert is_done(views, Wanted(add=NEW))


def test_a_replica_is_removed_and_comes_not_back() -> None:
    views = Views((0, 1, 7))
    change = change_for(views, Wanted(remove=7))
    assert change is not None and views.change(change)
    views.begin(1)
    assert is_done(views, Wanted(remove=7))
    with pytest.raises(Unfit, match="its id is not used again"):
        change_for(views, Wanted(add=NEW))


@pytest.mark.parametrize(
    ("members", "there", "wanted", "missing"),
    [
        ((0, 1, 2), {0, 1, 2}, Wanted(add=NEW), ""),
        ((0, 1, 2), {0, 1}, Wanted(add=NEW), "2"),
        ((0, 1, 2, 3, 4), {0, 1, 2}, Wanted(add=NEW), "3, 4"),
        ((0, 1, 2, 3, 4), {0, 1, 2, 3}, Wanted(add=NEW), ""),
        ((0,), {0}, Wanted(add=NEW), ""),
        ((0, 1), {0, 1}, Wanted(add=NEW), ""),
        ((0, 1, 2), {0, 1}, Wanted(remove=2), ""),
        ((0, 1, 2), {0, 1}, Wanted(remove=1), "2"),
        ((0, 1, 2, 3), {0, 1, 2}, Wanted(remove=0), ""),
        ((0, 1, 2, 3), {0, 1, 2, 3}, Wanted(remove=0), ""),
    ],
)
def test_no_change_after_which_the_shard_would_stand_still(
    members: tuple[int, ...], there: set[int], wanted: Wanted, missing: str
) -> None:
    """Who is added does not count before it has what the others have."""
    views = Views(members)
    change = change_for(views, wanted)
    assert change is not None
    if not missing:
        check_enough(views, change, there)
        return
    with pytest.raises(TooFew, match=f"no connection to: {missing}$"):
        check_enough(views, change, there)


def test_the_last_replica_stays_and_something_must_be_wanted() -> None:
    with pytest.raises(Unfit, match="the last replica"):
        change_for(Views((3,)), Wanted(remove=3))
    with pytest.raises(Unfit, match="not said"):
        change_for(Views((3, 4)), Wanted())


def test_a_change_is_a_transaction_that_does_nothing() -> None:
    change = change_for(Views((0, 1, 2)), Wanted(remove=1))
    assert isinstance(change, Change)
    [bundled] = decode_bundle(AppMessage(bytes(16), (0,), change_payload(change), 0))
    assert not bundled.id
