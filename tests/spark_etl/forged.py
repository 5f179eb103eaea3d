"""Forgeries with right checksums, each in a copy of its own of one simulated run; one audit of all (`folded`)."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvstore.core.audit import (
    APPLIED,
    EXPIRED,
    FAILED,
    MISMATCH,
    REPEATED,
    Read,
    Write,
    decode_outcomes,
    encode_outcomes,
)
from multicast.records import (
    HEADER_BYTES,
    Completed,
    Delivered,
    DeliveredReference,
    SegmentHeader,
    decode_body,
    encode_record,
    scan,
)
from multicast.types import FINAL, OPTIMISTIC, ZERO, AppMessage, Timestamp
from spark_etl.ingest import histories, journals, sources
from tests.spark_etl import folded
from tests.spark_etl.runs import MEMBERS

Records = list[Any]
Forgery = Callable[[Records], Records | None]


def records_of(data: bytes) -> Records:
    """Of a journal segment. Deliveries have their payloads, wherever they stand in it."""
    records = [decode_body(found[1], found[2]) for found in scan(data) if isinstance(found, tuple)]
    base = HEADER_BYTES - SegmentHeader.decode(data, "a segment").base

    def whole(r: Any) -> Any:
        return r.filled_in(data[base + r.offset :][: r.length]) if type(r) is DeliveredReference else r

    return list(map(whole, records))


def forge(data: bytes, change: Forgery) -> bytes:
    """A segment changed by somebody who knows the format."""
    records = records_of(data)
    changed = change(records)
    return data[:HEADER_BYTES] + b"".join(map(encode_record, records if changed is None else changed))


def deliveries(records: Records) -> list[Delivered]:
    return [r for r in records if type(r) is Delivered and r.stage == FINAL]


def _middle(records: Records, suits: Callable[[Delivered], bool] = lambda d: True) -> Delivered:
    found = deliveries(records)
    return next(d for d in sorted(found[len(found) // 2 :], key=alone_here) if suits(d))


def alone_here(d: Delivered) -> bool:
    """No other shard can tell."""
    return len(d.message.destinations) == 1


def _read_later(records: Records) -> Callable[[Delivered], bool]:
    """Deliveries of what somebody read a write of: what is missing of them, or has another version, is missed."""
    accounts = {r.position: decode_outcomes(r.record) for r in records if type(r) is Completed}
    read = {(r.key, r.version) for a in accounts.values() for o in a.outcomes for r in o.reads}

    def suits(d: Delivered) -> bool:
        account = accounts[d.position]
        return any((w.key, account.version_at(n)) in read for n, o in enumerate(account.outcomes) for w in o.writes)

    return suits


def _account(records: Records, position: int) -> Completed:
    return next(r for r in records if type(r) is Completed and r.position == position)


def delivery(change: Callable[[Delivered], None], suits: Callable[[Delivered], bool] = lambda d: True) -> Forgery:
    """Of a delivery in the middle."""
    return lambda records: change(_middle(records, suits))


def message(**changes: Any) -> Callable[[Delivered], None]:
    """Of a delivered message, fields by functions of the message."""

    def change(d: Delivered) -> None:
        m = d.message
        fields = {"id": m.id, "destinations": m.destinations, "payload": m.payload, "origin": m.origin}
        d.message = AppMessage(**fields | {name: value(m) for name, value in changes.items()})

    return change


def account(change: Callable[[Any], None], suits: Callable[[Any], bool] = lambda a: True) -> Forgery:
    """Of a delivery in the middle: all its outcomes."""

    def forgery(records: Records) -> None:
        done = [r for r in records if type(r) is Completed]
        alone = {d.position: alone_here(d) for d in deliveries(records)}
        for one in sorted(done[len(done) // 2 :], key=lambda r: alone[r.position]):
            account = decode_outcomes(one.record)
            if suits(account):
                change(account)
                one.record = encode_outcomes(account)
                return
        raise LookupError("no such account")

    return forgery


def outcome(change: Callable[[Any], None], suits: Callable[[Any], bool] = lambda o: True) -> Forgery:
    """Of a transaction in the middle."""
    return account(lambda a: change(next(filter(suits, a.outcomes))), lambda a: any(map(suits, a.outcomes)))


def _set(**values: Any) -> Callable[[Any], None]:
    """Attributes by functions of what they are of."""

    def change(one: Any) -> None:
        for name, value in values.items():
            setattr(one, name, value(one))

    return change


def _next(version: Timestamp, by: int = 1) -> Timestamp:
    return Timestamp(version.time + by, version.tiebreak)


def _another_version(records: Records) -> None:
    done = _account(records, _middle(records, _read_later(records)).position)
    account = decode_outcomes(done.record)
    account.timestamp = _next(account.timestamp)
    done.record = encode_outcomes(account)


def _both_timestamps(records: Records) -> None:
    d = _middle(records, _read_later(records))
    d.timestamp = _next(d.timestamp)
    done = _account(records, d.position)
    account = decode_outcomes(done.record)
    account.timestamp = d.timestamp
    done.record = encode_outcomes(account)


def _changed_next(records: Records) -> Callable[[Delivered], bool]:
    """Deliveries of which the next one changes the state, so that the digests after them are two."""
    digests = {r.position: decode_outcomes(r.record).state_digest for r in records if type(r) is Completed}
    return lambda d: digests.get(d.position + 1) not in (None, digests[d.position])


def _swap(kind: type, what: str, where: Callable[[Records], Any] = lambda records: lambda d: True) -> Forgery:
    """Two neighbours exchange this."""

    def forgery(records: Records) -> None:
        at = _middle(records, where(records)).position
        one, other = (next(r for r in records if type(r) is kind and r.position == p) for p in (at, at + 1))
        a, b = getattr(one, what), getattr(other, what)
        setattr(one, what, b), setattr(other, what, a)

    return forgery


def _swap_places(records: Records) -> None:
    at = _middle(records).position
    i, j = (next(n for n, r in enumerate(records) if type(r) is Delivered and r.position == p) for p in (at, at + 1))
    records[i], records[j] = records[j], records[i]


def _remove(*kinds: type) -> Forgery:
    def forgery(records: Records) -> Records:
        at = _middle(records, _read_later(records)).position
        return [r for r in records if not (type(r) in kinds and r.position == at)]

    return forgery


def _repeat(records: Records) -> Records:
    at = records.index(_middle(records))
    return [*records[:at], copy.deepcopy(records[at]), *records[at:]]


def _next_position(records: Records) -> None:
    _middle(records).position += 1


def _reads(outcome: Any) -> bool:
    """Only that, of several keys, so its client is told what it read; of what a write compares it is not."""
    only = outcome.status == APPLIED and not outcome.writes
    return bool(only and len(outcome.reads) > 2 and outcome.reads[0].version.time)


def _first_read(outcome: Any) -> tuple[Read, ...]:
    return (Read(outcome.reads[0].key, _next(outcome.reads[0].version, -1)), *outcome.reads[1:])


def _first_write(outcome: Any) -> tuple[Write, ...]:
    return (Write(outcome.writes[0].key, b"forged"), *outcome.writes[1:])


def _writes(outcome: Any) -> bool:
    return bool(outcome.writes)


def _last_bit(m: AppMessage) -> bytes:
    return m.payload[:-1] + bytes([m.payload[-1] ^ 1])


def _two(d: Delivered) -> bool:
    return len(d.message.destinations) == 2


class Kind(NamedTuple):
    """A forgery, and what is found where it is made at one replica, and at all of a shard: names of violations, or
    "damage"."""

    forge: Forgery
    one: str
    shard: str


FORGERIES = {
    "another version read": Kind(
        outcome(_set(reads=_first_read), _reads),
        "outcome-disagreement",
        "read-mismatch unwritten-version",
    ),
    "another value written": Kind(
        outcome(_set(writes=_first_write), _writes),
        "outcome-disagreement",
        "not-as-asked",
    ),
    "a write fewer": Kind(
        outcome(_set(writes=lambda o: o.writes[1:]), _writes),
        "outcome-disagreement",
        "not-as-asked unwritten-version",
    ),
    "a key twice": Kind(
        outcome(_set(writes=lambda o: (*o.writes, Write(o.writes[0].key, b"forged"))), _writes),
        "outcome-disagreement",
        "two-values",
    ),
    "a key that is no text": Kind(
        outcome(_set(writes=lambda o: (*o.writes, Write(b"\xff\n", b"forged"))), _writes),
        "outcome-disagreement",
        "not-as-asked",
    ),
    "another version of the outcome": Kind(
        _another_version,
        "outcome-disagreement outcome-of-another-delivery",
        "outcome-of-another-delivery unwritten-version",
    ),
    "another id of the outcome": Kind(
        outcome(_set(id=lambda o: bytes(16)), _writes),
        "outcome-disagreement",
        "bundle-disagreement",
    ),
    "failed": Kind(
        outcome(_set(status=lambda o: FAILED), _writes),
        "outcome-disagreement",
        "branch-disagreement unwritten-version",
    ),
    "an id used before": Kind(
        outcome(_set(status=lambda o: MISMATCH), _writes),
        "outcome-disagreement",
        "acknowledged-but-absent fate-disagreement unwritten-version",
    ),
    "a repetition of nothing": Kind(
        outcome(_set(status=lambda o: REPEATED), _writes),
        "outcome-disagreement",
        "acknowledged-but-absent fate-disagreement repeated-without-first unwritten-version",
    ),
    "too late": Kind(
        outcome(_set(status=lambda o: EXPIRED), _writes),
        "outcome-disagreement",
        "acknowledged-but-absent fate-disagreement unwritten-version",
    ),
    "another branch": Kind(
        outcome(_set(succeeded=lambda o: not o.succeeded), _writes),
        "outcome-disagreement",
        "branch-disagreement branch-mismatch not-as-asked",
    ),
    "another state": Kind(
        account(_set(state_digest=lambda a: bytes(16)), lambda a: a.state_digest is not None),
        "state-digest-disagreement",
        "",
    ),
    "a later timestamp": Kind(
        delivery(_set(timestamp=lambda d: _next(d.timestamp))),
        "outcome-of-another-delivery position-disagreement",
        "outcome-of-another-delivery timestamp-disagreement",
    ),
    "a later timestamp of both": Kind(
        _both_timestamps,
        "outcome-disagreement position-disagreement",
        "timestamp-disagreement unwritten-version",
    ),
    "a destination fewer": Kind(
        delivery(message(destinations=lambda m: m.destinations[:1]), _two),
        "position-disagreement",
        "destination-disagreement multicast-elsewhere",
    ),
    "a destination more": Kind(
        delivery(message(destinations=lambda m: (*m.destinations, 3))),
        "position-disagreement",
        "destination-disagreement",
    ),
    "expired": Kind(
        delivery(_set(expired=lambda d: True)),
        "expired-with-effect position-disagreement",
        "acknowledged-but-absent expired-with-effect",
    ),
    "another id": Kind(
        delivery(message(id=lambda m: bytes([m.id[0] ^ 1]) + m.id[1:])),
        "position-disagreement",
        "missed-delivery never-submitted timestamp-shared",
    ),
    "another origin": Kind(
        delivery(message(origin=lambda m: 9)),
        "",
        "",
    ),
    "another payload": Kind(
        delivery(message(payload=_last_bit)),
        "position-disagreement",
        "payload-disagreement",
    ),
    "another payload of what went to no other shard": Kind(
        delivery(message(payload=_last_bit), alone_here),
        "position-disagreement",
        "",
    ),
    "an early delivery": Kind(
        delivery(_set(stage=lambda d: OPTIMISTIC)),
        "lost-delivery outcome-without-delivery",
        "acknowledged-but-absent lost-delivery missed-delivery outcome-without-delivery",
    ),
    "another time": Kind(
        delivery(_set(at=lambda d: -5)),
        "",
        "",
    ),
    "a time out of range": Kind(
        delivery(_set(at=lambda d: 2**63 + 1)),
        "damage",
        "damage",
    ),
    "a timestamp out of range": Kind(
        delivery(_set(timestamp=lambda d: Timestamp(2**64 - 1, 0))),
        "outcome-of-another-delivery position-disagreement timestamp-not-rising",
        "outcome-of-another-delivery timestamp-disagreement timestamp-not-rising",
    ),
    "a negative timestamp": Kind(
        delivery(_set(timestamp=lambda d: Timestamp(-1, 0))),
        "damage",
        "damage",
    ),
    "the next position": Kind(
        _next_position,
        "lost-delivery outcome-of-another-delivery outcome-without-delivery position-disagreement position-repeated",
        "lost-delivery outcome-of-another-delivery outcome-without-delivery position-disagreement position-repeated",
    ),
    "no delivery and no outcome": Kind(
        _remove(Delivered, Completed),
        "lost-delivery",
        "acknowledged-but-absent lost-delivery missed-delivery unwritten-version",
    ),
    "no delivery": Kind(
        _remove(Delivered),
        "lost-delivery outcome-without-delivery",
        "acknowledged-but-absent lost-delivery missed-delivery outcome-without-delivery",
    ),
    "no outcome": Kind(
        _remove(Completed),
        "outcome-missing",
        "outcome-missing unwritten-version",
    ),
    "a delivery twice": Kind(
        _repeat,
        "duplicate-delivery position-repeated",
        "duplicate-delivery position-repeated",
    ),
    "messages exchanged": Kind(
        _swap(Delivered, "message"),
        "position-disagreement",
        "bundle-disagreement order-cycle timestamp-disagreement timestamp-shared",
    ),
    "records exchanged": Kind(
        _swap_places,
        "delivered-out-of-order",
        "delivered-out-of-order",
    ),
    "outcomes exchanged": Kind(
        _swap(Completed, "record", _changed_next),
        "outcome-disagreement outcome-of-another-delivery state-digest-disagreement",
        "outcome-of-another-delivery",
    ),
    "garbage for an outcome": Kind(
        lambda records: setattr(_account(records, _middle(records).position), "record", b"\xc1"),
        "damage",
        "damage",
    ),
    "an outcome of a newer version": Kind(
        account(_set(version=lambda a: 99)),
        "damage",
        "damage",
    ),
}


def _chose(outcome: Any) -> bool:
    """It has a nested transaction in the branch that ran, perhaps, and changed something."""
    return bool(getattr(outcome, "truths", b"") and outcome.succeeded and outcome.writes)


NESTED = {
    "another nested branch": Kind(
        outcome(_set(truths=lambda o: bytes([1 - o.truths[0]]) + o.truths[1:]), _chose),
        "outcome-disagreement",
        "branch-disagreement not-as-asked",
    ),
    "the outer branch of a nested one": Kind(
        outcome(_set(succeeded=lambda o: False), _chose),
        "outcome-disagreement",
        "branch-disagreement branch-mismatch not-as-asked",
    ),
    "no nested branch": Kind(
        outcome(_set(truths=lambda o: b""), _chose),
        "outcome-disagreement",
        "branch-disagreement not-as-asked",
    ),
    "a nested branch more": Kind(
        outcome(_set(truths=lambda o: o.truths + b"\1"), _chose),
        "outcome-disagreement",
        "branch-disagreement",
    ),
}
"""Of transactions with others nested in them."""

Events = list[dict[str, Any]]


def _balances(events: Events) -> Events:
    """Those that say what all accounts hold."""
    return [event for event in events if event.get("value")]


def exchanged(events: Events) -> None:
    """Two balances of an answer, one of which is as at first: their sum is what it was."""
    first = next(iter(_balances(events)[0]["value"].values()))
    value = next(event["value"] for event in _balances(events) if set(event["value"].values()) > {first})
    one, other = next((a, b) for a in value for b in value if value[a] != value[b] == first)
    value[one], value[other] = value[other], value[one]


def exchanged_of_old(events: Events) -> None:
    """The same in a history that says no more than that."""
    for event in events:
        event.pop("asked", None), event.pop("told", None)
    exchanged(events)


def unwritten(events: Events) -> None:
    """An answer with a value that no account ever had."""
    event = next(event for event in reversed(events) if event["f"] == "get" and (event.get("told") or [None])[0])
    event["told"][0] = "=nobody wrote this"


def another_amount(events: Events) -> None:
    """A transfer of more than was moved."""
    done = {event["id"] for event in events if event.get("succeeded")}
    event = next(event for event in events if event["f"] == "transfer" and event["id"] in done and "asked" in event)
    event["asked"]["success"][0][2] -= 1
    event["asked"]["success"][1][2] += 1


def another_condition(events: Events) -> None:
    """A transfer that asked for more than there is."""
    done = {event["id"] for event in events if event.get("succeeded")}
    event = next(event for event in events if event["f"] == "transfer" and event["id"] in done and "asked" in event)
    event["asked"]["compare"][0][3] = "=9999999"


def another_key(events: Events) -> None:
    """A put of another key than was written."""
    done = {event["id"] for event in events if event["type"] == "ok"}
    event = next(event for event in events if event["f"] == "put" and event["id"] in done and "asked" in event)
    event["asked"]["success"][0][1] = "key/none"


def fewer_answers(events: Events) -> None:
    """A read of all accounts without the last one."""
    event = next(event for event in reversed(events) if event["f"] == "read_all" and event.get("told"))
    event["told"].pop()


TOLD: dict[str, tuple[Callable[[Events], None], str]] = {
    "two balances exchanged": (exchanged, "unwritten-value value-mismatch"),
    "two balances exchanged in an old history": (exchanged_of_old, "unwritten-value value-mismatch"),
    "a value that nobody wrote": (unwritten, "unwritten-value"),
    "fewer answers": (fewer_answers, "value-mismatch"),
    "another amount": (another_amount, "not-as-asked value-mismatch"),
    "another condition": (another_condition, "not-as-asked"),
    "another key": (another_key, "not-as-asked"),
}
"""What is done to a history, and what is found."""


class Forged(folded.Folded):
    """One audit of copies of a run; copy c has the journals of `replicas` forged as the c-th of `copies` says; its
    history, as `told` says of c."""

    def __init__(
        self, spark: Any, run: Path, copies: Sequence[tuple[Forgery, Sequence[int]]],
        told: Mapping[int, Callable[[Events], None]], out: Path, parts: Sequence[str],
    ):  # fmt: skip
        super().__init__(spark, [], out, parts=parts)
        self.copies = copies
        self.told = told
        self.segments = sources.find_segments(run)
        self.journals = {s.replica: forge(Path(s.path).read_bytes(), lambda records: None) for s in self.segments}
        self.history_file = next(iter(sources.find_histories(run)))
        self.numbers: dict[bytes, int] = {}
        self.shift = 16
        parsed = {s.replica: self._parse(s, self.journals[s.replica]) for s in self.segments}
        self.parsed = parsed
        started = next(row for table, row in parsed[0] if table == "lives")
        members = {int(s): list(rs) for s, rs in json.loads(started["members"]).items()}
        self.members = [members] * len(copies)

    def _parse(self, segment: sources.SegmentFile, data: bytes) -> list[tuple[str, dict[str, Any]]]:
        whole = msgspec.structs.replace(segment, mark=len(data) - HEADER_BYTES)
        batches = journals.parse_segment(whole, data)
        return [(table, row) for found in batches for table, batch in found.items() for row in batch.to_pylist()]

    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        events = self._events(None)
        for number, (change, replicas) in enumerate(self.copies):
            case = self.first + number
            for segment in self.segments:
                found = self.parsed[segment.replica]
                if segment.replica in replicas:
                    found = self._parse(segment, forge(self.journals[segment.replica], change))
                for table, row in found:
                    rows[table].append(self._fold(case, row))
            told = self._events(self.told[number]) if number in self.told else events
            rows["history"] += [self._fold(case, event) for event in told]
        return rows

    def _events(self, change: Callable[[Events], None] | None) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.history_file.read_bytes().splitlines()]
        if change is not None:
            change(lines)
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        found = histories.parse_history("history/clients.jsonl", data)
        return [event for batches in found for event in batches["history"].to_pylist()]

    def _fold(self, case: int, row: Mapping[str, Any]) -> dict[str, Any]:
        """As a row of that copy: nothing of it is any other copy's."""
        new = dict(row)
        for name, value in row.items():
            if value is None:
                continue
            if name in ("replica", "origin"):
                new[name] = case * folded.REPLICAS + value
            elif name == "shard":
                new[name] = case * folded.SHARDS + value
            elif name in ("destinations", "places"):
                new[name] = [folded.of_case(case, one) for one in value]
            elif name in ("id", "message"):
                unnamed = name == "id" and value == row.get("gts")
                number = self.numbers.setdefault(value, len(self.numbers))
                new[name] = self._version(case, value) if unnamed else folded.message_id(case, number)
            elif name == "timestamp" or (name == "gts" and "single" in row):
                new[name] = self._timestamp(case, value)
            elif name in ("gts", "version", "seen"):
                new[name] = self._version(case, value)
            elif name == "key":
                new[name] = b"%d:" % case + value
            elif name == "reads":
                new[name] = [(f"{case}:{key}", self._version(case, version)) for key, version in value]
            elif name == "value" and isinstance(value, list):
                new[name] = [(f"{case}:{key}", n) for key, n in value]
            elif name == "asked":
                new[name] = json.dumps(self._asked(case, json.loads(value)))
            elif name == "told":
                new[name] = json.dumps([self._answer(case, one) for one in json.loads(value)])
            elif name == "members":
                new[name] = json.dumps({
                    case * folded.SHARDS + int(s): [case * folded.REPLICAS + r for r in rs]
                    for s, rs in json.loads(value).items()
                })  # fmt: skip
            elif name == "cluster":
                new[name] = "c"
            elif name == "file":
                new[name] = value.replace("/", f"/{case}-", 1)
        return new

    def _key(self, case: int, key: str) -> str:
        """As it is called in that copy."""
        return f"{case}:{key}"

    def _asked(self, case: int, asked: dict[str, Any]) -> dict[str, Any]:
        for words in asked.get("success", []) + asked.get("failure", []):
            if words[0] == "txn":
                words[1] = self._asked(case, words[1])
            elif words[0] in ("range", "keys", "count", "delete_range"):
                words[1:] = [self._key(case, word) if word or not n else "" for n, word in enumerate(words[1:])]
            elif words[0] == "none_newer":
                words[1:3] = self._key(case, words[1]), self._told(case, words[2])
                words[3:] = [word and self._key(case, word) for word in words[3:]]
            elif len(words) > 1 and words[0] != "move":
                words[1] = self._key(case, words[1])
                words[3:] = [self._key(case, word) for word in words[3:]]
        for words in asked.get("compare", []):
            words[0] = self._key(case, words[0])
            if words[1] in ("version", "create_version"):
                words[3] = self._told(case, words[3])
        return asked

    def _answer(self, case: int, one: Any) -> Any:
        if isinstance(one, list):
            return [self._answer(case, each) for each in one]
        if not isinstance(one, dict):
            return one
        return {key and self._key(case, key): self._told(case, value) for key, value in one.items()}

    def _told(self, case: int, value: Any) -> Any:
        """Of a key of a range, or a comparison: its value, or its version."""
        if not value or not isinstance(value, str) or value[0] in "=#" or value == str(ZERO):
            return value
        return str(Timestamp.decode(self._version(case, Timestamp.parse(value).encode())))

    def _version(self, case: int, version: bytes) -> bytes:
        return version if version == bytes(16) else self._timestamp(case << self.shift, version)

    @staticmethod
    def _timestamp(case: int, timestamp: bytes) -> bytes:
        one = Timestamp.decode(timestamp)
        return Timestamp(one.time, case * folded.TIEBREAKS + one.tiebreak).encode()


class Written(Forged):
    """One audit of runs that are in directories; run c is copy c."""

    def __init__(self, spark: Any, runs: Sequence[Path], out: Path, parts: Sequence[str]):
        super().__init__(spark, runs[0], [], {}, out, parts)
        self.directories = runs
        self.members = [MEMBERS] * len(runs)

    def _rows(self) -> Mapping[str, list[dict[str, Any]]]:
        rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for case, run in enumerate(self.directories, self.first):
            segments = sources.find_segments(run)
            found = [pair for one in segments for pair in self._parse(one, Path(one.path).read_bytes())]
            self.shift = 0 if any(row.get("single") for _, row in found) else 16
            for table, row in found:
                rows[table].append(self._fold(case, row))
            self.history_file = next(iter(sources.find_histories(run)))
            rows["history"] += [self._fold(case, event) for event in self._events(None)]
        return rows
