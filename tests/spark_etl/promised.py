"""Small runs in which clients read several shards, snapshots and what may be old, and what is wrong with that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstore.api.model import lease_key
from kvstore.core.audit import FAILED
from multicast.types import Timestamp
from tests.spark_etl.runs import MEMBERS, Run

WRONG: dict[str, tuple[Callable[[], Run], str]] = {}
"""Runs, each with what is found."""


def wrong(found: str) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    def enrol(make: Callable[[], Run]) -> Callable[[], Run]:
        WRONG[make.__name__.removeprefix("_")] = make, found
        return make

    return enrol


def written() -> Run:
    """Transaction n is answered at 1004 + 10 n. Shard 0 has 0, 1 and 2, shard 1 has 0, 2 and 3. Nobody writes a9."""
    run = unstopped()
    run.stop()
    return run


def unstopped() -> Run:
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a2": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    run.transaction(writes={"b2": 1})
    return run


def at(run: Run, **keys: int | None) -> dict[str, Timestamp | None]:
    return {key: None if number is None else run.version(number) for key, number in keys.items()}


@wrong("")
def _reads_in_every_way() -> Run:
    run = written()
    run.look(at(run, a1=2, b1=2, a9=None), (1030, 1060), places={0: 3, 1: 2})
    run.look(at(run, a1=2, a2=1, b2=3), (1100, 1110), places={0: 3, 1: 3})
    run.look(at(run, a1=0, b1=0, b2=None), (1100, 1110), seen=run.version(1), consistency="snapshot")
    run.look(at(run, a1=0), (1100, 1110), places={0: 1}, consistency="snapshot")
    run.look(at(run, a1=0, b1=2), (1100, 1110), places={0: 2, 1: 2}, consistency="stale", age_us=80)
    run.look(at(run, a1=2, b1=2), (1100, 1110), seen=run.version(2), consistency="stale", age_us=70)
    run.look(at(run, a1=None, b1=None), (1000, 1110), seen=Timestamp(1, 0), consistency="snapshot")
    run.look(at(run, a1=None, b2=None), (900, 1110), places={0: 0, 1: 2})
    return run


@wrong("")
def _reads_with_the_version_of_their_earliest_place() -> Run:
    run = written()
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3}, version=run.version(2))
    run.look(at(run, a1=0, b1=0), (1100, 1110), places={0: 2, 1: 1}, version=run.version(0, 7), consistency="stale",
             age_us=200)  # fmt: skip
    run.look(at(run, a1=0), (1100, 1110), places={0: 1}, consistency="snapshot")
    return run


@wrong("version-mismatch")
def _a_read_with_the_version_of_its_latest_place() -> Run:
    run = written()
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3}, version=run.version(3))
    return run


@wrong("version-mismatch")
def _a_read_of_nothing_with_a_version() -> Run:
    run = written()
    run.look({"a1": None}, (1100, 1110), places={0: 0}, version=run.version(0), consistency="snapshot")
    return run


@wrong("")
def _ranges_that_showed_everything() -> Run:
    """Of the last ones the first key alone, and the last two, are told; there are more."""
    run = written()
    here = {"places": {0: 3, 1: 3}}
    everything = at(run, a1=2, a2=1, b1=2, b2=3)
    run.look(everything, (1100, 1110), **here, scan=(["range", ""], {"a1": "=2", "a2": "=1", "b1": "=2", "b2": "=1"}))
    run.look({}, (1100, 1110), **here, scan=(["count", "a"], 2))
    run.look(at(run, b1=2), (1100, 1110), **here, scan=(["keys", "", "a3", "b2"], {"b1": str(run.version(2))}))
    run.look(at(run, a1=0), (1100, 1110), seen=run.version(0), consistency="snapshot", scan=(["count", "a"], 1))
    run.look(at(run, a1=2), (1100, 1110), **here, scan=(["range", "a"], {"a1": "=2", "": ""}))
    run.look(at(run, b2=3, b1=2), (1100, 1110), **here, scan=(["range", ""], {"b2": "=1", "b1": "=2", "": ""}))
    return run


@wrong("value-mismatch")
def _a_snapshot_with_a_value_of_later() -> Run:
    run = written()
    run.look(at(run, a1=0), (1100, 1110), seen=run.version(0), consistency="snapshot", scan=(["get", "a1"], "=2"))
    return run


@wrong("unwritten-value")
def _a_range_with_a_value_that_nobody_wrote() -> Run:
    run = written()
    told = {"a1": "=2", "a2": "=7"}
    run.look(at(run, a1=2, a2=1), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "a"], told))
    return run


@wrong("key-left-out")
def _a_range_without_a_key_that_is_there() -> Run:
    run = written()
    told = {"a1": "=2", "b1": "=2"}
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "", "a1", "b2"], told))
    return run


@wrong("otherwise-counted")
def _a_range_behind_which_there_should_be_more() -> Run:
    run = written()
    told = {"a1": "=2", "a2": "=1", "": ""}
    run.look(at(run, a1=2, a2=1), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "a"], told))
    return run


@wrong("otherwise-counted")
def _a_range_before_which_there_should_be_more() -> Run:
    run = written()
    told = {"b2": str(run.version(3)), "b1": str(run.version(2)), "": ""}
    run.look(at(run, b2=3, b1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["keys", "", "b1"], told))
    return run


@wrong("otherwise-counted")
def _a_single_key_beside_which_there_should_be_more() -> Run:
    run = written()
    told = {"a2": "=1", "": ""}
    run.look(at(run, a2=1), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "", "a2", "b1"], told))
    return run


@wrong("key-left-out")
def _more_keys_that_are_kept_quiet() -> Run:
    run = written()
    run.look(at(run, a1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "a"], {"a1": "=2"}))
    return run


@wrong("key-left-out")
def _a_gap_in_a_range_that_ended_early() -> Run:
    run = written()
    told = {"a1": "=2", "b1": "=2", "": ""}
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", ""], told))
    return run


@wrong("value-mismatch")
def _a_range_with_a_key_that_lies_outside() -> Run:
    run = written()
    told = {"a1": "=2", "a2": "=1", "b1": "=2"}
    run.look(at(run, a1=2, a2=1, b1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "a"], told))
    return run


@wrong("key-left-out")
def _a_range_for_which_one_shard_was_not_asked() -> Run:
    run = written()
    told = {"a1": "=2", "a2": "=1"}
    run.look(at(run, a1=2, a2=1), (1100, 1110), places={0: 3}, scan=(["range", "", "", "b2"], told))
    return run


@wrong("unknown-place")
def _a_key_of_a_shard_that_was_not_asked() -> Run:
    run = written()
    run.look(at(run, b1=0), (1100, 1110), places={0: 3})
    return run


@wrong("value-mismatch")
def _no_key_but_more() -> Run:
    run = written()
    run.look({}, (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "a"], {"": ""}))
    return run


@wrong("value-mismatch")
def _a_range_in_no_order() -> Run:
    run = written()
    told = {"a2": "=1", "a1": "=2", "b1": "=2"}
    run.look(at(run, a1=2, a2=1, b1=2), (1100, 1110), places={0: 3, 1: 3}, scan=(["range", "", "", "b2"], told))
    return run


@wrong("value-mismatch")
def _a_range_and_another_answer() -> Run:
    run = written()
    run.look(at(run, a1=2, a2=1), (1100, 1110), places={0: 3, 1: 3}, scan=(["count", "a"], 2))
    run.events[-1]["told"].append(2)
    return run


def leader_read(run: Run, reads: dict[str, Timestamp | None], position: int, scan: tuple[list[str], Any]) -> None:
    """Of shard 0 alone, at this position, as long as that is the last one."""
    time = 995 + 10 * position
    run.look(reads, (time, time + 1), places={0: position}, scan=scan)
    del run.events[-1]["places"]
    run.events[-1] |= {"version": str(run.at[0, position]), "shard": 0, "position": position}


def ordered_read(run: Run, reads: str, scan: tuple[list[str], Any]) -> None:
    run.transaction(reads)
    run.events[-2]["asked"], run.events[-1]["told"] = {"success": [scan[0]]}, [scan[1]]


def changing(run: Run, asked: dict[str, Any], told: list[Any], reads: str, **writes: int | None) -> Run:
    """A transaction that writes, or deletes, keys of shard 0; then everybody stops."""
    run.transaction(reads, {key: value or 0 for key, value in writes.items()})
    run.events[-2]["asked"], run.events[-1]["told"] = asked, told
    for replica in MEMBERS[0]:
        for number, value in enumerate(writes.values()):
            if value is None:
                run.change(replica, 4, lambda outcome, n=number: setattr(outcome.writes[n], "value", None))
    run.stop()
    return run


@wrong("")
def _ranges_that_are_counted_twice() -> Run:
    """By a reader, and by a transaction that has written between."""
    run = unstopped()
    run.look({}, (1035, 1036), places={0: 3, 1: 3}, scan=(["count", "a"], 2))
    run.events[-2]["asked"]["success"] *= 2
    run.events[-1]["told"] *= 2
    asked = [["count", "a"], ["put", "a3", "=9"], ["delete", "a1"], ["count", "a"]]
    return changing(run, {"success": asked}, [2, None, True, 2], "a1 a2", a3=9, a1=None)


@wrong("missed-what-was-answered")
def _a_linearizable_read_at_an_old_version() -> Run:
    run = written()
    run.look(at(run, a1=0, b1=0), (1100, 1110), seen=run.version(1))
    return run


@wrong("")
def _a_range_that_is_deleted() -> Run:
    return changing(unstopped(), {"success": [["delete_range", "a"]]}, [2], "a1 a2", a1=None, a2=None)


@wrong("")
def _ranges_beside_what_their_transaction_writes_and_deletes() -> Run:
    asked = [["put", "a3", "=9"], ["range", "a"], ["delete", "a1"], ["keys", "a2"], ["count", "a"]]
    seen = str(unstopped().version(1))
    told = [None, {"a1": "=2", "a2": "=1", "a3": "=9"}, True, {"a2": seen}, 2]
    return changing(unstopped(), {"success": asked}, told, "a1 a2", a3=9, a1=None)


@wrong("")
def _a_range_behind_a_condition_that_ended_early() -> Run:
    asked = {"compare": [["a1", "value", "==", "=1"]], "failure": [["range", "a"], ["put", "a9", "=9"]]}
    run = changing(unstopped(), asked, [{"a1": "=2", "": ""}, None], "a1", a9=9)
    run.events[-1]["succeeded"] = False
    for replica in MEMBERS[0]:
        run.change(replica, 4, lambda outcome: setattr(outcome, "succeeded", False))
    return run


@wrong("otherwise-counted")
def _a_range_that_is_deleted_but_for_a_key() -> Run:
    return changing(unstopped(), {"success": [["delete_range", "a"]]}, [1], "a1", a1=None)


@wrong("key-left-out")
def _a_range_without_a_key_in_a_transaction_that_writes() -> Run:
    asked = {"success": [["put", "a1", "=9"], ["range", "a"]]}
    return changing(unstopped(), asked, [None, {"a1": "=9"}], "", a1=9)


@wrong("key-left-out")
def _a_range_without_a_key_behind_a_condition() -> Run:
    asked = {"compare": [["a1", "value", "==", "=2"]], "success": [["keys", "a"], ["put", "a1", "=9"]]}
    run = unstopped()
    return changing(run, asked, [{"a1": str(run.version(2))}, None], "a1", a1=9)


@wrong("otherwise-counted")
def _a_count_without_a_key_in_a_transaction_that_writes() -> Run:
    return changing(unstopped(), {"success": [["count", "a"], ["put", "a1", "=9"]]}, [1, None], "a1", a1=9)


def impossible(add: int) -> Run:
    """To add this to a1, which is 2: so all journals say."""
    return refused(["add", "a1", add], "add: it does not fit")


def refused(asked: list[Any], reason: str) -> Run:
    """So all journals say, of what has read a1, which is 2."""
    run = unstopped()
    run.transaction("a1", answer="fail")
    run.events[-2]["asked"] = {"success": [asked]}
    for replica in MEMBERS[0]:
        run.change(replica, 4, lambda o: (setattr(o, "status", FAILED), setattr(o, "reason", reason)))
    run.stop()
    return run


@wrong("")
def _what_was_impossible() -> Run:
    return impossible(2**63 - 2)


@wrong("not-as-asked")
def _what_was_possible_and_is_called_impossible() -> Run:
    return impossible(2**63 - 3)


@wrong("not-as-asked")
def _what_was_not_to_be_added_and_is_called_impossible() -> Run:
    """It is the other branch's."""
    run = impossible(2**63 - 2)
    asked = run.events[-2]["asked"]
    run.events[-2]["asked"] = {"compare": [["a1", "value", "==", "=1"]], **asked, "failure": [["get", "a1"]]}
    return run


