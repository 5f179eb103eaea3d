"""What requests of the SDK say of how fresh an answer must be, and what is refused before anything is sent."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from client_sdk import (
    ZERO,
    Changed,
    Conflict,
    Get,
    InvalidRequest,
    KvError,
    OutcomeUnknown,
    Put,
    ResultsForgotten,
    new_id,
    requests,
)
from client_sdk.keyspace import ALL_KEYS
from multicast.types import Timestamp


@pytest.mark.parametrize(
    ("how", "query"),
    [
        ({}, ""),
        ({"consistency": "linearizable"}, ""),
        ({"consistency": "snapshot"}, "consistency=snapshot"),
        ({"consistency": "stale", "max_age": 0.5}, "consistency=stale&max_age_ms=500"),
    ],
)
def test_how_fresh_a_read_must_be_stands_in_its_query(how: dict[str, Any], query: str) -> None:
    assert ALL_KEYS.get("k", **how).path == "/v1/kv/k" + (f"?{query}" if query else "")
    assert ALL_KEYS.count("k", **how).path.endswith(f"count_only=true{'&' if query else ''}{query}")
    assert ALL_KEYS.txn(success=[Get("k")], **how).path == "/v1/txn" + (f"?{query}" if query else "")


def test_a_version_stands_in_its_query() -> None:
    assert ALL_KEYS.get("k", version=Timestamp(16, 1)).path == "/v1/kv/k?version=10-1"


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"consistency": "eventual"}, "consistency"),
        ({"consistency": "stale"}, "max_age"),
        ({"max_age": 1.0}, "max_age"),
        ({"consistency": "stale", "max_age": -1}, "max_age"),
        ({"consistency": "stale", "max_age": 4_000}, "max_age"),
    ],
)
def test_what_makes_no_sense_is_not_sent(how: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        ALL_KEYS.get("k", **how)
    assert error.value.field == field


@pytest.mark.parametrize("ttl", [0, -1, 0.5, 86_401, float("inf"), float("nan")])
def test_a_lease_has_a_time_to_live(ttl: float) -> None:
    with pytest.raises(InvalidRequest, match=r"^ttl: from 1 to 86400 seconds, not") as error:
        requests.grant_lease(ttl)
    assert error.value.field == "ttl"


def test_a_write_is_neither_old_nor_new() -> None:
    with pytest.raises(InvalidRequest, match="consistency: of what only reads"):
        ALL_KEYS.txn(success=[Put("k", "v")], consistency="snapshot")


@pytest.mark.parametrize(
    "error",
    [
        OutcomeUnknown("late", code="c", status=503, field="f", message_id=new_id()),
        Conflict([Changed(b"k", ZERO, Timestamp(16, 1)), Changed(b"l", ZERO, None)]),
        ResultsForgotten(True, Timestamp(16, 1)),
    ],
)
def test_errors_go_from_process_to_process(error: KvError) -> None:
    """As pools of processes send them: what pickles them makes copies, too."""
    there = copy.copy(error)
    assert type(there) is type(error) and str(there) == str(error) and vars(there) == vars(error)
