"""Slots that move between the shards of a live cluster, while clients go on."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from kvstore import cli, config, growing
from kvstore.api.cluster import ClusterJson
from kvstore.api.shard_map import SLOTS, ShardMap, slot_of
from kvstore.cluster import ClusterError, fetch
from kvstore.process import Handle
from tests.kvstore.live import Replica, answered, make_cluster, running_cluster, wait_until

ACCOUNTS = [f"account/{i}" for i in range(20)]


def total(kv: Replica) -> int:
    """Of all accounts, at one point of the order."""
    answer = answered(lambda: kv.txn({"success": [{"op": "get", "key": account} for account in ACCOUNTS]}))
    assert answer.status == 200, answer
    return sum(int(result["value"]) for result in answer.json["results"])


def test_all_slots_of_a_shard_move_under_transfers_and_the_death_of_a_replica(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, 3, "white_box") as replicas:
        kv = replicas[4]
        kv.applied({"success": [{"op": "put", "key": a, "value": "100"} for a in ACCOUNTS]})
        added = kv.applied({"success": [{"op": "add", "key": ACCOUNTS[0], "delta": 0}]})
        done = threading.Event()
        seen: list[int] = []

        def transfer() -> None:
            for i in range(10_000):
                if done.is_set():
                    return
                one, other = ACCOUNTS[i % 20], ACCOUNTS[(7 * i + 1) % 20]
                operations = [{"op": "add", "key": one, "delta": -1}, {"op": "add", "key": other, "delta": 1}]
                status = replicas[3 + i % 3].txn({"success": operations}).status
                assert status in (200, 503, 504), status
                if i % 10 == 0:
                    seen.append(total(kv))

        transfers = threading.Thread(target=transfer)
        transfers.start()
        victim = Handle.of(config.replica_directory(tmp_path, 0))
        assert victim is not None
        victim.send(signal.SIGKILL)
        victim.close()
        said: list[str] = []
        growing.move_slots(tmp_path, 0, 1, [(0, SLOTS // 2 - 1)], said.append)
        wait_until(lambda: len(seen) > 3)
        done.set()
        transfers.join()
        assert set(seen) == {2000} and "moved from shard 0 to shard 1" in said[0]

        def told(replica: Replica) -> ShardMap:
            return ShardMap.from_json(replica("GET", "/v1/cluster").json["shard_map"])

        wait_until(lambda: told(kv).shards == (1,) and told(kv).version > 1)
        wait_until(lambda: told(replicas[1]) == told(kv))
        repeated = {"Idempotency_Key": added.headers["Idempotency-Key"]}
        adds_nothing = {"success": [{"op": "add", "key": ACCOUNTS[0], "delta": 0}]}
        again = answered(lambda: replicas[1].txn(adds_nothing, **repeated))
        assert again.json["version"] == added.json["version"], "its id went with its slot"
        assert total(replicas[1]) == 2000
        again_all = b'{"source": 0, "target": 1, "slots": [[5, 5]]}'
        refused = answered(lambda: replicas[1]("POST", "/v1/moves", again_all))
        assert refused.status == 422 and "not all of these slots are the source's" in refused.json["detail"]
        growing.move_slots(tmp_path, 0, 1, [(0, SLOTS // 2 - 1)], said.append)
        assert said[1:] == ["shard 1 has these slots already"]
        assert slot_of(ACCOUNTS[0].encode()) < SLOTS


def test_of_a_move_whose_answer_was_lost_nobody_says_that_nothing_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    arrives = False

    def losing(url: str, *rest: Any) -> tuple[int, bytes]:
        if url.endswith("/v1/moves"):
            if arrives:
                fetch(url, *rest)
            return 409, b'{"detail": "lost", "retryable": false}'
        return fetch(url, *rest)

    monkeypatch.setattr(growing, "fetch", losing)
    with running_cluster(tmp_path, 2, 1, "white_box"):
        with pytest.raises(ClusterError, match=r"not known to be moved, after 0 step.*lost; the same command"):
            growing.move_slots(tmp_path, 0, 1, [(0, 99)], said.append)
        arrives = True
        growing.move_slots(tmp_path, 0, 1, [(0, 99)], said.append)
    assert said == ["shard 1 has these slots already"]


def test_a_move_goes_on_though_a_replica_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is waited for once; by a clock that only waiting moves."""
    made = make_cluster(tmp_path, 2, 2, "white_box")
    steps, now = [b"true"] * 5 + [b"false"], 1000.0
    asked: list[str] = []

    def hanging(url: str, seconds: float = 2.0, *_: Any) -> tuple[int, bytes]:
        nonlocal now
        asked.append(url)
        if url.startswith((made.replicas[0].url, made.replicas[1].url)):
            now += seconds
            raise TimeoutError("timed out")
        return 200, b'{"more": %b}' % steps.pop(0)

    monkeypatch.setattr(growing, "fetch", hanging)
    monkeypatch.setattr(growing, "foreign", lambda *_: "")
    monkeypatch.setattr(growing.time, "monotonic", lambda: now)
    monkeypatch.setattr(growing.time, "sleep", lambda _: None)
    assert growing._move(made, 0, 1, [(0, 9)], lambda: False) == 6
    assert asked == [f"{made.replicas[number].url}/v1/moves" for number in (0, 1, *[2] * 6)]