@wrong("not-as-asked")
def _what_is_called_impossible_for_a_lease_and_had_none() -> Run:
    return refused(["put", "a1", "=9"], "put: there is no such lease, or no longer")


@wrong("not-as-asked")
def _what_is_called_a_conflict_and_had_no_condition() -> Run:
    return refused(["put", "a1", "=9"], "none_newer: a key was written at 3-1")


@wrong("")
def _what_may_have_had_no_lease() -> Run:
    return refused(["put", "a1", "=9", lease_key(bytes(16)).decode()], "put: there is no such lease, or no longer")


@wrong("not-as-asked")
def _what_was_impossible_and_is_called_applied() -> Run:
    return changing(unstopped(), {"success": [["add", "a1", 2**63 - 2]]}, [2**63], "a1", a1=2**63)


@wrong("not-as-asked")
def _a_lease_that_is_not_there() -> Run:
    """A key is attached to it."""
    lease = lease_key(bytes(16)).decode()
    return changing(unstopped(), {"success": [["put", "a1", "=9", lease]]}, [None], "", a1=9)


@wrong("")
def _ranges_of_a_leader_that_showed_everything() -> Run:
    run = written()
    leader_read(run, at(run, a1=0), 1, (["keys", "a"], {"a1": str(run.version(0))}))
    leader_read(run, {}, 2, (["count", "a"], 2))
    leader_read(run, at(run, a1=2, a2=1), 3, (["range", "a"], {"a1": "=2", "a2": "=1"}))
    return run


