"""Damaged runs of a few transactions, and the names of what is to be found in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvstore.core.audit import APPLIED, EXPIRED, MISMATCH, REPEATED, Outcome, Read, Write, decode_outcomes
from multicast.records import Completed, Delivered, Members, Started, Stopped, Submitted
from multicast.types import FINAL, AppMessage, Timestamp
from tests.spark_etl.promised import (
    WRONG,
    missed_before_what_was_seen,
    one_read_that_saw_the_later_of_two_writes,
    written,
)
from tests.spark_etl.runs import MEMBERS, Run, bank_run, gts, message_id


class Damage(NamedTuple):
    """A damaged run, and the names of what is found in it."""

    run: Run
    found: str


DAMAGES: dict[str, Damage] = {name: Damage(make(), found) for name, (make, found) in WRONG.items()}

BUNDLES, SINGLES = False, True
"""Journals of today, and such whose messages are transactions themselves."""


def damaged(
    found: str, formats: Sequence[bool] = (BUNDLES, SINGLES)
) -> Callable[[Callable[[bool], Run]], Callable[[bool], Run]]:
    """The run that this function makes is to be audited, in these formats, and this is found."""

    def enrol(make: Callable[[bool], Run]) -> Callable[[bool], Run]:
        for single in formats:
            name = make.__name__.removeprefix("_") + "_in_format_1" * single
            DAMAGES[name] = Damage(make(single), found)
        return make

    return enrol


def exchange(run: Run, replica: int, first: int, second: int) -> None:
    """Swap two deliveries of a replica, with their timestamps and outcomes; the positions stay where they were."""
    for kind in (Delivered, Completed):
        a, b = run.find(replica, kind, first), run.find(replica, kind, second)
        one, other = run.records[replica][a], run.records[replica][b]
        if kind is Delivered:
            run.records[replica][a] = Delivered(first, *delivered(other))
            run.records[replica][b] = Delivered(second, *delivered(one))
        else:
            run.records[replica][a] = Completed(first, other.record, 0)
            run.records[replica][b] = Completed(second, one.record, 0)


def delivered(record: Delivered) -> tuple[Any, ...]:
    return record.timestamp, record.stage, record.expired, record.message, record.at


@damaged("")
def _none(single: bool) -> Run:
    return bank_run(single)


@damaged("outcome-disagreement position-disagreement timestamp-not-rising")
def _two_deliveries_swapped_at_one_replica(single: bool) -> Run:
    run = bank_run(single)
    exchange(run, 2, 4, 5)
    return run


@damaged("delivered-out-of-order")
def _two_records_swapped_in_the_file(single: bool) -> Run:
    run = bank_run(single)
    a, b = run.find(3, Delivered, 2), run.find(3, Delivered, 3)
    run.records[3][a], run.records[3][b] = run.records[3][b], run.records[3][a]
    return run


@damaged("lost-delivery outcome-without-delivery")
def _a_dropped_delivery(single: bool) -> Run:
    run = bank_run(single)
    del run.records[1][run.find(1, Delivered, 4)]
    return run


@damaged("lost-delivery")
def _a_dropped_last_delivery_against_the_clean_stop(single: bool) -> Run:
    run = bank_run(single)
    last = run.positions[0]
    for kind in (Delivered, Completed):
        del run.records[1][run.find(1, kind, last)]
    return run


@damaged("duplicate-delivery effect-twice order-cycle timestamp-not-rising")
def _a_delivery_repeated_at_the_next_position(single: bool) -> Run:
    run = bank_run(single)
    position = run.positions[1] + 1
    for replica in MEMBERS[1]:
        again = run.records[replica][run.find(replica, Delivered, 2)]
        outcome = run.records[replica][run.find(replica, Completed, 2)].record
        run.records[replica] += [Delivered(position, *delivered(again)), Completed(position, outcome, 0)]
    return run


@damaged("duplicate-delivery position-repeated")
def _a_record_written_twice(single: bool) -> Run:
    run = bank_run(single)
    at = run.find(5, Delivered, 3)
    run.records[5].insert(at, run.records[5][at])
    return run


@damaged("order-cycle timestamp-not-rising")
def _another_order_at_a_whole_shard(single: bool) -> Run:
    """Every replica of shard 1 has the two messages the other way round, so inside the shard all agree."""
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    run.stop()
    for replica in MEMBERS[1]:
        exchange(run, replica, 1, 2)
    return run


@damaged("timestamp-disagreement outcome-of-another-delivery")
def _another_timestamp_at_another_shard(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.timestamp = Timestamp(1001, 1)
    return run


@damaged("acknowledged-but-absent missed-delivery")
def _a_shard_that_never_delivered_a_message_but_went_on(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"b1": 2})
    for replica in MEMBERS[1]:
        run.records[replica] = run.records[replica][:1]
        message = AppMessage(message_id(1), (1,), b"body", 3)
        run.records[replica].append(Delivered(1, gts(1), FINAL, False, message, 0))
    return run


@damaged("never-submitted")
def _a_message_that_nobody_sent(single: bool) -> Run:
    run = bank_run(single)
    for records in run.records.values():
        records[:] = [r for r in records if not (type(r) is Submitted and r.id == message_id(2))]
    run.events = [event for event in run.events if event["process"] != 2]
    return run


@damaged("multicast-elsewhere wrong-destination")
def _a_delivery_at_a_shard_that_is_no_destination(single: bool) -> Run:
    run = Run(single)
    run.transaction(writes={"b1": 1})
    for replica in MEMBERS[1]:
        record = run.records[replica][run.find(replica, Delivered, 1)]
        record.message.destinations = (0,)
    return run


@damaged("acknowledged-but-absent expired-with-effect")
def _an_expired_delivery_with_effect(single: bool) -> Run:
    run = bank_run(single)
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 2)].expired = True
    return run


def set_read(version: Timestamp) -> Callable[[Outcome], None]:
    def change(outcome: Outcome) -> None:
        outcome.reads = (Read(outcome.reads[0].key, version), *outcome.reads[1:])

    return change


def reads_changed(single: bool, replicas: Sequence[int]) -> Run:
    """One old, one not yet written, one that nobody ever wrote."""
    run = bank_run(single)
    for replica in replicas:
        run.change(replica, 10, set_read(run.version(0)))
        run.change(replica, 7, set_read(run.version(8)))
        run.change(replica, 4, set_read(Timestamp(77, 7)))
    return run


@damaged("stale-read future-read unwritten-version read-mismatch value-mismatch")
def _read_versions_changed(single: bool) -> Run:
    return reads_changed(single, MEMBERS[0])


@damaged("outcome-disagreement")
def _read_versions_changed_at_one_replica(single: bool) -> Run:
    """The others know better."""
    return reads_changed(single, [1])


@damaged(
    "outcome-missing state-digest-disagreement branch-disagreement branch-mismatch unwritten-version fate-disagreement"
    " acknowledged-but-absent"
)
def _outcomes_lost_changed_and_of_another_branch(single: bool) -> Run:
    run = bank_run(single)
    del run.records[0][run.find(0, Completed, 3)]
    run.change_account(1, 6, lambda account: setattr(account, "state_digest", b"another"))
    for replica in MEMBERS[1]:
        run.change(replica, 2, lambda outcome: setattr(outcome, "succeeded", False))
        run.change(replica, 4, lambda outcome: setattr(outcome, "status", EXPIRED))
    return run


@damaged("version-mismatch read-mismatch branch-mismatch refused-but-present acknowledged-but-absent")
def _what_clients_were_told(single: bool) -> Run:
    run = bank_run(single)
    ends = [event for event in run.events if event["type"] == "ok"]
    ends[1]["version"] = "1-1"
    ends[3]["reads"]["a1"] = "1-1"
    ends[4]["succeeded"] = False
    ends[5]["type"] = "fail"
    for event in run.events[-2:]:
        event["id"] = "018bcfe5-6800-7000-8000-00000000ffff"
    run.events[-1]["version"] = str(run.version(3))
    return run


@damaged("read-mismatch")
def _a_client_told_that_it_read_what_it_only_read_at_its_own_version(single: bool) -> Run:
    run = bank_run(single)
    event = next(event for event in run.events if event["type"] == "ok" and event["f"] == "read_all")
    event["reads"]["a1"] = event["version"]
    return run


def acknowledged_before_a_crash(single: bool) -> Run:
    """The last transaction is acknowledged, but its replicas are killed before it reached a journal's deliveries."""
    run = Run(single)
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"a1": 2})
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Delivered, 2) :]
    return run


