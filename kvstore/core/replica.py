"""A replica of one shard: transactions in delivery order. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvstore.core.messages import MESSAGES, Answered, Execute, Refused
from kvstore.core.shard_map import ShardMap
from kvstore.core.state import State
from multicast.protocol import Application, ApplicationOutbox
from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology

__all__ = ["Answered", "Execute", "Refused", "Replica"]

DEDUP_WINDOW_US = 120_000_000
CLOCK_AHEAD_US_MAX = 10_000_000
PART_RETRY_US = 200_000
DIGEST_EVERY = 1000


class Replica(Application):
    """signals: "rule" or True; "delivery" and "off" are for the simulator and for protocols that need no signals."""

    messages = MESSAGES
    completes = True

    def __init__(
        self,
        self_id: ProcessId,
        topology: Topology,
        shard_map: ShardMap,
        store: State,
        *,
        signals: bool | str = True,
        dedup_window_us: int = DEDUP_WINDOW_US,
        leader_of: Callable[[GroupId], ProcessId | None],
        digest_every: int = DIGEST_EVERY,
        part_retry_us: int = PART_RETRY_US,
        clock_ahead_us_max: int = CLOCK_AHEAD_US_MAX,
    ):
        raise NotImplementedError

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        """`Execute`; answered with `Answered` or `Refused`."""

    def status(self) -> dict[str, Any]:
        """Numbers for status pages and metrics: {"log_length", "head_waiting_for": [shards], "head_waiting_us",
        "requests_waiting", "parts_pushed", "parts_pulled", "transactions": {"applied", "expired", "failed", "mismatch"},
        "position"}. JSON-ready."""
        raise NotImplementedError
