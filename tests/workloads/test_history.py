"""Histories are what the audit will read: well-formed, in order, never mixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore import config
from kvstore.api.model import Consistency
from kvstore.core.audit import HistoryEvent
from multicast.types import Timestamp, new_message_id
from workloads.history import HistoryWriter, read_where


def read(path: Path) -> list[HistoryEvent]:
    return [msgspec.json.decode(line, type=HistoryEvent) for line in path.read_bytes().splitlines()]


def test_events_can_be_read_back_as_the_audits_schema(tmp_path: Path) -> None:
    first, second = new_message_id(1_700_000_000_000_000, 1), new_message_id(1_700_000_000_000_001, 2)
    with HistoryWriter.create(tmp_path, "h") as history:
        history.invoke(0, first, "read_all")
        history.invoke(1, second, "transfer")
        seen = {"a": Timestamp(16, 1), "b": Timestamp(0, 0)}
        history.ok(0, first, "read_all", Timestamp(255, 2), succeeded=True, reads=seen, value={"a": 5, "b": 0})
        history.info(1, second, "transfer", "no answer")
    events = read(tmp_path / "history" / "h.jsonl")
    assert [(e.process, e.type) for e in events] == [(0, "invoke"), (1, "invoke"), (0, "ok"), (1, "info")]
    done = events[2]
    assert (done.version, done.reads, done.value) == ("ff-2", {"a": "10-1", "b": "0-0"}, {"a": 5, "b": 0})
    assert done.id == "018bcfe5-6800-7000-8000-000000000001"
    assert [e.at_us for e in events] == sorted(e.at_us for e in events)


def test_an_invocation_is_in_the_file_before_it_returns(tmp_path: Path) -> None:
    history = HistoryWriter.create(tmp_path, "h")
    history.invoke(0, new_message_id(1, 1), "put")
    assert len(read(history.path)) == history.events == 1
    history.close()
    history.close()


def test_one_line_of_transactions_says_of_which_cluster_the_history_is(tmp_path: Path) -> None:
    made = config.new_cluster(shards=1, replicas=1, protocol="white_box", cluster_id="ab" * 16)
    for directory, cluster in ((tmp_path / "run", "ab" * 16), (tmp_path / "elsewhere", "")):
        directory.mkdir()
        if cluster:
            config.save(directory, made)
        with HistoryWriter.create(directory, "h") as history:
            history.begin_watch(new_message_id(1, 1), b"", b"", None)
            for number in (2, 3):
                history.invoke(0, new_message_id(number, number), "put")
        assert [event.cluster for event in read(history.path)] == ["", cluster, ""]


def test_histories_are_never_mixed(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with HistoryWriter.create(tmp_path, "bank") as history:
            names.append(history.path.name)
    assert names == ["bank.jsonl", "bank-2.jsonl", "bank-3.jsonl"]
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path / "history" / "bank.jsonl")


@pytest.mark.parametrize(
    ("read_at", "consistency", "where"),
    [
        ("1/7/5-0", "linearizable", {"shard": 1, "position": 7}),
        ("1/0/5-0", "linearizable", {"shard": 1, "position": 0}),
        ("1/0/5-0", "stale", {"shard": 1, "position": 0}),
        ("1/0/0-0", "stale", {"places": {1: 0}}),
        ("1/7/5-0", "snapshot", {"places": {1: 7}}),
        ("0/3,1/7", "linearizable", {"places": {0: 3, 1: 7}}),
        ("", "linearizable", {"shard": 0}),
        ("", "snapshot", {"at": "5-0"}),
    ],
)
def test_a_read_without_an_id_says_where_it_was_read(read_at: str, consistency: Consistency, where: Any) -> None:
    """Position 0: ordered, unless nothing was ever delivered there."""
    version = Timestamp.parse((read_at or "//5-0").rpartition("/")[2]) if "," not in read_at else Timestamp(5, 0)
    assert read_where(read_at, consistency, version) == where