@wrong("key-left-out")
def _a_leaders_range_that_is_of_another_shard_too() -> Run:
    run = written()
    leader_read(run, at(run, a1=2, a2=1), 3, (["range", ""], {"a1": "=2", "a2": "=1"}))
    return run


@wrong("")
def _ranges_in_journals_that_showed_everything() -> Run:
    run = unstopped()
    ordered_read(run, "a1 a2 b1 b2", (["range", ""], {"a1": "=2", "a2": "=1", "b1": "=2", "b2": "=1"}))
    ordered_read(run, "a2 b1", (["count", "", "a2", "b2"], 2))
    run.stop()
    return run


@wrong("key-left-out")
def _a_leaders_range_without_a_key_that_is_there() -> Run:
    run = written()
    leader_read(run, at(run, a1=2), 3, (["range", "a"], {"a1": "=2"}))
    return run


@wrong("otherwise-counted")
def _a_leader_that_counts_what_came_later() -> Run:
    run = written()
    leader_read(run, {}, 1, (["count", "a"], 2))
    return run


@wrong("key-left-out")
def _a_range_of_which_all_journals_leave_a_key_out() -> Run:
    run = unstopped()
    ordered_read(run, "a1 b1 b2", (["range", ""], {"a1": "=2", "b1": "=2", "b2": "=1"}))
    run.stop()
    return run


