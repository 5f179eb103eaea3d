"""Who is to be woken at an instant that has passed, does nothing then, and is to be woken again: in life it would take
a processor for as long as that goes on, and nobody else would notice."""

from __future__ import annotations

from multicast.batch import Batch
from multicast.types import ProcessId

BATCHES_MAX = 2_000
"""Whoever has much to look through does so a portion in each batch. What it is asked meanwhile does not count."""


class Spinning:
    """Of all replicas of one world."""

    def __init__(self) -> None:
        self._many: dict[ProcessId, int] = {}

    def after_batch(self, pid: ProcessId, batch: Batch, now: int) -> bool:
        """now: the process's time. Whether it has gone on like that for too long; said once."""
        awake = batch.wake_at is not None and batch.wake_at <= now
        idle = not (batch.sends or batch.journal or batch.answers or batch.reads or batch.rows or batch.staging)
        before = self._many.get(pid, 0)
        self._many[pid] = before + idle if awake else 0
        return before < BATCHES_MAX == self._many[pid]