@damaged("")
def _an_acknowledgement_after_a_crash_that_nothing_has_passed(single: bool) -> Run:
    return acknowledged_before_a_crash(single)


@damaged("acknowledged-but-absent")
def _an_acknowledgement_after_a_crash_that_another_has_passed(single: bool) -> Run:
    run = acknowledged_before_a_crash(single)
    run.transaction(writes={"a1": 3, "b1": 3})
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 3)].position = 2
        run.records[replica][run.find(replica, Completed, 3)].position = 2
    return run


def lost_beside_what_may_have_lost_anything(key: str) -> Run:
    """The last transaction, of a shard that stopped in good order. The other one crashed, and left its journals to the
    system."""
    run = Run()
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"b1": 1})
    run.transaction(writes={key: 2})
    run.events[-2]["asked"] = {"success": [["put", key, "=2"]]}
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 2) :] = [Stopped(1, 1, 9)]
    for replica in MEMBERS[1]:
        run.records[replica] = [Started(100, replica, 1, MEMBERS, "white_box", "os", 1), *run.records[replica][1:]]
    return run


@damaged("acknowledged-but-absent", [BUNDLES])
def _a_loss_beside_a_shard_that_may_have_lost_anything(single: bool) -> Run:
    return lost_beside_what_may_have_lost_anything("a1")