@wrong("otherwise-counted")
def _a_count_that_misses_what_was_written_later() -> Run:
    run = written()
    run.look({}, (1100, 1110), places={0: 2, 1: 1}, consistency="snapshot", scan=(["count", ""], 4))
    return run


@wrong("unknown-place")
def _a_read_at_a_place_that_nobody_has() -> Run:
    run = written()
    run.look(at(run, a1=2), (1100, 1110), places={0: 9, 1: 3})
    return run


@wrong("not-as-it-stood")
def _a_snapshot_of_two_instants() -> Run:
    run = written()
    run.look(at(run, a1=0, b1=2), (1100, 1110), seen=run.version(1), consistency="snapshot")
    return run


@wrong("not-as-it-stood")
def _a_snapshot_that_misses_what_was_deleted_later() -> Run:
    run = written()
    run.look(at(run, a1=None, b1=0), (1100, 1110), seen=run.version(1), consistency="snapshot")
    return run


@wrong("missed-what-was-answered")
def _a_linearizable_read_at_an_old_place() -> Run:
    """What it saw there was not overwritten."""
    run = written()
    run.look(at(run, a1=2, b1=2), (1100, 1110), places={0: 3, 1: 2})
    return run


@wrong("missed-what-was-answered")
def _a_linearizable_read_behind_another_one() -> Run:
    """Nobody but a reader knew it before."""
    run = written()
    run.events[-1]["at_us"] = 2000
    run.look(at(run, a1=2, b2=3), (1100, 1110), places={0: 3, 1: 3})
    run.look(at(run, a1=2, b2=None), (1120, 1130), places={0: 3, 1: 2})
    return run


