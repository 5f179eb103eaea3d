"""A live cluster, one of whose leaders has a clock that is five minutes ahead for a while."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.kvstore.live import Replica, answered, leader_of, running_cluster, wait_until

HERE = Path(__file__).parent / "wrong_clock"
AHEAD_S = 10.0


def _puts(replicas: list[Replica], begin: int) -> None:
    """Through every replica, to both shards."""
    for number in range(begin, begin + 12):
        answer = answered(lambda number=number: replicas[number % 6]("PUT", f"/v1/kv/key{number}", b"1"))
        assert answer.status in (200, 201, 204), (number, answer.status, answer.body)


@pytest.mark.parametrize("protocol", ["white_box", pytest.param("primcast", marks=pytest.mark.full)])
def test_both_shards_serve_while_a_leaders_clock_is_five_minutes_ahead_and_afterwards(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ten seconds: longer than everything that a replica does about it."""
    monkeypatch.setenv("WRONG_CLOCKS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])))
    with running_cluster(tmp_path / "cluster", 2, 3, protocol) as replicas:

        def is_off() -> bool:
            off: bool = replicas[leader]("GET", "/v1/cluster").json["replica"]["clock"]["off"]
            return off

        _puts(replicas, 0)
        leader = leader_of(replicas[0], 0)
        other = replicas[(leader + 1) % 3]
        assert not is_off()
        (tmp_path / f"ahead-{leader}").write_text("300")
        begun, numbers = time.monotonic(), iter(range(1_000, 1_000_000, 12))

        def has_been_off() -> bool:
            _puts(replicas, next(numbers))
            return time.monotonic() > begun + AHEAD_S

        wait_until(lambda: is_off() and leader_of(other, 0) != leader)
        wait_until(has_been_off, pause_s=0.25)
        (tmp_path / f"ahead-{leader}").write_text("0")
        wait_until(lambda: not is_off())
        _puts(replicas, 200)
        log = tmp_path / "cluster" / "replicas" / str(leader) / "log"
        wait_until(lambda: "the wall clock is right again" in log.read_text(errors="replace"))
        assert "the wall clock is off" in log.read_text(errors="replace")