@damaged("", [BUNDLES])
def _a_loss_of_a_key_that_nobody_knows_beside_such_a_shard(single: bool) -> Run:
    return lost_beside_what_may_have_lost_anything("a9")


def lost_after_a_crash(asked_us: int) -> Run:
    """Shard 0 leaves its journals to the system; replica 0 crashed, came back, multicast what was answered at 1014, and
    stopped in good order. All replicas lack what was asked for at this time."""
    run = Run()
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"a1": 2})
    run.transaction(writes={"a1": 3}, invoke=asked_us, complete=1030)
    run.events[-2]["asked"] = {"success": [["put", "a1", "=3"]]}
    for replica in MEMBERS[0]:
        run.records[replica][run.find(replica, Delivered, 3) :] = [Stopped(2, 2, 9)]
        run.records[replica][0] = Started(100, replica, 0, MEMBERS, "white_box", "os", 1)
    again = Started(200, 0, 0, MEMBERS, "white_box", "os", 2)
    run.records[0].insert(run.find(0, Completed, 1) + 1, again)
    for replica in MEMBERS[1]:
        run.records[replica].append(Stopped(0, 0, 9))
    return run


@damaged("acknowledged-but-absent", [BUNDLES])
def _a_loss_of_what_was_asked_for_when_all_that_crashed_was_back(single: bool) -> Run:
    return lost_after_a_crash(1020)


@damaged("", [BUNDLES])
def _a_loss_of_what_was_asked_for_before_a_client_knew_that(single: bool) -> Run:
    return lost_after_a_crash(1012)


def lost_after_a_removal(more: int) -> Run:
    """Replica 2 is killed, and removed; its shard delivers so many more messages, stops in good order, and lacks what
    was acknowledged last."""
    run = Run()
    for value in range(more + 2):
        run.transaction(writes={"a1": value})
    last = run.positions[0]
    for replica in MEMBERS[0][:2]:
        run.records[replica][run.find(replica, Delivered, last) :] = [Stopped(last - 1, last - 1, 9)]
        run.records[replica].insert(run.find(replica, Delivered, 2), Members({**MEMBERS, 0: (0, 1)}, 1, 5))
    del run.records[2][run.find(2, Delivered, 2) :]
    for replica in MEMBERS[1]:
        run.records[replica].append(Stopped(0, 0, 9))
    return run


@damaged("acknowledged-but-absent", [BUNDLES])
def _a_loss_long_after_a_replica_that_was_down_had_been_removed(single: bool) -> Run:
    return lost_after_a_removal(15)


@damaged("", [BUNDLES])
def _a_loss_when_a_replica_that_was_down_had_just_been_removed(single: bool) -> Run:
    return lost_after_a_removal(5)


def bundled() -> Run:
    """Three messages, of two, one and three transactions; the second one's was delivered before, and once more."""
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction("a1 b1", {"a1": 2, "b1": 2}, join=True)
    run.transaction("a1", {"a2": 1})
    run.transaction("a2", {"a2": 2}, join=True)
    run.transaction("a1 a2", join=True)
    run.again(2, REPEATED, [0])
    return run


@damaged("", [BUNDLES])
def _bundles_and_a_repetition(single: bool) -> Run:
    run = bundled()
    run.again(1, REPEATED, [0, 1])
    run.again(1, MISMATCH, [0, 1])
    run.stop()
    return run


@damaged("bundle-disagreement", [BUNDLES])
def _transactions_of_a_message_in_another_order_at_a_shard(single: bool) -> Run:
    run = Run()
    run.transaction(writes={"a1": 1, "b1": 1})
    run.transaction(writes={"a2": 1, "b2": 1}, join=True)
    for replica in MEMBERS[1]:
        run.change_account(replica, 1, lambda account: account.outcomes.reverse())
    run.events.clear()
    return run


