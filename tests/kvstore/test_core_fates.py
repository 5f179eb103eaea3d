"""How a transaction ends: by what its shards vote, by what one tells that has completed it."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore.api.model import Put, Transaction
from kvstore.api.shard_map import PlacedRun
from kvstore.core.audit import APPLIED, EXPIRED, FAILED, MISMATCH, MOVED, REPEATED
from kvstore.core.fates import Fate
from kvstore.core.log import Entry, Item
from kvstore.core.messages import Decided, Part, Vote
from kvstore.core.plans import LocalPlan
from multicast.types import AppMessage, Timestamp
from tests.kvstore.one_replica import key

PLAN = LocalPlan(Transaction(success=(Put(key(0), b"v"), Put(key(1), b"v"))), None)
SHARDS = (0, 1, 2)
AT = Timestamp(5, 0)
GONE = [PlacedRun(3, 3, 7, AT)]  # slot 3 is at shard 7
HERE = [PlacedRun(3, 3, 1, Timestamp(6, 0))]  # and came to shard 1 later
AGAINST, IMPOSSIBLE = Vote(holds=False), Vote(True, "add: no", b"k", "append: no", b"l")


@pytest.mark.parametrize(
    ("votes", "fate"),
    [
        ([], Fate(APPLIED, True)),
        ([Vote()], Fate(APPLIED, True)),
        ([AGAINST], Fate(APPLIED, False)),
        ([Vote(), AGAINST], Fate(APPLIED, False)),
        ([IMPOSSIBLE], Fate(FAILED, True, "add: no", b"k")),
        ([Vote(), IMPOSSIBLE], Fate(FAILED, True, "add: no", b"k")),
        ([AGAINST, IMPOSSIBLE], Fate(FAILED, False, "append: no", b"l")),
        ([Vote(places=GONE), IMPOSSIBLE], Fate(MOVED)),
        ([Vote(places=GONE), Vote(places=HERE), AGAINST], Fate(APPLIED, False)),
        ([Vote(places=GONE), Vote(repeated=True)], Fate(REPEATED)),
        ([Vote(repeated=True), Vote(reused=True)], Fate(MISMATCH)),
    ],
)
def test_shards_decide_together_a_misuse_first_then_a_copy_then_a_move(votes: list[Vote], fate: Fate) -> None:
    assert Fate.voted(PLAN, votes, SHARDS) == fate == Fate.voted(PLAN, [Vote(), *votes], SHARDS)


@pytest.mark.parametrize(
    ("decided", "fate"),
    [
        (None, Fate(APPLIED, True)),
        (Decided(APPLIED, False, "", b"", b"d", b"t"), Fate(APPLIED, False, "", b"", b"t")),
        (Decided(FAILED, True, "why", b"k", b"d"), Fate(FAILED, True, "why", b"k")),
        (Decided(REPEATED, True, "", b"", b"d"), Fate(REPEATED)),
        (Decided(EXPIRED, False, "", b"", b"d"), Fate(EXPIRED)),
        (Decided(APPLIED, True, "", b"", b"another"), Fate(MISMATCH)),
    ],
)
def test_what_has_ended_elsewhere_ends_alike_unless_that_was_another_body(decided: Any, fate: Fate) -> None:
    assert Fate.told(decided, b"d") == fate


def test_votes_are_those_of_ones_own_part_and_of_the_others_who_object() -> None:
    items = [Item(b"", PLAN, b"", AT, False, 1) for _ in range(2)]
    entry = Entry(1, AppMessage(b"m" * 16, SHARDS, b"", 0), AT, items, (1, 2), None, 0)
    assert entry.votes(0, 0) == []
    own, other = Vote(repeated=True), Vote(holds=False)
    entry.own_part = Part(b"m", AT, [own, None])
    entry.parts = {1: Part(b"m", AT, []), 2: Part(b"m", AT, [None, other])}
    assert (entry.votes(0, 0), entry.votes(1, 0)) == ([own], [other])
