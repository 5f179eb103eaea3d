"""A watch that goes on: it asks another replica, for what follows the last event, whenever its stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from client_sdk.connections import Connections
from client_sdk.errors import Compacted, Denied, InvalidRequest
from client_sdk.requests import ARGUMENTS
from kvstore.api.events import CHANGE, COMPACTED, PROGRESS, Event, EventReader
from kvstore.api.http1 import Fields, Malformed
from kvstore.api.problem import ProblemJson, parse_problem
from multicast.types import Timestamp

SILENT_SECONDS = 8.0
"""A stream without an event for so long is dead: replicas say every two seconds how far they are."""
READ_BYTES = 64 * 1024
PROBLEM_BYTES_MAX = 64 * 1024


class Refused(Exception):
    """The replica answered with this problem; None: with something else than a problem."""

    def __init__(self, status: int, problem: ProblemJson | None):
        detail = f"{status} without a problem description" if problem is None else problem.detail or problem.title
        super().__init__(detail)
        self.status = status
        self.problem = problem

    def raise_if_final(self) -> None:
        """What ends the watch: no other replica would say something else."""
        problem = self.problem
        if problem is not None and not problem.retryable and self.status < 500:
            kind = Denied if self.status in (401, 403) else Compacted if problem.code == COMPACTED else InvalidRequest
            field = problem.field or ""
            raise kind(str(self), code=problem.code, status=self.status, field=ARGUMENTS.get(field, field)) from None


async def events(
    connections: Connections, url: str, query: str, fields: str, after: Timestamp | None, seconds: float
) -> AsyncGenerator[Event, None]:
    """The events of one stream, until it ends. fields: as in `Connections.exchange`. seconds: until it begins. Refused,
    OSError, TimeoutError, MalformedAnswer."""
    begin = f"&from={after}" if after is not None else ""
    async with connections.stream(url, f"/v1/watch?{query}{begin}", fields) as reader:
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


async def _begin(reader: asyncio.StreamReader) -> None:
    try:
        line, _, block = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
        status, fields = int(line.split(b" ")[1]), Fields(block[:-2])
        if status != 200:
            size = min(fields.length or 0, PROBLEM_BYTES_MAX)
            raise Refused(status, parse_problem(await reader.readexactly(size)))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, Malformed, ValueError, IndexError) as error:
        raise ConnectionError(f"no answer of HTTP: {error}") from None


def is_told(event: Event, progress: bool) -> bool:
    """Whether the program that watches is told of this event. Compacted if it ends the watch."""
    if event.kind == COMPACTED:
        raise Compacted(event.detail, code=event.code)
    return event.kind == CHANGE or (progress and event.kind == PROGRESS)
