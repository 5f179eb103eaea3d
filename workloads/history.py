"""Client histories: what the clients asked and what they were told, for the audit to hold against the journals.

A line is written before its request is sent, and before the next one of the same client is: a history that ends early
never lacks the invocation of a request that a replica has seen.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from client_sdk.routing import CLUSTER_FILE, find_place
from kvstore.api.model import Consistency
from kvstore.core.audit import Asked, HistoryEvent, Told, watch_asked, watch_told
from multicast.types import ZERO, MessageId, Timestamp


class HistoryWriter:
    """One file, one clock: all clients that write here share this process's monotonic clock.

    Each event is one unbuffered write, so a killed client loses nothing that it had said (the file is not synced).
    """

    def __init__(self, path: Path, cluster: str = ""):
        """Creates `path` and its directory. cluster: the id of the one that is asked, if it is known. FileExistsError
        if the file exists: a history is never mixed with another."""
        self._cluster = cluster
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.events = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._encode = msgspec.json.Encoder().encode

    @classmethod
    def create(cls, directory: Path, name: str) -> HistoryWriter:
        """A new file `directory/history/NAME.jsonl`, or `NAME-2.jsonl` and so on if there are earlier ones, of the
        cluster of this directory. ValueError: what that says of itself is damaged."""
        number = 1
        cluster = find_place(directory).cluster_id if (directory / CLUSTER_FILE).is_file() else ""
        while True:
            suffix = "" if number == 1 else f"-{number}"
            try:
                return cls(directory / "history" / f"{name}{suffix}.jsonl", cluster)
            except FileExistsError:
                number += 1

    def close(self) -> None:
        """Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> HistoryWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def invoke(
        self,
        process: int,
        message_id: MessageId,
        f: str,
        value: dict[str, int] | None = None,
        asked: Asked | None = None,
        consistency: Consistency = "linearizable",
        age_us: int = 0,
    ) -> None:
        """The client is about to send this. value: what the workload wants remembered even if no answer comes."""
        event = HistoryEvent(process, "invoke", _now_us(), _uuid(message_id), f, value=value, asked=asked)
        if consistency != "linearizable":
            event.consistency, event.age_us = consistency, age_us
        self._write(event)

    def ok(
        self,
        process: int,
        message_id: MessageId,
        f: str,
        version: Timestamp,
        *,
        succeeded: bool | None = None,
        reads: Mapping[str, Timestamp] | None = None,
        value: dict[str, int] | None = None,
        told: Told | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> None:
        """It was applied, with this answer. reads: key -> the version that was read; (0, 0) for an absent key. where:
        of a read that had no id: from `read_where`."""
        self._write(
            HistoryEvent(
                process,
                "ok",
                _now_us(),
                _uuid(message_id),
                f,
                version=str(version),
                succeeded=succeeded,
                reads={key: str(seen) for key, seen in (reads or {}).items()},
                value=value,
                told=told,
                **(where or {}),
            )
        )

    def fail(self, process: int, message_id: MessageId, f: str, error: str) -> None:
        """It certainly has no effect."""
        self._write(HistoryEvent(process, "fail", _now_us(), _uuid(message_id), f, error=error))

    def info(self, process: int, message_id: MessageId, f: str, error: str) -> None:
        """Nobody knows. This process must not invoke anything any more: the operation may still be under way."""
        self._write(HistoryEvent(process, "info", _now_us(), _uuid(message_id), f, error=error))

    def begin_watch(self, watch: MessageId, first: bytes, end: bytes, after: Timestamp | None) -> None:
        """A watch is about to be asked for, of the keys that are not less than `first` and less than `end` (empty:
        any). Whoever goes on after it has ended begins another one."""
        self._watch(watch, "begin", after, asked=watch_asked(first, end))

    def changed(
        self, watch: MessageId, version: Timestamp, changes: Sequence[tuple[bytes, bytes | None]]
    ) -> None:
        """It was told what a transaction has changed."""
        self._watch(watch, "change", version, told=watch_told(changes))

    def progressed(self, watch: MessageId, version: Timestamp) -> None:
        """It was told that this is all up to a version."""
        self._watch(watch, "progress", version)

    def end_watch(self, watch: MessageId, error: str) -> None:
        """It is told nothing more."""
        self._watch(watch, "end", None, error=error)

    def _watch(self, watch: MessageId, f: str, version: Timestamp | None, **said: Any) -> None:
        text = "" if version is None else str(version)
        self._write(HistoryEvent(0, "watch", _now_us(), _uuid(watch), f, text, **said))

    def _write(self, event: HistoryEvent) -> None:
        if self._cluster and event.type != "watch":
            event.cluster, self._cluster = self._cluster, ""
        line = self._encode(event) + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"{self.path}: only {written} of {len(line)} bytes were written; is the disk full?")
        self.events += 1


def read_where(read_at: str, consistency: Consistency, version: Timestamp) -> dict[str, Any]:
    """Where a read without an id saw its shards, as members of its `HistoryEvent`. read_at: of its answer, as
    `Kv-Read-At` says it; version: the answer's."""
    if not read_at:  # of several shards: it was ordered, or read at that version
        return {"shard": 0} if consistency == "linearizable" else {"at": str(version)}
    places = [place.split("/") for place in read_at.split(",")]
    found = {int(shard): int(position) for shard, position, *_ in places}
    (shard, position), *others = found.items()
    ordered = not position and version != ZERO
    if not others and (ordered or consistency == "linearizable"):
        return {"shard": shard, "position": position}
    return {"places": found}


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _uuid(message_id: MessageId) -> str:
    return str(uuid.UUID(bytes=message_id))
