"""Who dies in the midst of an answer, and who never spoke HTTP, is to the commands as who does not answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from kvstore import cli, growing
from kvstore.api.cluster import ReplicaJson, ShardJson
from kvstore.backup import take
from kvstore.cluster import ClusterError, fetch, is_ready, why_not_ready
from kvstore.config import load
from kvstore.identity import create
from kvstore.status import statuses
from kvstore.storage.cut import CutRows, encode_cut_rows
from multicast.types import Timestamp
from tests.kvstore.live import make_cluster

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
HALF_REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 100\r\n\r\nhalf"
HALF_CHUNK = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf"
HALF_HEAD = b"HTTP/1.1 200 OK\r\nContent-Le"
BANNER = b"SSH-2.0-OpenSSH_9.6\r\n"
LIST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
NESTED = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100_000
BROKEN = [
    pytest.param(answer, id=name)
    for name, answer in {
        "half": HALF, "half-refused": HALF_REFUSED, "half-chunk": HALF_CHUNK, "half-head": HALF_HEAD, "banner": BANNER
    }.items()
]  # fmt: skip


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port where everybody gets this, and then the end of the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):  # it is closed
                while True:
                    connection, _ = listening.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("answer", [one for one in BROKEN if one.id != "half-head"])
def test_half_an_answer_is_none(answer: bytes) -> None:
    with answering(answer) as port, pytest.raises(OSError, match=r"broke off|no answer in HTTP: .*SSH"):
        fetch(f"http://127.0.0.1:{port}/readyz", 60.0)


def states(directory: Path, port: int) -> list[str]:
    """Of a cluster that does not run, and has this port for its first replica."""
    made = make_cluster(directory, 1, 3, "white_box")
    one = msgspec.structs.replace(made.replicas[0], http_port=port)
    create(directory, msgspec.structs.replace(made, replicas=(one, *made.replicas[1:])))
    return [line.state for line in statuses(directory)]


@pytest.mark.parametrize("answer", [one for one in BROKEN if one.id != "half-head"])
def test_the_status_of_a_cluster_tells_the_others_when_another_program_has_the_port(
    tmp_path: Path, answer: bytes
) -> None:
    with answering(answer) as port:
        assert states(tmp_path, port) == ["down"] * 3
        assert not is_ready(load(tmp_path).replicas[0])


@pytest.mark.parametrize("answer", [pytest.param(LIST, id="list"), pytest.param(NESTED, id="nested")])
def test_and_when_that_answers_in_json(tmp_path: Path, answer: bytes) -> None:
    with answering(answer) as port:
        assert states(tmp_path, port) == ["down"] * 3


@pytest.mark.parametrize("answer", BROKEN)
def test_a_backup_asks_another_replica_for_the_portion_that_broke_off(
    tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take, "PAUSE_SECONDS", 0.0)
    cut = Timestamp(7, 0)
    body = encode_cut_rows(CutRows(1, cut, b"d" * 16, [(b"k", b"v")], b""))
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with answering(answer) as dying, answering(whole) as living, contextlib.ExitStack() as opened:
        replicas = [ReplicaJson(n, f"http://127.0.0.1:{port}") for n, port in enumerate((dying, living))]
        fetched = take._Fetch(ShardJson(id=0, replicas=replicas), str(cut), None, tmp_path, opened)
        fetched.next()
        assert fetched.writer.rows == 0
        fetched.next()
        assert fetched.done and fetched.writer.rows == 1


def test_a_cut_is_asked_for_at_another_replica() -> None:
    body = b'{"version": "v"}'
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with answering(HALF) as dying, answering(whole) as living:
        assert take._cut([f"http://127.0.0.1:{port}" for port in (dying, living)]) == "v"


def test_who_is_refused_is_told_why(tmp_path: Path) -> None:
    body = b'{"code": "unauthenticated", "detail": "Authorization: a token is needed"}'
    denied = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with answering(denied) as port:
        made = make_cluster(tmp_path, 1, 1, "white_box")
        made = msgspec.structs.replace(made, replicas=(msgspec.structs.replace(made.replicas[0], http_port=port),))
        for ask in (growing._told_by, growing._moves_of):
            with pytest.raises(ClusterError, match=rf"shard 0: .*{port}: Authorization: a token is needed$"):
                ask(made, 0)


@pytest.mark.parametrize("token", [b"a\nb", b"\xff\xfe", "t\u20ac".encode(), b"\0"])
def test_what_is_no_token_is_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], token: bytes
) -> None:
    monkeypatch.setenv("KVSTORE_TOKEN", "")
    make_cluster(tmp_path, 1, 1, "white_box")
    (tmp_path / "token").write_bytes(token)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--token-file", str(tmp_path / "token"), "cluster", "status", str(tmp_path)])
    told = capsys.readouterr().err
    assert ended.value.code == 1 and told == "error: token: not a token, as `kvstore token create` prints one\n"


def test_whose_name_no_host_can_have_does_not_answer(tmp_path: Path) -> None:
    made = make_cluster(tmp_path, 1, 1, "white_box")
    named = msgspec.structs.replace(made.replicas[0], advertise="a..b")
    assert why_not_ready(named) == f"a..b:{named.http_port}: no host has such a name"