def test_of_replicas_that_know_different_moves_the_one_counts_that_has_come_furthest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the first one was just started and takes what was moved away since for what is moved already."""
    made = make_cluster(tmp_path, 2, 3, "white_box")
    positions: dict[str, int | None] = {}

    def described(urls: list[str], cluster_id: str) -> ClusterJson:
        position = positions.get(urls[0])
        if position is None:
            raise ClusterError("no answer")
        store = {"store": {"position": position, "moves": {"old": position == 9}}}
        first = 0 if position == 9 else 1
        return ClusterJson(cluster_id=cluster_id, shard_map=ShardMap.even([first]).to_json(), shards=[], replica=store)

    monkeypatch.setattr(growing, "described", described)
    with pytest.raises(ClusterError, match="shard 0: no answer"):
        growing._told_by(made, 0)
    assert not growing._has(made, 0, [(0, 9)])
    positions = {made.replicas[0].url: 5, made.replicas[2].url: 9, made.replicas[3].url: 20}
    assert growing._has(made, 0, [(0, 9)]) and growing._moves_of(made, 0) == {"old": True}


def test_what_cannot_be_moved_is_refused_and_what_is_said_twice_moves_once(tmp_path: Path) -> None:
    """Nobody is told to say the same again."""
    said: list[str] = []
    with running_cluster(tmp_path, 3, 1, "white_box"):
        refused = r"^refused, after 0 step\(s\) that are known: .*not all of these slots are the source's$"
        for source, target, says in ((0, 0, "not from 0 to 0$"), (0, 2, refused)):
            with pytest.raises(ClusterError, match=says):
                growing.move_slots(tmp_path, source, target, [(SLOTS // 2, SLOTS // 2 + 9)], said.append)
        growing.move_slots(tmp_path, 0, 1, [(0, 9), (5, 20)], said.append)
    assert said == ["moved from shard 0 to shard 1, in 1 step(s)"]


@pytest.mark.parametrize("slots", [(0, SLOTS), (-1, 3), (5, 2)])
def test_slots_that_there_are_not_are_refused(tmp_path: Path, slots: tuple[int, int]) -> None:
    make_cluster(tmp_path, 2, 1, "white_box")
    with pytest.raises(ClusterError, match=f"nothing was moved: slots are from 0 to {SLOTS - 1}, .* not {slots[0]}-"):
        growing.move_slots(tmp_path, 0, 1, [(0, 1), slots], str)


def test_what_was_begun_to_move_goes_before_another_move_begins_or_when_it_is_said(tmp_path: Path) -> None:
    """In steps as short as those of a move, and from both shards."""
    said: list[str] = []
    with running_cluster(tmp_path, 3, 1, "white_box") as replicas:

        def put(first: int) -> None:
            rows = [{"op": "put", "key": f"k{i}", "value": "v"} for i in range(first, first + 1000)]
            assert replicas[0].txn({"success": rows}).status == 200

        def step(target: int) -> None:
            body = json.dumps({"source": 0, "target": target, "slots": [[100, 4000]]}).encode()
            answer = replicas[0]("POST", "/v1/moves", body, Content_Type="application/json")
            assert answer.status == 200 and answer.json["more"]

        def moves(shard: int) -> Any:
            return replicas[shard]("GET", "/v1/cluster").json["replica"]["store"]["moves"]

        for first in range(0, 9000, 1000):
            put(first)
        step(1)
        wait_until(lambda: moves(0)["leaving"]["target"] == 1 and moves(1)["staged_from"] == [0])
        with pytest.raises(ClusterError, match="nothing was given up: shard 0 has begun a move to shard 1 since"):
            growing.give_up(tmp_path, 0, 2, said.append)
        growing.move_slots(tmp_path, 0, 2, [(0, 99)], said.append)
        assert said[0] == "what shard 0 has begun to move to shard 1 is given up" and "to shard 2, in" in said[1]
        nothing = {"leaving": None, "staged_from": [], "old": False}
        wait_until(lambda: [moves(shard) for shard in range(3)] == [nothing] * 3)
        step(2)
        with pytest.raises(SystemExit) as ended:
            cli.main(["cluster", "move-slots", str(tmp_path), "--from", "0", "--to", "2", "--abandon"])
        assert ended.value.code == 0
        wait_until(lambda: [moves(shard) for shard in range(3)] == [nothing] * 3)
        growing.give_up(tmp_path, 0, 2, said.append)
        assert said[2:] == ["no such move was begun"]
        owners = ShardMap.from_json(replicas[0]("GET", "/v1/cluster").json["shard_map"]).slots
        assert owners[:101] == (2,) * 100 + (0,)
        assert len(replicas[0]("GET", "/v1/kv?prefix=k&limit=1000").json["entries"]) == 1000
