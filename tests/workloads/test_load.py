"""The load generator: its HTTP client reads answers however they are cut; open loop hides no wait; YCSB's shapes."""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.amounts import examples
from workloads.bench.connection import LOST, Connection, content_length, request_bytes
from workloads.bench.grpc import FAILED, GrpcConnection, call, field, frame
from workloads.bench.load import Load, Operation
from workloads.bench.ycsb import MIXES, Zipfian, chooser, key_of, scatter


def answer(status: int, body: bytes, framing: str) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: text/plain\r\n".encode()
    if framing == "chunked":
        chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
        trailer = b"X-Trailer: y\r\n" if status == 503 else b""
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n" + trailer + b"\r\n"
    return head + f"{framing}: {len(body)}\r\nDate: x\r\n\r\n".encode() + body


BODIES = st.text("ab0", max_size=40).map(str.encode)


@examples(40)
@given(
    st.lists(st.tuples(st.sampled_from([200, 201, 404, 503]), BODIES), min_size=1, max_size=5),
    st.sampled_from(["Content-Length", "content-length", "chunked"]),
    st.data(),
)
def test_answers_are_read_however_they_are_cut(wanted, framing: str, data) -> None:
    ours, theirs = socket.socketpair()
    connection, seen = Connection(ours), []
    with ours, theirs:
        for status, body in wanted:
            assert connection.send(b"x")
            assert connection.receive() is None
            rest = answer(status, body, framing)
            while rest:
                size = data.draw(st.integers(1, len(rest)))
                theirs.sendall(rest[:size])
                rest = rest[size:]
                told = connection.receive()
                assert (told is None) == bool(rest)
            seen.append(told)
    assert seen == [status for status, _ in wanted]


def test_a_broken_connection_is_lost() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    with ours:
        theirs.sendall(b"HTTP/1.1 200 OK\r\nContent-Le")
        assert connection.receive() is None
        theirs.close()
        assert connection.receive() == LOST
        assert not connection.send(b"x")


def test_requests_say_how_long_they_are() -> None:
    data = request_bytes("PUT", "/v1/kv/k", "A: b\r\n", b"12345")
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /v1/kv/k HTTP/1.1\r\nHost: bench\r\nA: b\r\n")
    assert content_length(head) == len(body) == 5


def test_a_server_that_stands_still_is_seen_by_all_who_were_due() -> None:
    """Open loop at 200/s; the server answers nothing for 0.4 s after the first came: some 80 requests wait, those due
    first longest, and more if the machine stands still, too. A closed loop of one client would count one that is
    slow."""
    listener = socket.create_server(("127.0.0.1", 0))
    stood_still = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(65536):
                if not stood_still.is_set():
                    threading.Event().wait(0.4)
                    stood_still.set()
                connection.sendall(answer(200, b"", "Content-Length"))

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    request = request_bytes("GET", "/", "")
    tally = Load([url], 1, lambda: Operation("get", ((0, request),)), seconds=1.0, warmup=0.0, rate=200.0).run()
    thread.join()
    listener.close()
    assert stood_still.is_set()
    waited = [ns for ns in tally.latencies["get"] if ns > 100e6]
    assert len(waited) > 40
    assert tally.succeeded == pytest.approx(200, rel=0.3)


def test_zipfian_draws_ranks_by_their_weight() -> None:
    rng, count, draws = random.Random(1), 100, 50_000
    zipfian = Zipfian(rng, count)
    seen = Counter(zipfian.draw(count) for _ in range(draws))
    zeta = sum(1 / (rank + 1) ** 0.99 for rank in range(count))
    assert set(seen) <= set(range(count))
    for rank in (0, 1):
        assert seen[rank] / draws == pytest.approx(1 / (rank + 1) ** 0.99 / zeta, rel=0.05)
    for low, high in ((2, 10), (10, 50), (50, 100)):
        expected = sum(1 / (rank + 1) ** 0.99 for rank in range(low, high)) / zeta
        assert sum(seen[rank] for rank in range(low, high)) / draws == pytest.approx(expected, rel=0.1)


