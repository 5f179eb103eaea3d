"""Over real HTTP and WebSockets: who may ask, what bad input is answered, and that the world before it is kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from multicast import registry
from multicast.visual import server
from multicast.visual.server import Server
from multicast.visual.setup import Script, default_setup, plain

SETUP = plain(default_setup(registry.load("skeen")))


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[tuple[Server, str]]:
    """A server, and its address."""
    one = Server(**more)
    runner = web.AppRunner(one.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield one, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Page:
    """One socket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse):
        self.socket = socket

    async def ask(self, **request: Any) -> dict[str, Any]:
        await self.socket.send_str(json.dumps({"id": 1, **request}))
        return await self.hear()

    async def hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads((await self.socket.receive()).data)
        return answer

    async def problem(self, **request: Any) -> str:
        answer = await self.ask(**request)
        assert answer["kind"] == "problem" and answer["id"] == 1, answer
        text: str = answer["text"]
        assert text[0].isupper() and text.endswith((".", "?")) and len(text) < 700
        return text


@asynccontextmanager
async def page(address: str, **more: Any) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{address}/ws", max_msg_size=0, **more) as one:
        yield Page(one)


async def test_the_page_and_its_catalogue_are_served_with_a_strict_policy() -> None:
    async with serving() as (_, address), aiohttp.ClientSession() as session:
        async with session.get(address) as answer:
            assert answer.status == 200 and "<html" in await answer.text()
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        async with session.get(f"{address}/api/catalogue") as answer:
            known = await answer.json()
            assert [p["name"] for p in known["protocols"]] == registry.names()
            assert {s["chapter"] for s in known["scenarios"]} == set(range(1, 11))


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/..%2fserver.py", "/page/%2e%2e/setup.py", "/page/no.js"])
async def test_nothing_but_the_page_is_served(path: str) -> None:
    async with serving() as (_, address), aiohttp.ClientSession() as session:
        answer = await session.get(aiohttp.client.URL(address + path, encoded=True))
        assert answer.status == 404


@pytest.mark.parametrize(
    "headers", [{"Host": "attacker.example"}, {"Origin": "http://attacker.example"}, {"Origin": "null"}]
)
async def test_other_names_and_other_pages_are_refused(headers: dict[str, str]) -> None:
    async with serving() as (_, address), aiohttp.ClientSession() as session:
        async with session.get(address, headers=headers) as answer:
            assert answer.status == 403
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"{address}/ws", headers=headers)


async def test_a_problem_is_one_sentence_and_the_run_before_it_is_kept() -> None:
    async with serving() as (_, address), page(address) as one:
        await one.ask(op="open", setup=SETUP)
        grown = await one.ask(op="do", at=0, actions=[["multicast", 0, [0, 1]]])
        cut = Script(default_setup(registry.load("skeen"))).fragment()[:-9]
        for expected, request in BAD:
            assert expected in await one.problem(**request)
        assert "damaged" in await one.problem(op="open", fragment="#" + cut)
        await one.socket.send_str("{")
        assert (await one.hear())["text"] == "This message is not JSON."
        await one.socket.send_str("[1]")
        assert (await one.hear())["kind"] == "problem"
        here = await one.ask(op="look", at=1)
        assert (here["links"], here["enabled"]) == (grown["links"], grown["enabled"])


