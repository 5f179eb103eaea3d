"""The benchmark counts what happened, and its lean HTTP client reads answers however they are cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tests.client_sdk.fake import FakeCluster
from workloads import bench
from workloads.lean_http import LOST, Connection, content_length, request_bytes

pytestmark = pytest.mark.timeout(60)


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return False


def answer(status: int, body: bytes, header: str = "Content-Length") -> bytes:
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\n{header}: {len(body)}\r\nDate: x\r\n\r\n".encode() + body
    )


@given(
    st.lists(st.tuples(st.sampled_from([200, 201, 404, 503]), st.binary(max_size=40)), min_size=1, max_size=5),
    st.sampled_from(["Content-Length", "content-length"]),
    st.data(),
)
def test_answers_are_read_however_they_are_cut(wanted, header: str, data) -> None:
    connection, seen = Connection(), []
    connection.connection_made(FakeTransport())
    for status, body in wanted:
        assert connection.usable
        connection.request(b"x", seen.append)
        assert not connection.usable
        rest = answer(status, body, header)
        while rest:
            size = data.draw(st.integers(1, len(rest)))
            connection.data_received(rest[:size])
            rest = rest[size:]
    assert seen == [status for status, _ in wanted]


def test_a_broken_connection_is_reported_once() -> None:
    connection, seen = Connection(), []
    connection.connection_made(FakeTransport())
    connection.request(b"x", seen.append)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Le")
    connection.connection_lost(None)
    connection.connection_lost(None)
    assert seen == [LOST]
    assert not connection.usable


def test_requests_say_how_long_they_are() -> None:
    data = request_bytes("PUT", "/v1/kv/k", "A: b\r\n", b"12345")
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /v1/kv/k HTTP/1.1\r\nHost: bench\r\nA: b\r\n")
    assert content_length(head) == len(body) == 5


async def measured(change: Callable[[FakeCluster], None] = lambda _: None, **options) -> bench.Report:
    async with FakeCluster() as cluster:
        change(cluster)
        return await bench.measure(cluster.urls, seconds=1.0, warmup=0.1, **options)


async def test_every_kind_is_measured_at_every_number_of_clients() -> None:
    report = await measured(clients=(1, 4))
    assert [(line.kind, line.clients) for line in report.lines] == [(k, n) for k in bench.KINDS for n in (1, 4)]
    for line in report.lines:
        assert line.errors == {}
        assert line.requests > 20
        assert 0 < line.p50_ms <= line.p95_ms <= line.p99_ms <= line.max_ms
        assert line.fdatasync_ms == 0.5
    assert report.cluster["durability"] == "none"
    told = json.loads(bench.to_json(report))
    assert told["machine"]["cores"] >= 1
    assert told["versions"]["python"].startswith("3.")
    console = Console(width=140, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    bench.show(report, console)
    text = console.export_text()
    console.file.close()
    for word in ("durability none", "fdatasync", "p99 ms", "in all", "two comparisons and two puts on two shards"):
        assert word in text


async def test_refusals_are_counted_as_what_they_are() -> None:
    def refuse(cluster: FakeCluster) -> None:
        # The preloading is to succeed: it tries again elsewhere.
        cluster.replicas[0].always = "not_ready"

    report = await measured(refuse, clients=(2,), kinds=("get",))
    (line,) = report.lines
    assert line.errors["503"] > 5
    assert line.requests > 0


async def test_broken_connections_are_counted_and_opened_again() -> None:
    def drop(cluster: FakeCluster) -> None:
        for replica in cluster.replicas:
            replica.faults.extend(([""] * 100 + ["reset_after"]) * 20)

    report = await measured(drop, clients=(2,), kinds=("put",))
    (line,) = report.lines
    assert line.errors.keys() == {"lost"}
    assert line.requests > line.errors["lost"]


@pytest.mark.parametrize("options", [{"kinds": ("push",)}, {"clients": (0,)}, {"clients": ()}, {"value_bytes": 0}])
async def test_bad_options_are_refused(options) -> None:
    with pytest.raises(ValueError, match=r"kinds|clients|value_bytes"):
        await bench.measure("http://127.0.0.1:1", **options)
