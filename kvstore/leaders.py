"""Who leads a shard, as one of its replicas sees it, for log and metrics: every change, and how long nobody led."""

from __future__ import annotations

import time

from multicast.logs import structlog
from multicast.protocol import MulticastProtocol
from multicast.types import ProcessId

_log = structlog.get_logger("kvstore.host")


class Leaders:
    """changes: how often the leader has changed since this process began; a protocol without leaders has none."""

    def __init__(self) -> None:
        self.changes = 0
        self._leader: ProcessId | None = None
        self._last: ProcessId | None = None
        self._none_since: float | None = time.monotonic()

    def seconds_without(self) -> float:
        """For how long this replica has known no leader."""
        return 0.0 if self._none_since is None else time.monotonic() - self._none_since

    def look(self, protocol: MulticastProtocol) -> None:
        """To be called after each batch."""
        leader = None if protocol.role() == "recovering" else protocol.leader_of(protocol.group)
        if leader == self._leader:
            return
        self._leader = leader
        if leader is None:
            self._none_since = time.monotonic()
            return
        described, seconds = protocol.describe(), round(self.seconds_without(), 3)
        ballot = described.get("ballot", described.get("epoch"))
        _log.info(
            "leader", shard=protocol.group, leader=leader, ballot=ballot, before=self._last, seconds_without=seconds
        )
        self.changes += self._last not in (None, leader)
        self._last, self._none_since = leader, None
