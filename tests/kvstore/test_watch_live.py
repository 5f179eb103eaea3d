"""Watches of a live cluster: every change of two shards in one order, while clients transfer and a leader dies."""

from __future__ import annotations

import http.client
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from client_sdk import Client, Compacted, Event
from kvstore import config
from kvstore.api.events import CHANGE, PROGRESS, EventReader
from kvstore.process import Handle
from multicast.types import Timestamp
from tests.kvstore.live import Replica, running_cluster, wait_until

ACCOUNTS = [f"account/{i}" for i in range(20)]
TRANSFERS = 60


def events(replica: Replica, query: str, **headers: str) -> Iterator[Event]:
    """Those of one stream, until it ends."""
    connection = http.client.HTTPConnection(replica.host, replica.port, timeout=60)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("GET", f"/v1/watch?{query}", headers=named)
        answer, reader = connection.getresponse(), EventReader()
        assert answer.status == 200, answer.read()
        while data := answer.read1():
            yield from reader.feed(data)
    finally:
        connection.close()


def transfer(replica: Replica, number: int) -> Timestamp:
    """Its version, once it is applied and answered."""
    one, other = ACCOUNTS[number % 20], ACCOUNTS[(7 * number + 1) % 20]
    operations = [{"op": "add", "key": one, "delta": -1}, {"op": "add", "key": other, "delta": 1}]
    return Timestamp.parse(replica.applied({"success": operations}).json["version"])


def test_a_watch_of_two_shards_is_the_order_though_a_leader_dies(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 2, 3, "white_box") as replicas, ExitStack() as opened_here:
        client = opened_here.enter_context(Client([f"http://{r.host}:{r.port}" for r in replicas], timeout=60))
        watcher = client.watch("account/", progress=True, timeout=60)
        assert next(watcher).kind == PROGRESS
        opened = replicas[4].applied({"success": [{"op": "put", "key": a, "value": "100"} for a in ACCOUNTS]})
        versions: list[Timestamp] = []

        def transfers() -> None:
            for number in range(TRANSFERS):
                if number == TRANSFERS // 3:
                    victim = Handle.of(config.replica_directory(tmp_path, 0))
                    assert victim is not None
                    victim.send(signal.SIGKILL)
                    victim.close()
                versions.append(transfer(replicas[3 + number % 3], number))

        working = threading.Thread(target=transfers)
        working.start()
        opened_here.callback(working.join)
        seen: list[Timestamp] = []
        state: dict[bytes, int] = {}
        for event in watcher:
            if event.kind == CHANGE:
                seen.append(event.version)
                state |= {change.key: int(change.value or b"") for change in event.changes}
            assert not seen or sum(state.values()) == 2000
            if not working.is_alive() and event.version >= versions[-1]:
                break
        working.join()
        assert seen[0] == Timestamp.parse(opened.json["version"]) and set(versions) <= set(seen)
        assert seen == sorted(set(seen)) and len(versions) == TRANSFERS
        begin = TRANSFERS // 4
        again = events(replicas[1], "prefix=account/&from=0-0", Last_Event_ID=str(seen[begin]))
        assert [next(e.version for e in again if e.kind == CHANGE) for _ in seen[begin + 1 :]] == seen[begin + 1 :]


def test_a_watch_from_beyond_the_history_is_compacted(tmp_path: Path) -> None:
    running = running_cluster(tmp_path, 1, 1, "white_box", history_ms=1, commit_interval_ms=10)
    with running as [kv], Client(f"http://{kv.host}:{kv.port}", timeout=60) as client:
        first = client.put("a", "1")
        wait_until(lambda: bool(client.put("a", "2")) and refused(client, first))


def refused(client: Client, after: Timestamp) -> bool:
    """Whether nobody knows any more what followed."""
    try:
        return next(client.watch(after=after)).kind != CHANGE
    except Compacted:
        return True


def test_what_is_wrong_is_said_before_the_stream_begins(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 1, 1, "white_box", watches_max=1) as [kv]:
        assert kv("GET", "/v1/watch?from=x").json["field"] == "query.from"
        assert kv("GET", "/v1/watch", Last_Event_ID="x").json["field"] == "Last-Event-ID"
        assert kv("GET", "/v1/watch?from=ffffffffffffff-0").json["code"] == "future"
        assert kv("HEAD", "/v1/watch").headers["Content-Type"] == "text/event-stream"
        first = events(kv, "")
        assert next(first).kind == PROGRESS
        assert kv("GET", "/v1/watch").json["code"] == "overloaded"
        first.close()
