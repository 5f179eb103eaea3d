"""What one member of a group's consensus knows of its instances, and when it may drop them."""

from __future__ import annotations

import pytest

from multicast.parts.deadlines import Deadlines
from multicast.parts.instances import Instances
from multicast.parts.truncation import Applied, Truncation
from multicast.protocol import Outbox
from multicast.types import ZERO, Ballot

LOW, HIGH = Ballot(1, 0), Ballot(2, 1)


def known(*batches: bytes) -> Instances:
    """A member of three that has accepted these in the first ballot."""
    instances = Instances(2)
    for k, value in enumerate(batches, 1):
        instances.accept(k, LOW, [value], Outbox())
    return instances


def test_a_batch_is_decided_once_a_quorum_accepted_it_and_all_before_it_are() -> None:
    instances = known(b"a", b"b")
    assert not instances.count(2, LOW, 0)
    assert instances.count(2, LOW, 1)
    instances.decide_next()
    assert (instances.decided, instances.take()) == (0, [])
    for member in (0, 2):
        instances.count(1, LOW, member)
    instances.decide_next()
    assert (instances.decided, instances.take()) == (2, [(1, [b"a"]), (2, [b"b"])])
    assert instances.take() == []


def test_votes_of_different_ballots_do_not_count_together() -> None:
    instances = known(b"a")
    assert not instances.count(1, LOW, 0)
    assert not instances.count(1, HIGH, 1)


def test_what_was_accepted_in_a_lower_ballot_is_not_taken_for_what_is_chosen() -> None:
    instances = known(b"old")
    for member in (1, 2):
        instances.count(1, HIGH, member)
    instances.decide_next()
    assert instances.decided == 0
    instances.accept(1, HIGH, [b"new"], Outbox())
    assert instances.take() == [(1, [b"new"])]


def test_what_is_chosen_is_decided_though_it_was_accepted_anew_in_a_higher_ballot() -> None:
    """What was before it came later; all members may be so."""
    instances = known(b"a", b"b")
    for member in (0, 1):
        instances.count(2, LOW, member)
    for k, value in enumerate((b"a", b"b"), 1):
        instances.accept(k, HIGH, [value], Outbox())
    for member in (0, 1):
        instances.count(1, HIGH, member)
        instances.count(2, HIGH, member)
    instances.decide_next()
    assert instances.take() == [(1, [b"a"]), (2, [b"b"])]


def test_what_is_decided_stays_whatever_a_deposed_leader_proposed_in_its_place() -> None:
    instances, out = Instances(2), Outbox()
    instances.learn(1, [[b"new"]], LOW, out)
    instances.accept(1, LOW, [b"old"], out)
    assert instances.decisions(1, 100) == [[b"new"]]
    instances.end_batch(out)
    again = Instances(2)
    again.restore({key: value for key, value, _ in out.changes if value is not None})
    assert again.take() == [(1, [b"new"])]


def test_what_is_kept_comes_back_from_the_disk_and_what_is_dropped_does_not() -> None:
    out, disk = Outbox(), {}
    instances = Instances(2)
    instances.learn(1, [[b"a"], [b"b"], [b"c"]], LOW, out)
    instances.truncate(1, out)
    instances.end_batch(out)
    for key, value, _ in out.changes:
        if value is None:
            del disk[key]
        else:
            disk[key] = value
    assert [*instances.accepted] == [2, 3] and len(disk) == 3, "with how far it is"
    again = Instances(2)
    again.restore(disk)
    assert (again.low, again.decided, again.take()) == (2, 3, [(2, [b"b"]), (3, [b"c"])])
    assert again.decisions(2, 1_000) == [[b"b"], [b"c"]] and again.decisions(2, 1) == [[b"b"]]
    with pytest.raises(AssertionError, match="instance 4 is not decided"):
        again.truncate(4, out)


def test_after_a_jump_only_what_is_later_is_decided() -> None:
    instances = known(b"a", b"b", b"c")
    for k in (1, 2, 3):
        for member in (0, 1):
            instances.count(k, LOW, member)
    instances.jump(2, Outbox())
    assert (instances.low, instances.decided, instances.take()) == (3, 3, [(3, [b"c"])])


def test_after_a_jump_what_was_decided_before_is_not_given() -> None:
    instances = known(b"a")
    for member in (0, 1):
        instances.count(1, LOW, member)
    instances.decide_next()
    instances.jump(2, Outbox())
    assert (instances.decided, instances.take()) == (2, [])


@pytest.mark.parametrize(
    ("own", "others", "dropped"),
    [(9, (9, 7), 7), (7, (9, 9), 7), (200, (200, 10), 136), (200, (10, 10), 10), (0, (200, 200), 0)],
    ids=["all", "not its own", "but for a laggard", "without a quorum", "nothing of its own"],
)
def test_instances_go_once_all_or_a_quorum_and_this_member_have_applied_them(
    own: int, others: tuple[int, int], dropped: int
) -> None:
    truncation = Truncation(0, (0, 1, 2), 100, Deadlines({}), lambda: None)
    applied = max(own, *others)
    for member, instance in enumerate((own, *others)):
        upto = truncation.heard(member, Applied(instance, ZERO), applied)
    assert upto == dropped


def test_what_is_applied_is_told_durably_once_in_a_period_and_again_to_who_may_have_missed_it() -> None:
    deadlines, out = Deadlines({}), Outbox()
    told: list[Applied | None] = [Applied(3, ZERO)]
    truncation = Truncation(0, (0, 1, 2), 100, deadlines, lambda: told[0])
    truncation.tell_later(0)
    truncation.tell_later(50)
    for now in (100, 200):
        deadlines.run(now, out)
        truncation.tell_later(now)
    assert out.sends == [((0, 1, 2), Applied(3, ZERO), True)]
    truncation.tell_later(200, again=True)
    deadlines.run(300, out)
    assert len(out.sends) == 2
    told[0] = None
    truncation.tell_later(300, again=True)
    deadlines.run(400, out)
    assert len(out.sends) == 2
