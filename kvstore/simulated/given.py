"""Watches that replicas let go of parts that they keep longer (`kvstore.core.signals`) when they forget the results of
that time, and that these go from their stores then."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.core.replica import Replica
from kvstore.core.requests import REMEMBERED_WINDOWS
from multicast.types import MessageId, ProcessId

_ROUNDED_US = 1000
"""What is forgotten is told by ids, which count milliseconds."""


class Given:
    """Of all replicas of one world. window_us: after so long an id expires."""

    def __init__(self, window_us: int):
        self._window_us = window_us
        self._seen: dict[ProcessId, tuple[Replica, int, dict[MessageId, int]]] = {}

    def after_batch(self, pid: ProcessId, replica: Replica) -> Iterator[str]:
        """Sentences about parts that were settled before it forgot, are older, and are still there. What is settled
        after that may be older: it goes the next time."""
        forgot, kept = replica.last_forget_us, replica.signals.kept_longer()
        before, forgot_before, had = self._seen.get(pid, (replica, forgot, kept))
        self._seen[pid] = (replica, forgot, kept)
        if before is replica:
            for message_id in [m for m in had.keys() - kept.keys() if replica.store.part(m) is not None]:
                yield f"replica {pid} has forgotten its part of {message_id.hex()}, and its store has it on"
        if before is replica and forgot_before != forgot:
            first_us = forgot - REMEMBERED_WINDOWS * self._window_us - _ROUNDED_US
            for message_id in [m for m in had.keys() & kept.keys() if kept[m] < first_us]:
                yield f"replica {pid} forgot at {forgot}, and has a part of {kept[message_id]}: {message_id.hex()}"