@damaged("version-mismatch", [BUNDLES])
def _a_client_told_the_version_of_another_place_in_the_bundle(single: bool) -> Run:
    run = bundled()
    next(e for e in run.events if e["type"] == "ok" and e["process"] == 3)["version"] = str(run.version(2, 2))
    return run


@damaged("effect-twice", [BUNDLES])
def _a_repetition_applied(single: bool) -> Run:
    run = bundled()
    first = decode_outcomes(run.records[0][run.find(0, Completed, 2)].record).outcomes[0]

    def apply(outcome: Outcome) -> None:
        outcome.status, outcome.writes = APPLIED, first.writes

    for replica in MEMBERS[0]:
        run.change(replica, 3, apply)
    return run


@damaged("effect-twice", [BUNDLES])
def _a_repetition_applied_by_another_shard(single: bool) -> Run:
    """To which the key had gone."""
    run = Run()
    run.transaction(writes={"a1": 1})
    run.again(0, APPLIED, [1])
    for replica in MEMBERS[1]:
        run.change(replica, 1, lambda outcome: setattr(outcome, "writes", (Write(b"a1", b"1"),)))
    run.stop()
    return run


@damaged("taken-twice", [BUNDLES])
def _a_repetition_without_effect_taken_as_new(single: bool) -> Run:
    run = bundled()
    run.again(4, APPLIED, [0])
    return run


@damaged("repeated-without-first", [BUNDLES])
def _a_repetition_of_nothing(single: bool) -> Run:
    run = bundled()
    run.again(77, REPEATED, [0])
    return run


@damaged("repeated-without-first", [BUNDLES])
def _a_repetition_before_the_first(single: bool) -> Run:
    run = Run()
    run.again(1, REPEATED, [0])
    run.transaction(writes={"a1": 1})
    return run


@damaged("mismatch-without-first", [BUNDLES])
def _a_used_id_that_nobody_used(single: bool) -> Run:
    run = bundled()
    run.again(77, MISMATCH, [0])
    return run


@damaged("fate-disagreement repeated-without-first acknowledged-but-absent", [BUNDLES])
def _a_repetition_at_one_shard_and_new_at_another(single: bool) -> Run:
    run = Run()
    run.transaction(writes={"a1": 1})
    run.transaction(writes={"a1": 2, "b1": 2})
    for replica in MEMBERS[1]:
        run.change(replica, 1, lambda o: (setattr(o, "status", REPEATED), setattr(o, "writes", ())))
    return run


@damaged("acknowledged-but-absent", [BUNDLES])
def _a_client_told_of_a_message_that_does_not_carry_its_transaction(single: bool) -> Run:
    """Its message is there, with an account of others."""
    run = bundled()
    for replica in MEMBERS[0]:
        run.change_account(replica, 2, lambda account: account.outcomes.pop())
    return run


@damaged("", [BUNDLES])
def _answers_of_messages_that_no_journal_accounts_for(single: bool) -> Run:
    """Every replica of the shard was killed before the account was written, and came back without it."""
    run = bundled()
    run.transaction(writes={"a1": 7})
    run.transaction("a1", join=True)
    for replica in MEMBERS[0]:
        del run.records[replica][run.find(replica, Completed, 4)]
        run.records[replica] += [Started(300 + replica, replica, 0, MEMBERS, "white_box", "fsync", 2), Stopped(4, 3, 9)]
    return run


def read_at_positions() -> Run:
    """Writes of a1 at positions 1 and 3 and of b1 at 1 of the other shard; the readers saw what there was."""
    run = Run()
    run.transaction(writes={"a1": 1})
    run.read("a1", 0, 1, (1005, 1007))
    run.transaction(writes={"a2": 1})
    run.read("a1", 0, 2, (1015, 1017))
    run.transaction(writes={"b1": 1})
    run.read("a1", 0, 2, (1025, 1027))
    run.transaction(writes={"a1": 2})
    run.read("b1", 1, 1, (1035, 1036))
    run.read("a1", 0, 3, (1037, 1039))
    run.stop()
    return run


@damaged("", [BUNDLES])
def _reads_at_positions(single: bool) -> Run:
    run = read_at_positions()
    run.read("a9", 0, 3, (1050, 1060), 98)
    return run


@damaged("stale-position position-went-back", [BUNDLES])
def _a_read_at_an_old_position(single: bool) -> Run:
    """What it saw was never overwritten."""
    run = read_at_positions()
    run.read("a9", 0, 2, (1050, 1060))
    return run


