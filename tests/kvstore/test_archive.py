"""An archive keeps everything, until somebody says how much it is to keep."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kvstore import config, identity
from kvstore.archive import DAY_SECONDS, prune
from kvstore.config import ConfigError
from multicast.records import SegmentHeader
from multicast.segments import segment_name
from tests.kvstore.live import make_cluster

SIZE = 100


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """Of two replicas five segments each, a day apart, the last of them from now; replica 1 still has its third."""
    make_cluster(tmp_path, 1, 3, "white_box")
    for replica in (0, 1):
        folder = tmp_path / "archive" / "replicas" / str(replica) / "journal-7"
        folder.mkdir(parents=True)
        for number in range(5):
            path = folder / segment_name(number)
            path.write_bytes(bytes(SIZE))
            at = time.time() - (4 - number) * DAY_SECONDS - replica
            os.utime(path, (at, at))
    held = config.replica_directory(tmp_path, 1) / "journal"
    held.mkdir()
    (held / segment_name(2)).write_bytes(bytes(SIZE))
    return tmp_path


def left(directory: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"0": [], "1": []}
    for path in sorted(directory.glob("archive/replicas/*/journal-7/*.seg")):
        found[path.parent.parent.name].append(int(path.name[8:16]))
    return found


@pytest.mark.parametrize(
    ("keep_bytes", "keep_days", "expected"),
    [
        (None, None, {"0": [0, 1, 2, 3, 4], "1": [0, 1, 2, 3, 4]}),
        (None, float("nan"), {"0": [0, 1, 2, 3, 4], "1": [0, 1, 2, 3, 4]}),
        (7 * SIZE, None, {"0": [1, 2, 3, 4], "1": [2, 3, 4]}),
        (None, 1.5, {"0": [3, 4], "1": [2, 3, 4]}),
        (4 * SIZE, 1.5, {"0": [3, 4], "1": [2, 4]}),
    ],
)
def test_the_oldest_go_but_for_what_a_journal_still_has(
    archived: Path, keep_bytes: int | None, keep_days: float | None, expected: dict[str, list[int]]
) -> None:
    before, said = left(archived), list[str]()
    count = prune(archived, keep_bytes, keep_days, True, said.append)
    assert left(archived) == before
    assert prune(archived, keep_bytes, keep_days, False, said.append) == count == len(said) - count
    assert left(archived) == expected


def test_what_another_cluster_has_in_the_same_archive_stays(archived: Path) -> None:
    """As one that was restored with the configuration of the first, if that names the archive by its whole path."""
    ours, theirs = config.load(archived).cluster, bytes(16)
    for number in range(5):
        path = archived / "archive" / "replicas" / "0" / "journal-7" / segment_name(number)
        header, at = SegmentHeader(theirs if number < 2 else ours, 0, 0, number, 0).encode(), path.stat().st_mtime
        path.write_bytes(header.ljust(SIZE, b"\0"))
        os.utime(path, (at, at))
    prune(archived, 4 * SIZE, None, False, lambda _: None)
    assert left(archived) == {"0": [0, 1, 3, 4], "1": [2, 4]}
    prune(archived, None, 0.0, False, lambda _: None)
    assert left(archived) == {"0": [0, 1], "1": [2]}


def test_two_may_make_it_smaller_at_a_time(archived: Path) -> None:
    """As timers of machines do that share it: what the other one has deleted is gone, and that is all."""

    def other(_: str) -> None:
        for path in archived.glob("archive/replicas/0/*/*.seg"):
            path.unlink()

    assert prune(archived, 0, None, False, other) == 9
    assert left(archived) == {"0": [], "1": [2]}


def test_what_somebody_has_put_aside_there_stays(archived: Path) -> None:
    aside = archived / "archive" / "replicas" / "1.old"
    os.rename(aside.with_name("1"), aside)
    assert prune(archived, 0, None, False, lambda _: None) == 5
    assert len(list(aside.glob("journal-7/*.seg"))) == 5


def test_where_there_is_no_archive_it_is_said(tmp_path: Path) -> None:
    made = config.new_cluster(shards=1, replicas=1, protocol="white_box", cluster_id="0" * 32, archive="none")
    identity.create(tmp_path, made)
    with pytest.raises(ConfigError, match="the cluster has no archive"):
        prune(tmp_path, 0, None, True, print)
