"""What a history says of ranges in transactions that write: what stood in them before, but for what was written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from spark_etl.checks.ranges import Bounds, Scanned, scanned


def of(success: list[Any], told: list[Any], **more: Any) -> list[Scanned]:
    return scanned(json.dumps({"success": success, **more}), json.dumps(told), True)


def single(key: bytes) -> Bounds:
    return key, key + b"\0"


def test_what_was_written_before_is_left_out_and_what_is_written_behind_is_not() -> None:
    some = of([["put", "k2", "=1"], ["delete", "k3"], ["count", "k"], ["put", "k4", "=1"]], [None, True, 3, None])
    assert some == [Scanned(b"k", b"l", 2, None, False, [single(b"k2"), single(b"k3")])]
    told = {"k1": "=1", "k2": "=1"}
    assert of([["put", "k2", "=1"], ["range", "k"]], [None, told])[0].keys == ["k1"]


def test_what_was_emptied_is_empty_until_something_is_written_there() -> None:
    asked = [["delete_range", "k"], ["put", "k2", "=1"], ["count", "", "k1", "m"], ["count", "", "k2", "k3"]]
    deleted, rest, one = of(asked, [4, None, 3, 1])
    assert deleted == Scanned(b"k", b"l", 4, None, False, [])
    assert rest == Scanned(b"k1", b"m", 2, None, False, [(b"k1", b"l")])
    assert one == Scanned(b"k2", b"k3", 0, None, False, [(b"k2", b"k3")])


def test_a_condition_on_a_range_changes_nothing() -> None:
    some = of([["none_newer", "k", "5-0"], ["put", "k2", "=1"], ["count", "k"]], [None, None, 3])
    assert some == [Scanned(b"k", b"l", 2, None, False, [single(b"k2")])]


def test_a_range_without_an_end_that_was_emptied_has_nothing_left() -> None:
    _, rest = of([["delete_range", "", "k"], ["count", "", "j", ""]], [1, 5])
    assert rest == Scanned(b"j", b"", 5, None, False, [(b"k", b"")])


def test_of_nested_transactions_the_branch_that_ran_counts() -> None:
    nested = {"success": [["put", "k1", "=1"]], "failure": [["delete", "k2"], ["keys", "k"]]}
    (found,) = of([["txn", nested], ["get", "x"]], [[False, True, {"k3": "1-1"}], None])
    assert found == Scanned(b"k", b"l", 1, ["k3"], False, [single(b"k2")])


def test_of_a_range_that_ended_early_its_beginning_is_known() -> None:
    (found,) = of([["put", "k2", "=1"], ["range", "k"]], [None, {"k2": "=1", "k4": "=1", "": ""}])
    assert found == Scanned(b"k", b"k4\0", 1, ["k4"], False, [single(b"k2")])
    assert of([["put", "k2", "=1"], ["range", "k"]], [None, {"k4": "=1", "": ""}]) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([["revoke", "lease"], ["count", "k"]], [None, 1]),
        ([["txn", {"success": [["rule"]]}], ["count", "k"]], [[True, None], 1]),
        ([["put", "k", "=1"], ["count", "k"]], [None]),
        ([["put", "k", "=1"], ["count", "k"]], [None, None]),
    ],
)
def test_of_what_nobody_knows_nothing_is_said(asked: list[Any], told: list[Any]) -> None:
    assert of(asked, told) == []
