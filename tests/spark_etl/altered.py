"""More forgeries with right checksums than every run of the tests can afford: see `forged.Kind`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from kvstore.core.audit import Read, Write, decode_outcomes, encode_outcomes
from multicast.records import BatchEnd, Completed, Delivered, Started, Stopped, Submitted
from multicast.types import ZERO, AppMessage, Timestamp
from tests.spark_etl.forged import Forgery, Kind, Records, deliveries, delivery, outcome


def _each(kind: type, change: Callable[[Any], None]) -> Forgery:
    def forgery(records: Records) -> None:
        for record in records:
            if type(record) is kind:
                change(record)

    return forgery


def _none(kind: type) -> Forgery:
    return lambda records: [record for record in records if type(record) is not kind]


def _stopped(by: int) -> Forgery:
    """It says that it had more, or less, than it has."""

    def change(stop: Stopped) -> None:
        stop.delivered += by
        stop.completed += by

    return _each(Stopped, change)


def _one_destination(sent: Submitted) -> None:
    sent.destinations = sent.destinations[:1]


def _batch_again(records: Records) -> None:
    [r for r in records if type(r) is BatchEnd][5].batch = 3


def _middle(records: Records) -> Delivered:
    """Of the second half the first that concerns both shards and writes."""
    found, done = deliveries(records), {r.position: r for r in records if type(r) is Completed}
    both = (d for d in found[len(found) // 2 :] if len(d.message.destinations) > 1)
    return next(d for d in both if any(map(_writes, decode_outcomes(done[d.position].record).outcomes)))


def _done(records: Records, suits: Callable[[Any], bool]) -> Completed:
    """The first in the second half with an outcome that suits."""
    done = [r for r in records if type(r) is Completed]
    return next(r for r in done[len(done) // 2 :] if any(map(suits, decode_outcomes(r.record).outcomes)))


def _second_outcome(change: Callable[[Any], None]) -> Forgery:
    """Behind an outcome the same once more, changed."""

    def forgery(records: Records) -> Records:
        done = _done(records, _writes)
        again = copy.deepcopy(done)
        account = decode_outcomes(again.record)
        change(next(filter(_writes, account.outcomes)))
        again.record = encode_outcomes(account)
        at = records.index(done) + 1
        return [*records[:at], again, *records[at:]]

    return forgery


def _exchanged_in_bundle(records: Records) -> None:
    for record in (r for r in records if type(r) is Completed):
        account = decode_outcomes(record.record)
        if len(account.outcomes) > 1 and all(map(_writes, account.outcomes[:2])):
            one, other, *rest = account.outcomes
            account.outcomes = [other, one, *rest]
            record.record = encode_outcomes(account)
            return
    raise LookupError("no bundle of two that write")


def _rotated(records: Records) -> None:
    at = _middle(records).position
    places = [next(n for n, r in enumerate(records) if type(r) is Delivered and r.position == at + k) for k in range(3)]
    one, two, three = (records[place] for place in places)
    for place, record in zip(places, (two, three, one), strict=True):
        records[place] = record


def _values_exchanged(records: Records) -> None:
    """Of two transactions: what they have written first."""
    found = []
    for record in (r for r in records if type(r) is Completed):
        for n, one in enumerate(decode_outcomes(record.record).outcomes):
            if _writes(one) and one.writes[0].value:
                found.append((record, n, one.writes[0]))
    half = len(found) // 2
    first = found[half]
    second = next(f for f in found[half + 1 :] if f[0] is not first[0] and f[2].value != first[2].value)
    for (record, n, write), value in ((first, second[2].value), (second, first[2].value)):
        account = decode_outcomes(record.record)
        account.outcomes[n].writes = (Write(write.key, value), *account.outcomes[n].writes[1:])
        record.record = encode_outcomes(account)


def _value_before(records: Records) -> None:
    """A write gets the value that the write before it of the same key had."""
    last: dict[bytes, bytes | None] = {}
    done = [r for r in records if type(r) is Completed]
    for number, record in enumerate(done):
        account = decode_outcomes(record.record)
        for one in account.outcomes:
            for n, write in enumerate(one.writes):
                if number > len(done) // 2 and last.get(write.key, write.value) != write.value:
                    one.writes = (*one.writes[:n], Write(write.key, last[write.key]), *one.writes[n + 1 :])
                    record.record = encode_outcomes(account)
                    return
                last[write.key] = write.value
    raise LookupError("no key was written twice")


def _moved(records: Records, above: int, by: int) -> None:
    """What is above this position, and what the replica says of its end."""
    for record in records:
        if type(record) in (Delivered, Completed) and record.position > above:
            record.position += by
        elif type(record) is Stopped:
            record.delivered += by
            record.completed += by


def _one_fewer(records: Records) -> Records:
    at = _middle(records).position
    kept = [r for r in records if not (type(r) in (Delivered, Completed) and r.position == at)]
    _moved(kept, at, -1)
    return kept


def _one_more(records: Records) -> Records:
    """A message that is made up, with the transactions of the one before it."""
    at = _middle(records)
    done = next(r for r in records if type(r) is Completed and r.position == at.position)
    _moved(records, at.position, 1)
    delivered, completed = copy.deepcopy(at), copy.deepcopy(done)
    delivered.position = completed.position = at.position + 1
    message = at.message
    made_up = bytes([message.id[0] ^ 3]) + message.id[1:]
    delivered.message = AppMessage(made_up, message.destinations, message.payload, message.origin)
    delivered.timestamp = Timestamp(at.timestamp.time + 1, at.timestamp.tiebreak)
    account = decode_outcomes(completed.record)
    account.timestamp = delivered.timestamp
    completed.record = encode_outcomes(account)
    place = records.index(done) + 1
    return [*records[:place], delivered, completed, *records[place:]]


def _much_later(d: Delivered) -> None:
    d.timestamp = Timestamp(d.timestamp.time + 10**6, d.timestamp.tiebreak)


def _reads(one: Any) -> bool:
    return bool(one.reads and one.reads[0].version.time)


def _writes(one: Any) -> bool:
    return bool(one.writes)


def _puts(one: Any) -> bool:
    return bool(one.writes and one.writes[0].value)


def _first(field: str, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    """The first of an outcome's reads or writes."""
    return lambda one: setattr(one, field, (change(getattr(one, field)[0]), *getattr(one, field)[1:]))