HEADER = '{"trace": 1, "protocol": "skeen", "groups": {"0": [0]}}'
BAD: list[tuple[str, dict[str, Any]]] = [
    ("no operation", {"op": "fly"}),
    ("no operation", {}),
    ("What is to be opened?", {"op": "open"}),
    ("did you mean 'skeen'?", {"op": "open", "setup": {**SETUP, "protocol": "skeem"}}),
    ("has no option 'speed'", {"op": "open", "setup": {**SETUP, "options": {"speed": 3}}}),
    ("Bad option", {"op": "open", "setup": {**SETUP, "options": {"retry_us": "soon"}}}),
    ("`protcol`", {"op": "open", "setup": {**SETUP, "protcol": "skeen"}}),
    ("groups of one process", {"op": "open", "setup": {**SETUP, "groups": {"0": [0, 1]}}}),
    ("in group 0 and in group 1", {"op": "open", "setup": {**SETUP, "groups": {"0": [0], "1": [0]}}}),
    ("no group", {"op": "open", "setup": {**SETUP, "groups": {}}}),
    ("at most 24", {"op": "open", "setup": {**SETUP, "groups": {str(i): [i] for i in range(25)}}}),
    ("no planted bug", {"op": "open", "setup": {**SETUP, "bug": "Nobody"}}),
    ("means nothing", {"op": "open", "fragment": "#what"}),
    ("damaged", {"op": "open", "fragment": "#script=eNpLz8xLBQAFhAIR"}),
    ("no scenario", {"op": "open", "scenario": "11-none"}),
    ("not started with that file", {"op": "open", "fragment": "#file=/etc/passwd"}),
    ("Unknown protocol", {"op": "open", "run": {"protocol": "paxos", "seed": 1}}),
    ("`seed`", {"op": "open", "run": {"protocol": "skeen"}}),
    ("profile", {"op": "open", "run": {"protocol": "skeen", "seed": 1, "profile": "mad"}}),
    ("from 1 to 16", {"op": "open", "run": {"protocol": "skeen", "seed": 1, "groups": 900}}),
    ("one process", {"op": "open", "run": {"protocol": "skeen", "seed": 1, "replicas": 3}}),
    ("This file is empty", {"op": "open", "trace": ""}),
    ("Line 1 is not JSON", {"op": "open", "trace": "PK\x03\x04"}),
    ("format 99", {"op": "open", "trace": HEADER.replace('"trace": 1', '"trace": 99')}),
    ("Line 2 is not JSON", {"op": "open", "trace": f'{HEADER}\nwhat\n{{"n": 2, "event": "heal", "t": 1}}'}),
    ("no such process", {"op": "open", "trace": f'{HEADER}\n{{"n": 1, "event": "crash", "t": 1, "process": 7}}'}),
    ("`leave` has", {"op": "open", "trace": f'{HEADER}\n{{"n": 1, "event": "leave", "t": 1, "process": 0}}'}),
    ("Line 2 is no line", {"op": "open", "trace": f'{HEADER}\n{{"n": "one", "event": "heal"}}'}),
    ("after which step", {"op": "do", "actions": []}),
    ("a list of at most", {"op": "do", "at": 1, "actions": {}}),
    ("This is no action", {"op": "do", "at": 1, "actions": [["fly", 1]]}),
    ("no step", {"op": "look", "at": 99}),
    ("Time runs until", {"op": "run", "at": 1, "until": "doomsday"}),
    ("steps_max", {"op": "run", "at": 1, "steps_max": "all"}),
]


async def test_a_second_browser_is_a_second_world() -> None:
    async with serving() as (_, address), page(address) as one, page(address) as other:
        await one.ask(op="open", setup=SETUP)
        await other.ask(op="open", setup=SETUP)
        await one.ask(op="do", at=0, actions=[["crash", 0]])
        assert (await other.ask(op="do", at=0, actions=[["multicast", 0, [0]]]))["steps"] == 1
        assert (await one.ask(op="look", at=1))["enabled"] == [{"action": ["restart", 0], "text": "process 0 restarts"}]


async def test_worlds_are_bounded_and_those_that_close_make_room() -> None:
    async with serving(worlds_max=1) as (_, address):
        async with page(address), page(address) as second:
            assert "1 worlds open already" in (await second.hear())["text"]
            assert (await second.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        async with page(address) as third:
            assert (await third.ask(op="open", setup=SETUP))["kind"] == "opened"


async def test_a_page_that_goes_while_its_answer_is_made_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (one, address):
        async with page(address) as gone:
            await gone.socket.send_str(json.dumps({"op": "open", "run": {"protocol": "white_box", "seed": 1}}))
        async with page(address) as next_one:
            assert (await next_one.ask(op="open", setup=SETUP))["kind"] == "opened"
        while one.users:
            await asyncio.sleep(0)
    assert caplog.records == []


async def test_an_idle_world_is_forgotten_with_a_sentence() -> None:
    async with serving(idle_s=0.01) as (_, address), page(address) as one:
        assert "idle" in (await one.hear())["text"]
        assert (await one.socket.receive()).type is aiohttp.WSMsgType.CLOSE


async def test_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MESSAGE_BYTES_MAX", 1_000)
    async with serving() as (_, address), page(address) as one:
        await one.socket.send_str(json.dumps({"op": "open", "trace": "x" * 2_000}))
        closed = await one.socket.receive()
        assert closed.type is aiohttp.WSMsgType.CLOSE and closed.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG


async def test_a_file_of_the_command_line_is_opened_by_name(tmp_path: Path) -> None:
    file = tmp_path / "run 1.jsonl"
    file.write_text(f'{HEADER}\n{{"n": 1, "event": "life", "t": 0, "process": 0, "life": 1}}\n')
    async with serving(files={file.name: file}) as (_, address), page(address) as one:
        answer = await one.ask(op="open", fragment="#file=run%201.jsonl")
        assert (answer["kind"], answer["live"], answer["recording"]["complete"]) == ("opened", False, False)


async def test_what_fails_here_is_said_and_the_socket_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Any, request: Any) -> Any:
        raise ZeroDivisionError("of no importance")

    monkeypatch.setattr(server.User, "answer", failing)
    async with serving() as (_, address), page(address) as one:
        assert "ZeroDivisionError" in (await one.ask(op="look", at=0))["text"]
        monkeypatch.undo()
        assert (await one.ask(op="open", setup=SETUP))["kind"] == "opened"