def test_latest_prefers_what_was_inserted_last() -> None:
    choose = chooser("latest", random.Random(1), 1000)
    first = Counter(choose(1000) for _ in range(5000))
    later = Counter(choose(2000) for _ in range(5000))
    assert first.most_common(1)[0][0] == 999
    assert later.most_common(1)[0][0] == 1999
    assert sum(n for record, n in later.items() if record >= 1900) > 2500


def test_scrambled_zipfian_is_skewed_and_anywhere() -> None:
    choose = chooser("zipfian", random.Random(1), 1000)
    seen = Counter(choose(1000) for _ in range(20_000))
    popular = [record for record, _ in seen.most_common(10)]
    assert sum(seen[record] for record in popular) > 20_000 * 0.3
    assert popular[0] == scatter(0) % 1000
    assert max(popular) - min(popular) > 300


def test_uniform_is_even() -> None:
    choose = chooser("uniform", random.Random(1), 100)
    seen = Counter(choose(100) for _ in range(20_000))
    assert min(seen.values()) > 120 and max(seen.values()) < 280


def test_workloads_are_those_of_the_paper() -> None:
    assert {name: mix.shares.get("read", 0) for name, mix in MIXES.items()} == {
        "load": 0, "a": 0.5, "b": 0.95, "c": 1.0, "d": 0.95, "e": 0, "f": 0.5,
    }  # fmt: skip
    assert all(sum(mix.shares.values()) == pytest.approx(1) for mix in MIXES.values())
    assert len({key_of(record) for record in range(1000)}) == 1000


def h2(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame(kind, flags, stream, payload)


@examples(40)
@given(st.lists(st.sampled_from(["answered", "failed", "reset"]), min_size=1, max_size=4), st.data())
def test_calls_are_answered_however_their_frames_are_cut(wanted, data) -> None:
    """Between them are settings, pings and windows, as servers send them."""
    ours, theirs = socket.socketpair()
    connection = GrpcConnection(ours)
    answers = {
        "answered": (lambda s: h2(1, 4, s, b"h") + h2(0, 0, s, b"message") + h2(1, 5, s, b"trailers"), 200),
        "failed": (lambda s: h2(1, 5, s, b"trailers"), FAILED),
        "reset": (lambda s: h2(0, 0, s, b"message") + h2(3, 0, s, bytes(4)), FAILED),
    }
    with ours, theirs:
        assert theirs.recv(65536).startswith(b"PRI * HTTP/2.0")
        for number, what in enumerate(wanted):
            assert connection.send(call("/a.B/C", b"message"))
            make, status = answers[what]
            rest = h2(4, 0, 0) + h2(6, 0, 0, b"12345678") + h2(8, 0, 0, bytes(4)) + make(1 + 2 * number)
            while rest:
                size = data.draw(st.integers(1, len(rest)))
                theirs.sendall(rest[:size])
                rest = rest[size:]
                told = connection.receive()
                assert (told is None) == bool(rest)
            assert told == status
        said = theirs.recv(65536)
        assert said.count(h2(4, 1, 0)) == said.count(h2(6, 1, 0, b"12345678")) == len(wanted)
        theirs.sendall(h2(7, 0, 0, bytes(8)))
        assert connection.receive() == LOST


def test_a_call_is_a_post_with_one_length_prefixed_message() -> None:
    request = call("/etcdserverpb.KV/Put", field(1, b"k") + field(3, 300))
    headers = request[1 : 1 + request[0]]
    assert b"/etcdserverpb.KV/Put" in headers and b"application/grpc" in headers
    assert request[1 + request[0] :] == b"\x00" + (6).to_bytes(4, "big") + b"\x0a\x01k" + b"\x18\xac\x02"