def _fewer_reads(one: Any) -> None:
    one.reads = one.reads[1:]


def _one_write_more(one: Any) -> None:
    one.writes = (*one.writes, Write(b"key/made-up", b"v"))


ALTERED = {
    "it had more when it stopped": Kind(_stopped(3), "lost-delivery", "lost-delivery"),
    "it had less when it stopped": Kind(_stopped(-3), "stop-disagreement", "stop-disagreement"),
    "a batch number twice": Kind(_batch_again, "damage", "damage"),
    "no submissions": Kind(_none(Submitted), "never-submitted", "never-submitted"),
    "multicast to one shard": Kind(_each(Submitted, _one_destination), "multicast-elsewhere", "multicast-elsewhere"),
    "other lives": Kind(_each(Started, lambda s: setattr(s, "incarnation", s.incarnation + 7)), "", ""),
    "an outcome twice": Kind(_second_outcome(lambda one: None), "effect-twice", "effect-twice"),
    "a second outcome that differs": Kind(
        _second_outcome(_first("writes", lambda w: Write(w.key, b"forged"))),
        "effect-twice outcome-disagreement",
        "effect-twice outcome-disagreement",
    ),
    "outcomes of a bundle exchanged": Kind(
        _exchanged_in_bundle,
        "outcome-disagreement",
        "bundle-disagreement unwritten-version version-mismatch",
    ),
    "a read fewer": Kind(outcome(_fewer_reads, _reads), "outcome-disagreement", "not-as-asked"),
    "another key read": Kind(
        outcome(_first("reads", lambda r: Read(r.key + b"x", r.version)), _reads),
        "outcome-disagreement",
        "not-as-asked unwritten-version",
    ),
    "nothing was there": Kind(
        outcome(_first("reads", lambda r: Read(r.key, ZERO)), _reads),
        "outcome-disagreement",
        "not-as-asked stale-read value-mismatch",
    ),
    "another key written": Kind(
        outcome(_first("writes", lambda w: Write(w.key + b"x", w.value)), _writes),
        "outcome-disagreement",
        "not-as-asked unwritten-version",
    ),
    "a write more": Kind(outcome(_one_write_more, _writes), "outcome-disagreement", "not-as-asked"),
    "deleted instead": Kind(
        outcome(_first("writes", lambda w: Write(w.key, None)), _puts),
        "outcome-disagreement",
        "not-as-asked unwritten-version",
    ),
    "three rotated": Kind(_rotated, "delivered-out-of-order", "delivered-out-of-order"),
    "two values exchanged": Kind(_values_exchanged, "outcome-disagreement", "not-as-asked"),
    "the value before": Kind(_value_before, "outcome-disagreement", "not-as-asked value-mismatch"),
    "a delivery fewer, renumbered": Kind(
        _one_fewer,
        "outcome-disagreement position-disagreement state-digest-disagreement",
        "acknowledged-but-absent missed-delivery unwritten-version",
    ),
    "a delivery more, renumbered": Kind(
        _one_more,
        "effect-twice outcome-disagreement position-disagreement state-digest-disagreement",
        "effect-twice missed-delivery never-submitted stale-read",
    ),
    "a much later timestamp": Kind(
        delivery(_much_later),
        "outcome-of-another-delivery position-disagreement timestamp-not-rising",
        "outcome-of-another-delivery timestamp-disagreement timestamp-not-rising",
    ),
}
"""Who made a life's number up, or a read of what never was there and nobody asked for, changes nothing that anybody
relies on."""
