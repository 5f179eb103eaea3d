"""What is wrong with steps of moves, watches and ranges, in copies of one simulated run: one audit of all."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstore.core.audit import MORE, MoveOutcome, decode_outcomes, encode_outcomes
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast.records import Completed
from tests.spark_etl import folded
from tests.spark_etl.featured import Featured, patched
from tests.spark_etl.forged import Events, Forgery, Records

SETTINGS = Settings(
    protocol="white_box", profile="calm", shards=3, replicas=3, clients=6, seconds=1.5, ranges=True, leases=True,
    reads=True, bounds=True, nested=True, edges=True, past=True, watch=True, moves=True, piecemeal=True, late=True,
)  # fmt: skip
SEED = 2
ONE, SHARD = (2,), (0, 1, 2)


def _handed_over(records: Records) -> tuple[Any, Any]:
    """The first step that hands slots over: its record, and the account."""
    for record in records:
        account = decode_outcomes(record.record) if type(record) is Completed else None
        one = account.outcomes[0] if account is not None else None
        if isinstance(one, MoveOutcome) and one.given is not None and one.given.slots:
            return record, account
    raise LookupError("no such step")


def slots_fewer(records: Records) -> None:
    record, account = _handed_over(records)
    account.outcomes[0].given.slots = account.outcomes[0].given.slots[1:]
    record.record = encode_outcomes(account)


def step_twice(records: Records) -> Records:
    record, _ = _handed_over(records)
    at = records.index(record) + 1
    return [*records[:at], copy.deepcopy(record), *records[at:]]


FORGED: list[tuple[Forgery, tuple[int, ...], str]] = [
    (slots_fewer, ONE, "outcome-disagreement"),
    (slots_fewer, SHARD, "bundle-disagreement"),
    (step_twice, ONE, "effect-twice"),
    (step_twice, SHARD, "effect-twice"),
]


def _changes(events: Events) -> list[Events]:
    """Of each watch, first of who was told of most."""
    told = [event for event in events if event["type"] == "watch" and event["f"] == "change"]
    watches = Counter(event["id"] for event in told).most_common()
    return [[event for event in told if event["id"] == watch] for watch, _ in watches]


def a_change_lost(events: Events) -> None:
    events.remove(_changes(events)[0][2])


def a_change_of_another_watch(events: Events) -> None:
    one, other, *_ = _changes(events)
    one[0]["id"] = other[0]["id"]


def a_change_before_it_was_asked_for(events: Events) -> None:
    asked = {event["id"]: event["at_us"] for event in events if event["type"] == "invoke"}
    wrote = {event["version"]: event["id"] for event in events if event["type"] == "ok" and event.get("version")}
    change = next(change for changes in _changes(events) for change in changes if change["version"] in wrote)
    change["at_us"] = asked[wrote[change["version"]]] - 1


def a_key_left_out(events: Events) -> None:
    """Of a range in the journals."""
    for event in reversed(events):
        ranges = [told for told in event.get("told") or () if isinstance(told, dict) and len(told) > 1]
        elsewhere = event["type"] != "ok" or any(event.get(name) for name in ("places", "at", "position"))
        if ranges and not elsewhere and not any(MORE in told for told in ranges):
            event["reads"].pop(key := next(iter(ranges[0])), None)
            ranges[0].pop(key)
            return
    raise LookupError("no such range")


TOLD: list[tuple[Callable[[Events], None], str]] = [
    (a_change_lost, "change-missed"),
    (a_change_of_another_watch, "change-invented change-missed told-again"),
    (a_change_before_it_was_asked_for, "told-before-asked"),
    (a_key_left_out, "key-left-out value-mismatch"),
]


@pytest.mark.full
def test_what_is_wrong_with_moves_watches_and_ranges_is_called_by_its_name(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patched(monkeypatch)
    assert run_seed(SETTINGS, SEED, tmp_path / "run").moves
    copies: list[tuple[Forgery, tuple[int, ...]]] = [(lambda records: None, ())]
    copies += [(forgery, replicas) for forgery, replicas, _ in FORGED]
    told = {len(copies) + n: change for n, (change, _) in enumerate(TOLD)}
    copies += [(lambda records: None, ())] * len(TOLD)
    parts = ("delivery", "transactions", "clients")
    report = Featured(spark, tmp_path / "run", copies, told, tmp_path / "out", parts).check_all()
    found: dict[int, set[str]] = defaultdict(set)
    for violation in (one for prop in report.properties for one in prop.examples):
        cases = {folded.case_of_text(one) for one in violation.transactions}
        cases |= {replica // folded.REPLICAS for replica in violation.replicas}
        if not cases:  # of a watch nobody else is named
            cases = {int(violation.sentence.partition("history/")[2].partition("-")[0])}
        (case,) = cases
        found[case].add(violation.name)
    expected = ["", *(names for _, _, names in FORGED), *(names for _, names in TOLD)]
    assert [" ".join(sorted(found[case])) for case in range(len(expected))] == expected
