"""How long a shard stood still, and on what: detection, election, clearing.

The replicas are asked what they are, again and again, more often while their shard is quiet. So a gap between two
answers has parts: *detection*, until a replica stands for leader; *election*, until one says that it leads; and
*clearing*, until the next answer. Without a new leader it has none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from multicast.types import GroupId, ProcessId
from workloads.nemesis.cluster import Replica

QUIET_SECONDS = 0.15
"""From then on the replicas are asked more often."""
POLL_SECONDS = 0.03
TOLD_SECONDS = 0.3
"""Shorter gaps are not told."""


class Gap(msgspec.Struct):
    """Seconds. at: of its beginning, since that of the run. during: which faults there were meanwhile."""

    shard: GroupId
    at: float
    seconds: float
    detection: float | None = None
    election: float | None = None
    clearing: float | None = None
    during: list[str] = []


class Seen(NamedTuple):
    """What a replica said that it was, and when: seconds of one clock."""

    at: float
    replica: ProcessId
    role: str
    ballot: str


class Watch:
    """One shard's. `answered` at every answer of the shard; `run` beside that, until cancelled."""

    def __init__(self, shard: GroupId, members: Iterable[Replica], began: float, now_wrong: Callable[[], list[str]]):
        self.shard = shard
        self.gaps: list[Gap] = []
        self.longest = 0.0
        self._members = list(members)
        self._began = began
        self._now_wrong = now_wrong
        self._last = time.monotonic()
        self._during: list[str] = []
        self._seen: list[Seen] = []
        self._ballots: dict[ProcessId, str] = {}

    def answered(self) -> None:
        now = time.monotonic()
        seconds = now - self._last
        self.longest = max(self.longest, seconds)
        if seconds >= TOLD_SECONDS:
            detection, election, clearing = split(self._last, now, self._seen, self._ballots)
            at = self._last - self._began
            self.gaps.append(Gap(self.shard, at, seconds, detection, election, clearing, self._during))
        self._ballots |= {seen.replica: seen.ballot for seen in self._seen}
        self._last, self._seen, self._during = now, [], []

    async def run(self) -> None:
        """Ask the members whenever the shard is quiet."""
        await asyncio.gather(*map(self._watch, self._members))

    async def _watch(self, replica: Replica) -> None:
        while True:
            quiet = time.monotonic() - self._last >= QUIET_SECONDS
            if quiet:
                self._during += [wrong for wrong in self._now_wrong() if wrong not in self._during]
            facts = await replica.facts()
            if facts:
                details = facts.get("details", {})
                ballot = str(details.get("ballot", details.get("epoch")))
                self._seen.append(Seen(time.monotonic(), replica.id, facts.get("role", ""), ballot))
            await asyncio.sleep(POLL_SECONDS if quiet else QUIET_SECONDS)


def split(
    begin: float, end: float, seen: Iterable[Seen], ballots: Mapping[ProcessId, str]
) -> tuple[float, float, float] | tuple[None, None, None]:
    """(detection, election, clearing) of a gap. ballots: what they were before it, where that is known."""
    before = dict(ballots)
    stood = led = None
    for when, replica, role, ballot in seen:
        new = ballot != before.setdefault(replica, ballot)
        if stood is None and (role == "recovering" or new):
            stood = when
        if led is None and role == "leader" and new:
            led = when
    if stood is None or led is None:
        return None, None, None
    return stood - begin, led - stood, end - led
