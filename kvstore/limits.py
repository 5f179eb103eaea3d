"""What a replica takes at once, keeps, and waits for: `limits` of `cluster.json`."""

from __future__ import annotations

import msgspec

from kvstore.api import model
from kvstore.storage.history import HISTORY_BYTES_MAX, HISTORY_US

MIB = 1024 * 1024


class Limits(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """connections_max: of clients to one replica; for one more, that which is unused for longest is closed.
    Fewer, as its log says, where the process may not open files for so many (`ulimit -n`).
    body_bytes_max: of one HTTP request. in_flight_requests_max: unanswered requests at one replica; more get a 503, and
    fewer if they would not be answered in time (`kvstore.http.admission`). in_flight_bytes_max: of the bodies of
    unanswered requests at one replica; more wait. As much again and one body may be arriving: of those beyond 64 KiB
    what has come is counted. One that comes slowly is refused. What all replicas may have under way together is
    what a new leader gets and gives: the more, the longer a shard is without one.
    timeout_default_ms, timeout_max_ms: for requests without `X-Timeout-Ms`, and the most that one may ask for. Whatever
    they say, after a minute a replica waits no longer.
    commit_interval_ms, commit_bytes: the write buffer goes to LMDB this often, or once it holds this much.
    buffer_bytes_max: write buffer beyond which requests get a 503; see `held_bytes`. segment_bytes_max: of a journal
    file.
    journal_keep_bytes: of which stays for others that lag. stop_deadline_ms: for open requests, when it stops.
    disk_full_bytes: with less room on its disk a replica refuses what adds to the data (507); deletions and reads go
    on. disk_stop_bytes: with less it stands still, not ready and not voting, until there is more.
    history_ms: for so long what was overwritten can be read at its version, if it is not more than about
    history_bytes_max at one replica; 0: nothing of it is kept, the pages of a scan are of different versions, and there
    are no watches. watches_max: at one replica. watch_buffer_bytes_max: of changes that it keeps in memory for all of
    them; who falls further behind is told so.
    """

    connections_max: int = 4096
    body_bytes_max: int = model.BODY_BYTES_MAX
    in_flight_requests_max: int = 4096
    in_flight_bytes_max: int = 8 * MIB
    timeout_default_ms: int = 5_000
    timeout_max_ms: int = 60_000
    commit_interval_ms: int = 1_000
    commit_bytes: int = 8 * MIB
    buffer_bytes_max: int = 128 * MIB
    segment_bytes_max: int = 64 * MIB
    journal_keep_bytes: int = 256 * MIB
    stop_deadline_ms: int = 5_000
    disk_full_bytes: int = 64 * MIB
    disk_stop_bytes: int = 16 * MIB
    history_ms: int = HISTORY_US // 1000
    history_bytes_max: int = HISTORY_BYTES_MAX
    watches_max: int = 2_000
    watch_buffer_bytes_max: int = 16 * MIB

    @property
    def held_bytes(self) -> int:
        """Write buffer beyond which nothing more is delivered, for nothing is read from peers. What was under way when
        requests began to be refused has room before: a leader that does not read hears nobody who obeys it, and under
        such a load the next one would fare alike."""
        return self.buffer_bytes_max * 3 // 2

    def problem(self) -> str:
        """What is wrong with them, beginning with the key; empty if nothing is."""
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if not low <= value <= high:
                return f"limits.{name}: from {low} to {high}, not {value}"
        if self.timeout_default_ms > self.timeout_max_ms:
            return "limits.timeout_default_ms: at most limits.timeout_max_ms"
        if self.commit_bytes > self.buffer_bytes_max:
            return "limits.commit_bytes: at most limits.buffer_bytes_max"
        if self.disk_stop_bytes > self.disk_full_bytes:
            return "limits.disk_stop_bytes: at most limits.disk_full_bytes"
        return ""


_BOUNDS: dict[str, tuple[int, int]] = {
    "connections_max": (1, 1_000_000),
    "body_bytes_max": (1024, model.BODY_BYTES_MAX),
    "in_flight_requests_max": (1, 1_000_000),
    "in_flight_bytes_max": (64 * 1024, 64 * MIB),
    "timeout_default_ms": (1, 600_000),
    "timeout_max_ms": (1, 600_000),
    "commit_interval_ms": (10, 60_000),
    "commit_bytes": (64 * 1024, 1024 * MIB),
    "buffer_bytes_max": (MIB, 16 * 1024 * MIB),
    "segment_bytes_max": (MIB, 1024 * MIB),
    "journal_keep_bytes": (0, MIB * MIB),
    "stop_deadline_ms": (100, 600_000),
    "disk_full_bytes": (0, MIB * MIB),
    "disk_stop_bytes": (0, MIB * MIB),
    "history_ms": (0, 30 * 86_400_000),
    "history_bytes_max": (64 * 1024, MIB * MIB),
    "watches_max": (0, 1_000_000),
    "watch_buffer_bytes_max": (64 * 1024, 1024 * MIB),
}
