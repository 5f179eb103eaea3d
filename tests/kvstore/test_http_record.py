"""What stands in a replica's log: who did what, what was refused, what was slow, who leads; and never a secret."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from kvstore import leaders, logs
from kvstore.api.http1 import Fields, Head
from kvstore.api.model import Transaction
from kvstore.api.rights import ROOT, digest_of, token_of
from kvstore.config import LogSettings
from kvstore.http import record
from multicast.protocol import MulticastProtocol
from tests.kvstore.test_http_app import FakeNode, done, never, serving

ROOTS = token_of(ROOT, bytes(32))
AS_ROOT = {"Authorization": f"Bearer {ROOTS}", "Content_Type": "application/json"}


async def logged(*asked: tuple[str, str, bytes], log: LogSettings | None = None, **headers: str) -> list[Any]:
    """The lines about these requests, each with its own headers."""
    with capture_logs() as lines:
        async with serving(FakeNode(done), root=digest_of(ROOTS), log=log) as client:
            for method, path, body in asked:
                await client(method, path, body, **headers)
    return lines


CHANGE = ("PUT", "/v1/admin/roles/app", b'{"permissions": [{"access": ["read"], "prefix": "geheim/"}]}')
WRITE = ("PUT", "/v1/kv/konto%2Fann", b"geheim")


async def test_who_changes_rights_stands_in_the_log_with_what_and_from_where() -> None:
    (line,) = await logged(CHANGE, WRITE, ("GET", "/v1/admin/rights", b""), **AS_ROOT, X_Request_Id="r-1")
    assert (line["event"], line["by"], line["address"]) == ("admin", "root", "127.0.0.1")
    assert (line["path"], line["keys"], line["request_id"]) == ("/v1/admin/roles/app", ["role/app"], "r-1")
    assert line["id"] and "geheim" not in str(line) and ROOTS not in str(line)
    assert await logged(CHANGE, log=LogSettings(admin=False), **AS_ROOT) == []


async def test_who_writes_what_is_told_where_it_is_wanted_without_values() -> None:
    operations = [{"op": "put", "key": f"k{i}", "value": "geheim"} for i in range(20)]
    transaction = ("POST", "/v1/txn", json.dumps({"success": operations}).encode())
    reads = (("GET", "/v1/kv/a", b""), ("POST", "/v1/txn", b'{"success": [{"op": "get", "key": "a"}]}'))
    lines = await logged(WRITE, transaction, *reads, log=LogSettings(writes=True), **AS_ROOT)
    put, txn = [line for line in lines if line["event"] == "write"]
    assert put["path"] == "/v1/kv/konto%2Fann" and put["keys"] == ["konto/ann"]
    assert txn["operations"] == 20 and txn["keys"] == [f"k{i}" for i in range(record.KEYS_MAX)]
    assert "geheim" not in str((put, txn))


async def test_what_is_deleted_in_one_piece_is_told_too_and_what_is_only_read_is_not() -> None:
    """Who deletes everything by a transaction would stand there without a word of what."""
    nested = {"op": "txn", "failure": [{"op": "delete_range", "prefix": "a/", "end": "a/m"}]}
    success = [{"op": "get", "key": "read"}, {"op": "range", "prefix": "read/"}, {"op": "delete_range"}, nested]
    transaction = ("POST", "/v1/txn", json.dumps({"success": success}).encode())
    conditional = ("PUT", "/v1/kv/a", b"geheim")
    lines = await logged(transaction, log=LogSettings(writes=True), **AS_ROOT)
    (line,) = [line for line in lines if line["event"] == "write"]
    assert "keys" not in line and line["ranges"] == [{}, {"prefix": "a/", "end": "a/m"}] and line["operations"] == 4
    (line,) = await logged(conditional, log=LogSettings(writes=True), **AS_ROOT, If_None_Match="*")
    assert line["keys"] == ["a"] and "ranges" not in line


async def test_who_is_refused_stands_in_the_log() -> None:
    stranger = token_of("0" * 16, bytes(32))
    (line,) = await logged(WRITE, Authorization=f"Bearer {stranger}")
    assert (line["event"], line["status"], line["route"]) == ("denied", 401, "/v1/kv/")
    assert "by" not in line and stranger not in str(line) and "konto" not in str(line)


def test_of_a_flood_the_log_says_how_many_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [7.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])
    told = record.Record(LogSettings(), str)
    with capture_logs() as lines:
        for _ in range(record.LINES_PER_SECOND + 2):
            told.ended(_Asked(), 403, 0.0)
        now[0] = 8.0
        told.ended(_Asked(), 403, 0.0)
    assert [line.get("left_out") for line in lines] == [None] * record.LINES_PER_SECOND + [2]


class _Asked:
    """A call."""

    recorded = holder = text_id = request_id = address = ""
    ordered = goes_on = False
    route, transaction, head = "/v1/txn", Transaction(), Head("PUT", "/", 1, Fields(b""))


async def test_a_slow_request_is_told_by_its_route_and_found_by_the_id_in_its_answer() -> None:
    with capture_logs() as lines:
        async with serving(FakeNode(never), log=LogSettings(slow_request_ms=1)) as client:
            problem = await client.problem("PUT", "/v1/kv/geheim", b"x", X_Timeout_Ms="5")
    (line,) = lines
    assert (line["event"], line["route"], line["status"]) == ("slow request", "/v1/kv/", 504) and line["ms"] >= 5
    assert line["request_id"] == problem["request_id"] and line["id"] == problem["id"] and "geheim" not in str(line)
    assert [one["event"] for one in await logged(WRITE, log=LogSettings(slow_request_ms=0), **AS_ROOT)] == []


async def test_a_problem_carries_the_requests_own_id_if_that_is_fit_to_be_printed() -> None:
    async with serving(FakeNode(done)) as client:
        assert (await client.problem("GET", "/nowhere", X_Request_Id="abc"))["request_id"] == "abc"
        made = (await client.problem("GET", "/nowhere", X_Request_Id="a b"))["request_id"]
        assert len(made) == 16 and made != (await client.problem("GET", "/nowhere"))["request_id"]


@pytest.mark.parametrize("terminal", [True, False])
def test_no_token_is_written_and_programs_get_json(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(logging.root, "handlers", [])
    before = sys.stderr
    try:
        logs.set_up_logging()
        structlog.get_logger("x").warning(f"with {ROOTS} in it", url=f"http://h/?t={ROOTS}", token="short", n=1)
        secret = f"value of {ROOTS}"
        try:
            raise ValueError(secret)
        except ValueError:
            structlog.get_logger("x").exception("failed", m=2)
            logging.getLogger("asyncio").exception('of "others" %s', ROOTS)
    finally:
        structlog.reset_defaults()
        sys.stderr = before
    written = capfd.readouterr().err
    assert ROOTS not in written and "short" not in written and written.count(logs.HIDDEN) == 6
    assert "ValueError" in written and "secret =" not in written.replace("secret = f", "")
    if not terminal:
        first, second, third = map(json.loads, written.splitlines())
        assert (first["n"], second["m"]) == (1, 2)
        assert (third["logger"], third["level"], third["event"]) == ("asyncio", "error", 'of "others" (hidden)')
        assert "ValueError" in third["exception"] and third.keys() > {"timestamp"}
    assert written.startswith("{") is not terminal


class _Led(MulticastProtocol):
    def __init__(self) -> None:
        self.state, self.leader, self.group = "recovering", 0, 3

    def role(self) -> str:
        return self.state

    def leader_of(self, group: int) -> int:
        return self.leader

    def describe(self) -> dict[str, Any]:
        return {"ballot": f"2.{self.leader}"}


def test_a_change_of_leader_is_told_with_its_ballot_and_how_long_nobody_led(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(leaders.time, "monotonic", lambda: now[0])
    protocol, seen = _Led(), leaders.Leaders()

    def then(seconds: float, state: str, leader: int) -> None:
        now[0] += seconds
        protocol.state, protocol.leader = state, leader
        seen.look(protocol)

    with capture_logs() as lines:
        then(1, "recovering", 0)
        assert seen.seconds_without() == 1
        then(1, "follower", 0)
        then(5, "follower", 0)
        assert seen.seconds_without() == 0 and seen.changes == 0
        then(1, "recovering", 0)
        then(0.25, "leader", 1)
    told = [(line["leader"], line["before"], line["ballot"], line["seconds_without"]) for line in lines]
    assert told == [(0, None, "2.0", 2.0), (1, 0, "2.1", 0.25)] and seen.changes == 1


@pytest.mark.parametrize("name", ["Authorization", "token", "ROOT"])
def test_what_is_called_a_secret_is_hidden_whatever_it_looks_like(name: str) -> None:
    assert logs.hide_secrets(None, "", {name: "x"}) == {name: logs.HIDDEN}
