"""A watch that goes on: it asks another replica, for what follows the last event, whenever its stream ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

from client_sdk.connections import CONNECT_TIMEOUT_SECONDS
from client_sdk.errors import Compacted, InvalidRequest
from client_sdk.requests import ARGUMENTS
from kvstore.api.events import CHANGE, COMPACTED, PROGRESS, Event, EventReader
from kvstore.api.http1 import Fields
from kvstore.api.problem import ProblemJson, parse_problem
from multicast.types import Timestamp

SILENT_SECONDS = 8.0
"""A stream without an event for so long is dead: replicas say every two seconds how far they are."""
READ_BYTES = 64 * 1024
PROBLEM_BYTES_MAX = 64 * 1024


class Refused(Exception):
    """The replica answered with a problem; None: with something else."""

    def __init__(self, status: int, problem: ProblemJson | None):
        detail = f"{status} without a problem description" if problem is None else problem.detail or problem.title
        super().__init__(detail)
        self.status = status
        self.problem = problem

    def raise_if_final(self) -> None:
        """What ends the watch: no other replica would say something else."""
        problem = self.problem
        if problem is not None and not problem.retryable and self.status < 500:
            kind = Compacted if problem.code == COMPACTED else InvalidRequest
            field = problem.field or ""
            raise kind(str(self), code=problem.code, status=self.status, field=ARGUMENTS.get(field, field)) from None


async def events(
    url: str, query: str, after: Timestamp | None, tls: ssl.SSLContext | None, seconds: float,
    streams: set[asyncio.WriteTransport],
) -> AsyncGenerator[Event, None]:  # fmt: skip
    """Those of one stream, until it ends. seconds: until it begins. streams: it is there while it is open.
    Refused, OSError, TimeoutError, MalformedAnswer."""
    parts = urlsplit(url)
    port = parts.port or (443 if tls else 80)
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls)
    streams.add(writer.transport)
    try:
        begin = f"&from={after}" if after is not None else ""
        host = parts.netloc.rpartition("@")[2]
        writer.write(f"GET {parts.path}/v1/watch?{query}{begin} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        async with asyncio.timeout(seconds):
            await _begin(reader)
        found = EventReader()
        while True:
            async with asyncio.timeout(SILENT_SECONDS):
                data = await reader.read(READ_BYTES)
            if not data:
                return
            for event in found.feed(data):
                yield event
    finally:
        streams.discard(writer.transport)
        writer.transport.abort()


async def _begin(reader: asyncio.StreamReader) -> None:
    try:
        line, _, block = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        status, fields = int(line.split(b" ")[1]), Fields(block[:-2])
        if status != 200:
            size = min(fields.length or 0, PROBLEM_BYTES_MAX)
            raise Refused(status, parse_problem(await reader.readexactly(size)))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, IndexError) as error:
        raise ConnectionError(f"no answer of HTTP: {error}") from None


def is_told(event: Event, progress: bool) -> bool:
    """Whether whoever watches is told of it. Compacted if that ends the watch."""
    if event.kind == COMPACTED:
        raise Compacted(event.detail, code=event.code)
    return event.kind == CHANGE or (progress and event.kind == PROGRESS)
