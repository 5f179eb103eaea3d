"""Taking a backup of a cluster that serves: a cut, and the rows of every shard at it, from one replica each.

Theory of operation. One ordered transaction is the cut; when it is answered, a replica of every shard keeps its rows
as they were then (`kvstore.storage.cut`). They are fetched portion by portion, of the shards in turn, so that none
waits for long, from a replica that does not lead if one answers. All replicas of a shard keep the same rows, so
another one goes on where one has failed. Where none has them any more all of it begins anew, with another cut.

The rows may also be those of an earlier version, as far as the replicas' history knows: who keeps a cut has that, too.
By the cut all up to the version is complete everywhere, and the new cluster's time begins above it.

What slots have moved each shard tells as of the cut, too. Of the others any replica knows where they are, as of a
time before the cut.

It is written under a temporary name, read once more, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from kvstore.api.cluster import ClusterJson, ShardJson
from kvstore.api.codec import id_text
from kvstore.api.shard_map import Place, PlacedRun, ShardMap, add_places, decode_places
from kvstore.backup.files import (
    FORMAT,
    BackupError,
    Manifest,
    RowWriter,
    ShardManifest,
    made_beside,
    verify,
    write_manifest,
)
from kvstore.cluster import fetch, said
from kvstore.status import ASKED_AT_ONCE, cluster_of, described, urls_of
from kvstore.storage.cut import CutRows, decode_cut_rows
from multicast.types import Timestamp, new_message_id

TRIES = 3
"""So many cuts are made, if rows are gone before they were fetched."""
CUT_SECONDS = 30.0
LACK_SECONDS = 5.0
"""For so long the replicas of a shard are asked for rows that none of them has: one may be behind."""
FETCH_SECONDS = 5.0
"""For so long one replica is waited for: shorter than the others keep what nobody fetches."""
PAUSE_SECONDS = 0.1
PACE = 32 * 1024 * 1024
"""Bytes per second: at most so fast rows are fetched, of all shards together; their replicas have clients."""
SAY_SECONDS = 1.0


class _Gone(Exception):
    """No replica of a shard has its rows any more, or a shard was not asked; the text says which, and why."""


def take(source: str, target: Path, progress: Callable[[str], None], at: str = "") -> Manifest:
    """Of the cluster whose directory, or one of whose replicas' address, `source` is. at: a version; empty: now.
    BackupError if it cannot be done; then nothing is left behind. ConfigError."""
    if target.exists():
        raise BackupError(f"{target} exists already; nothing was changed")
    try:
        version = Timestamp.parse(at) if at else None
    except ValueError as error:
        raise BackupError(str(error)) from None
    urls, cluster_id = urls_of(source), cluster_of(source)
    for attempt in range(1, TRIES + 1):
        try:
            with made_beside(target) as beside:
                beside.mkdir()
                _take_once(described(urls, cluster_id), beside, progress, version)
                return verify(beside, progress)
        except _Gone as gone:
            if attempt == TRIES:
                raise BackupError(f"{gone}; tried {TRIES} times") from None
            progress(f"{gone}: another cut is made")
    raise AssertionError("it returns or raises")


def _take_once(known: ClusterJson, directory: Path, progress: Callable[[str], None], at: Timestamp | None) -> None:
    """known: what a replica says of the cluster before the cut is made."""
    every = [replica.url for shard in known.shards for replica in shard.replicas]
    version = _cut(every)
    if at is not None and at > Timestamp.parse(version):
        raise BackupError(f"nothing has been written at {at} yet; the cluster is at {version}")
    progress(f"cut at {version}")
    serving = _serving(every)
    leaders = described(sorted(every, key=lambda url: url not in serving))  # who is behind may not know all shards
    with contextlib.ExitStack() as opened:
        fetches = [_Fetch(shard, version, at, directory, opened, serving) for shard in leaders.shards]
        said = began = time.monotonic()
        while left := [one for one in fetches if not one.done]:
            for one in left:
                one.next()
            time.sleep(max(0.0, began + sum(one.writer.bytes for one in fetches) / PACE - time.monotonic()))
            if time.monotonic() > said + SAY_SECONDS:
                said = time.monotonic()
                rows, size = sum(one.writer.rows for one in fetches), sum(one.writer.bytes for one in fetches)
                progress(f"{rows} rows, {size / 1e6:.1f} MB")
        shards = [one.finish() for one in fetches]
    timestamps = {one.timestamp for one in fetches}
    if len(timestamps) != 1:
        raise BackupError("the shards kept their rows at different points of the order")
    places: dict[int, Place] = {}
    for one in fetches:
        add_places(places, one.places)
    if unknown := {place.shard for place in places.values()} - {one.writer.shard for one in fetches}:
        raise _Gone(f"not every replica knows shard {min(unknown)} yet")
    shard_map = ShardMap.from_json(known.shard_map).after(places)
    manifest = Manifest(
        format=FORMAT, cluster_id=known.cluster_id, protocol=known.protocol, version=str(at or version),
        timestamp=str(timestamps.pop()), dedup_window_ms=known.dedup_window_ms, shard_map=shard_map.to_json(),
        shards=shards,
    )  # fmt: skip
    write_manifest(directory, manifest)


def _cut(urls: list[str]) -> str:
    """Have it ordered, through one replica after the other under one id; its version."""
    deadline = time.monotonic() + CUT_SECONDS
    headers = {"Idempotency-Key": id_text(new_message_id(time.time_ns() // 1000, secrets.randbits(62)))}
    while True:
        for url in urls:
            try:
                status, body = fetch(f"{url}/v1/backups", CUT_SECONDS / 3, b"", headers)
                if status == 200:
                    return str(msgspec.json.decode(body)["version"])
                why = f"{url}: {said(body)}"
            except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
                status, why = 0, f"{url}: {error}"
            if status in (401, 403) or time.monotonic() > deadline:
                raise BackupError(f"no cut was made: {why}")
        time.sleep(PAUSE_SECONDS)


def _serving(urls: list[str]) -> set[str]:
    """Those that say so now: one that hangs would be waited for in each shard, and what the others keep goes then."""

    def serves(url: str) -> bool:
        with contextlib.suppress(OSError):
            return fetch(f"{url}/readyz")[0] == 200
        return False

    with ThreadPoolExecutor(ASKED_AT_ONCE) as together:
        return {url for url, ready in zip(urls, together.map(serves, urls), strict=True) if ready}


class _Fetch:
    """The rows of one shard. serving: whose answers may be expected. done: all are there."""

    def __init__(
        self, shard: ShardJson, version: str, at: Timestamp | None, directory: Path, opened: contextlib.ExitStack,
        serving: Collection[str] = (),
    ):  # fmt: skip
        self.writer = RowWriter(directory, shard.id)
        opened.callback(self.writer.close)
        self.done = False
        self._version = version
        self._query = "" if at is None else f"&at={at}"
        self._compacted: dict[str, str] = {}
        asked_first = sorted(shard.replicas, key=lambda r: (r.url not in serving, r.id == shard.leader))
        self._urls = [replica.url for replica in asked_first]
        self._failed: set[str] = set()
        self._after = b""
        self._first: CutRows | None = None
        self._lacks_since = time.monotonic()

    @property
    def timestamp(self) -> Timestamp | None:
        """Of the cut, as the replica says."""
        return self._first.timestamp if self._first else None

    @property
    def places(self) -> list[PlacedRun]:
        """Of the slots that the shard had given and taken before the cut."""
        return decode_places(self._first.places) if self._first and self._first.places else []

    def next(self) -> None:
        """One portion, or one failure. _Gone. BackupError if no replica that answers knows the version any more."""
        url = self._urls[0]
        try:
            path = f"{url}/v1/backups/{self._version}?after={self._after.hex()}{self._query}"
            status, body = fetch(path, FETCH_SECONDS)
            if status == 200:
                return self._take(decode_cut_rows(body))
            if status == 410:
                self._compacted[url] = str(msgspec.json.decode(body)["detail"])
            why = f"{url}: {said(body)}"
        except (OSError, msgspec.DecodeError) as error:
            why = f"{url}: {error}"
        self._failed.add(url)
        late = len(self._failed) == len(self._urls) and time.monotonic() > self._lacks_since + LACK_SECONDS
        if self._compacted and (late or len(self._compacted) == len(self._urls)):
            raise BackupError(f"compacted: shard {self.writer.shard}: {min(self._compacted.values())}")
        if late:
            raise _Gone(f"no replica of shard {self.writer.shard} has its rows ({why})")
        self._urls.append(self._urls.pop(0))
        time.sleep(PAUSE_SECONDS)

    def _take(self, found: CutRows) -> None:
        first = self._first = self._first or found
        if (found.position, found.timestamp, found.digest) != (first.position, first.timestamp, first.digest):
            raise BackupError(f"shard {self.writer.shard}: its replicas do not have the same rows")
        if found.rows:
            self.writer.add(found.rows)
        self._after, self.done = found.next, not found.next
        self._failed.clear()
        self._lacks_since = time.monotonic()

    def finish(self) -> ShardManifest:
        """All are written."""
        assert self._first is not None
        return self.writer.finish(self._first.position, self._first.digest)
