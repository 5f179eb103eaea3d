"""What a host has to do after a run of the engine."""

from __future__ import annotations

from typing import Any

from multicast.protocol import PeerError
from multicast.types import ProcessId
from multicast.wire import SnapshotChunk, SnapshotRequest


class Batch:
    """What the host has to do after one `Engine.run`.

    number: rises by one per batch. journal: bytes to append and sync as one, empty if nothing needs it. urgent: a
    message waits until this batch and those before it are on disk; otherwise that has time.
    sends: (receivers, encoded message) that may leave now, in order. hurried: for one of them somebody waits; otherwise
    they have time until something else goes to their receivers. answers: (token, answer) for clients.
    reads: (peer, position): read deliveries from the journal, or that they are gone, for `Engine.found`. rows: (peer,
    request): read what the application holds for a snapshot, for `Engine.found`. staging: chunks to stage, in order,
    each followed by `Engine.staged` (`multicast.snapshot`).
    faulty: (peer, the PeerError): close that link. wake_at: the next instant at which to run, None for none.
    """

    __slots__ = (
        "answers", "faulty", "hurried", "journal", "number", "reads", "rows", "sends", "staging", "urgent", "wake_at",
    )  # fmt: skip

    def __init__(self, number: int):
        self.number = number
        self.journal = b""
        self.urgent = False
        self.sends: list[tuple[tuple[ProcessId, ...], bytes]] = []
        self.hurried = False
        self.answers: list[tuple[int, Any]] = []
        self.reads: list[tuple[ProcessId, int]] = []
        self.rows: list[tuple[ProcessId, SnapshotRequest]] = []
        self.staging: list[SnapshotChunk] = []
        self.faulty: list[tuple[ProcessId, PeerError]] = []
        self.wake_at: int | None = None
