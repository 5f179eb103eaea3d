"""The server of the page: static files, the catalogue, and a WebSocket per user, each with a world of its own.

Only for this machine: it binds to loopback, and refuses requests whose Host is not one of its names (rebound DNS) or
whose Origin is another page. Messages, worlds and idle time are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from multicast.visual.answers import User
from multicast.visual.catalogue import catalogue
from multicast.visual.setup import Problem

PAGE = Path(__file__).with_name("page")
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""A trace file is one message."""
WORLDS_MAX = 32
IDLE_S = 3_600.0
HOSTS = ("127.0.0.1", "localhost", "[::1]")
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}  # fmt: skip
_TYPES = {
    ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css",
    ".svg": "image/svg+xml", ".json": "application/json", ".txt": "text/plain",
}  # fmt: skip

log = logging.getLogger(__name__)


class Server:
    """Of one process. worlds_max, idle_s: so many sockets at once, and how long one may be silent. files: traces that
    a page may open by name. users: the sockets that are open."""

    def __init__(
        self,
        page: Path = PAGE,
        worlds_max: int = WORLDS_MAX,
        idle_s: float = IDLE_S,
        files: Mapping[str, Path] | None = None,
    ):
        self.files = dict(files or {})
        self.page = page.resolve()
        self.worlds_max = worlds_max
        self.idle_s = idle_s
        self.users: set[web.WebSocketResponse] = set()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes([
            web.get("/", self._index), web.get("/page/{path:.*}", self._file),
            web.get("/api/catalogue", self._catalogue), web.get("/ws", self._socket),
        ])  # fmt: skip
        app.on_shutdown.append(self._close)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Who asks, and what every answer says."""
        host = request.headers.get("Host", "")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            raise web.HTTPForbidden(text="This server answers to 127.0.0.1 and localhost only.\n", headers=_HEADERS)
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            raise web.HTTPForbidden(text="This request comes from another page.\n", headers=_HEADERS)
        try:
            response = await handler(request)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        if not response.prepared:
            response.headers.update(_HEADERS)
        return response

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._answer(self.page / "index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._answer((self.page / request.match_info["path"]).resolve())

    def _answer(self, file: Path) -> web.StreamResponse:
        if not file.is_relative_to(self.page) or file.suffix not in _TYPES or not file.is_file():
            raise web.HTTPNotFound(text="There is no such page.\n")
        return web.Response(body=file.read_bytes(), content_type=_TYPES[file.suffix], charset="utf-8")

    async def _catalogue(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(catalogue()), content_type="application/json")

    # -- worlds -------------------------------------------------------------------------------------------------------

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(max_msg_size=MESSAGE_BYTES_MAX, heartbeat=30, compress=False)
        try:
            await socket.prepare(request)
            if len(self.users) < self.worlds_max:
                self.users.add(socket)
                await self._serve(socket)
            else:
                await self._end(
                    socket, WSCloseCode.TRY_AGAIN_LATER,
                    f"There are {self.worlds_max} worlds open already; close another page.",
                )  # fmt: skip
        except ConnectionError:
            pass  # the page has gone, perhaps while its answer was made
        finally:
            self.users.discard(socket)
        return socket

    async def _end(self, socket: web.WebSocketResponse, code: WSCloseCode, why: str) -> None:
        await socket.send_str(_encode({"id": None, "kind": "problem", "text": why}).decode())
        await socket.close(code=code)

    async def _serve(self, socket: web.WebSocketResponse) -> None:
        user = User(self.files)
        while True:
            try:
                message = await socket.receive(timeout=self.idle_s)
            except TimeoutError:
                text = "This page was idle for long, and its world was forgotten; open it again."
                return await self._end(socket, WSCloseCode.GOING_AWAY, text)
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return
            answer = await asyncio.get_running_loop().run_in_executor(None, answered, user, message.data)
            await socket.send_str(answer.decode())

    async def _close(self, app: web.Application) -> None:
        for socket in list(self.users):
            await socket.close(code=WSCloseCode.GOING_AWAY, message=b"the server ends")


def answered(user: User, data: str | bytes) -> bytes:
    """One message, and its answer. A problem leaves the user's world as it was."""
    number: Any = None
    try:
        request = msgspec.json.decode(data)
        if not isinstance(request, dict):
            raise Problem("A message is an object with an op.")
        number = request.get("id")
        answer = user.answer(request)
    except msgspec.DecodeError:
        answer = {"kind": "problem", "text": "This message is not JSON."}
    except Problem as problem:
        answer = {"kind": "problem", "text": str(problem)}
    except Exception as error:
        log.exception("a request failed")
        answer = {"kind": "problem", "text": f"This failed here: {type(error).__name__}: {error}"}
    return _encode({"id": number, **answer})


def _encode(content: Any) -> bytes:
    return msgspec.json.encode(content)


async def serve(server: Server, port: int, started: Callable[[int], None]) -> None:
    """Serve on 127.0.0.1 until cancelled. port: 0: any that is free. started: told which. OSError."""
    runner = web.AppRunner(server.application(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        started(runner.addresses[0][1])
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