@damaged("stale-position future-read", [BUNDLES])
def _a_read_at_an_old_position_of_what_was_written_behind_it(single: bool) -> Run:
    run = read_at_positions()
    run.read("a2", 0, 1, (1050, 1060), 98)
    return run


@damaged("stale-read", [BUNDLES])
def _a_read_of_another_value_than_its_positions(single: bool) -> Run:
    run = read_at_positions()
    run.events[-1]["reads"]["a1"] = str(run.version(0))
    return run


@damaged("unwritten-version", [BUNDLES])
def _a_read_of_what_nobody_wrote_at_a_position(single: bool) -> Run:
    run = read_at_positions()
    run.read("a1", 0, 3, (1050, 1060), version=Timestamp(5, 0))
    return run


@damaged("unknown-place", [BUNDLES])
def _a_read_of_a_key_of_another_shard(single: bool) -> Run:
    run = read_at_positions()
    run.read("b1", 0, 3, (1050, 1060))
    return run


@damaged("version-mismatch", [BUNDLES])
def _a_read_with_the_version_of_another_position(single: bool) -> Run:
    run = read_at_positions()
    run.events[-1]["version"] = str(run.version(1))
    return run


@damaged("", [BUNDLES])
def _reads_whose_invocations_are_in_no_history(single: bool) -> Run:
    """When they were asked, and what they were promised, nobody knows."""
    run = written()
    run.read("a9", 0, 2, (1010, 1020))
    run.read("a9", 0, 3, (1100, 1110))
    del run.events[-2]
    run.look({"a1": run.version(2), "b1": run.version(0)}, (1100, 1110), places={0: 3, 1: 1}, consistency="stale")
    del run.events[-2]
    return run


@damaged("stale-read", [BUNDLES])
def _a_read_of_an_old_value_whose_invocation_is_in_no_history(single: bool) -> Run:
    run = written()
    run.read("a1", 0, 3, (1100, 1110), version=run.version(0))
    del run.events[-2]
    return run


@damaged("unknown-position", [BUNDLES])
def _a_read_at_a_position_that_nobody_has(single: bool) -> Run:
    run = read_at_positions()
    run.read("a1", 0, 4, (1050, 1060))
    return run


@damaged("", [BUNDLES])
def _what_was_missed_may_be_behind_what_was_seen(single: bool) -> Run:
    """Which the certificate does not see."""
    return missed_before_what_was_seen(chained=False)


@damaged("", [BUNDLES])
def _one_read_may_see_the_later_of_two_writes(single: bool) -> Run:
    return one_read_that_saw_the_later_of_two_writes()


def crashed_and_lagging() -> Run:
    """Replica 1 is killed in the middle, restarts and catches up; replica 4 is killed and stays away; replica 0, which
    took the messages in, was restarted after a crash that cost it the record of one of them."""
    run = bank_run()
    again = Started(200, 1, 0, MEMBERS, "white_box", "fsync", 2)
    run.records[1].insert(run.find(1, Delivered, 5), again)
    del run.records[4][run.find(4, Delivered, 6) :]
    del run.records[0][next(i for i, r in enumerate(run.records[0]) if type(r) is Submitted)]
    run.records[0].insert(5, Started(300, 0, 0, MEMBERS, "white_box", "fsync", 2))
    run.events.clear()
    return run


@damaged("", [BUNDLES])
def _crashes_and_a_lagging_replica(single: bool) -> Run:
    return crashed_and_lagging()


def behind() -> Run:
    """The last transfers and reads: shard 1 has not heard of them, what clients saw of it is in no journal."""
    run = bank_run()
    for replica, records in run.records.items():
        ends = [at for at, r in enumerate(records) if type(r) is Delivered and r.position > 6] if replica > 2 else []
        del records[min(ends, default=len(records) - 1) :]
    run.transaction("a1", {"a1": 1}, f="put")
    return run


@damaged("", [BUNDLES])
def _what_one_shard_has_not_delivered_yet(single: bool) -> Run:
    return behind()


@damaged("outcome-disagreement state-digest-disagreement", [BUNDLES])
def _two_that_differ_from_the_others_beside_a_foreign_history(single: bool) -> Run:
    run = bank_run()
    run.change_account(2, 6, lambda account: setattr(account, "state_digest", b"another"))
    run.change(4, 4, lambda outcome: setattr(outcome, "writes", ()))
    for event in run.events:
        event["id"] = "00000000" + event["id"][8:]
        if "version" in event:
            event["version"] = "9" + event["version"]
    return run