@wrong("older-than-promised")
def _a_stale_read_that_is_older() -> Run:
    run = written()
    run.look(at(run, a1=0, b1=2), (1100, 1110), places={0: 2, 1: 2}, consistency="stale", age_us=70)
    return run


@wrong("older-than-promised")
def _a_stale_version_that_is_older() -> Run:
    run = written()
    run.look(at(run, a1=0, b1=0), (1100, 1110), seen=run.version(1), consistency="stale", age_us=70)
    return run


@wrong("no-one-instant")
def _half_of_a_transaction() -> Run:
    run = written()
    run.look(at(run, a1=0, b1=2), (1012, 1060), places={0: 2, 1: 2})
    return run


def missed_before_what_was_seen(chained: bool) -> Run:
    """What was seen was asked for before what was missed was answered. chained: it read what was asked for after that.
    """
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a1": 2}, invoke=1012, complete=1014)
    run.transaction(writes={"b2": 1}, invoke=1020)
    run.transaction("b2" if chained else "", {"b1": 2}, invoke=1005)
    run.stop()
    run.look({"a1": run.version(0), "b1": run.version(3)}, (1006, 1060), places={0: 1, 1: 3})
    return run


@wrong("no-one-instant")
def _what_was_missed_is_before_what_was_seen_by_another() -> Run:
    return missed_before_what_was_seen(chained=True)


def one_read_that_saw_the_later_of_two_writes() -> Run:
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a1": 2}, invoke=1005, complete=1080)
    run.transaction(writes={"b1": 2}, invoke=1005, complete=1080)
    run.stop()
    run.look(at(run, a1=0, b1=2), (1006, 1060), places={0: 1, 1: 2})
    return run


@wrong("no-one-instant")
def _two_reads_that_saw_two_writes_in_opposite_orders() -> Run:
    """Each of them may have; not both."""
    run = one_read_that_saw_the_later_of_two_writes()
    run.look(at(run, a1=1, b1=0), (1006, 1060), places={0: 2, 1: 1})
    return run


@wrong("saw-what-was-asked-later")
def _a_read_of_several_shards_before_what_it_saw() -> Run:
    run = written()
    run.look(at(run, a1=2, b1=2), (1005, 1015), places={0: 3, 1: 2})
    return run


@wrong("saw-what-was-asked-later")
def _a_stale_read_before_what_it_saw() -> Run:
    """That was of another key."""
    run = written()
    run.look(at(run, b1=2), (1005, 1025), places={1: 3}, consistency="stale", age_us=50)
    return run


@wrong("saw-what-was-asked-later")
def _a_snapshot_before_what_it_saw() -> Run:
    run = written()
    run.look(at(run, a1=2), (1005, 1015), seen=run.version(2), consistency="snapshot")
    return run


@wrong("no-one-instant")
def _a_later_answer_without_an_earlier_one() -> Run:
    """Of single collects: nobody had asked for the one when the other was answered."""
    run = written()
    run.look(at(run, a2=None, b2=3), (1003, 1060), places={0: 1, 1: 3})
    return run
