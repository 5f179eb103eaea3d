"""Snapshots: what a process misses, and no journal of its group holds any more, it takes from a peer as a whole. Pure.

Theory of operation. Journals end: who asks for deliveries that a peer's journal has dropped hears *gone*. It then asks
that peer for a snapshot, chunk by chunk: each request names where the last chunk ended, and is repeated until it is
answered. The peer reads the rows of the application from a view of one committed position P, which stays as it is while
the group goes on; a peer that has no view of that position any more begins anew with the one that it has, and so does
another peer, asked because the first is silent. Who has said *gone* is asked, too, if no view known here names it: all
members that are known may have been removed meanwhile. Neither side holds more than a chunk in memory: what has come is
*staged* beside what the process has, where nobody sees it, and the next chunk is asked for after a pause (`PACE`).
A whole snapshot is *sealed*. Then this life ends, and before the next one begins it is installed
(`multicast.install`): nothing that a process keeps in memory has to be told, for all of it is made anew from what
is on its disk, as in every life.

What a snapshot at P holds is what is a function of the group's log up to P, and nothing else:
- the application's rows, with whatever tells repetitions from first times;
- the ids that the group has delivered, with timestamps and positions, as far as they are not forgotten: else a late
  copy would be ordered as if it were new;
- of what was delivered and is not settled, message and stamp: others have forgotten theirs counting on every process
  that says it has delivered so far, and a leader must be able to tell it again;
- the timestamp of delivery P: stamps and deliveries go on above it.
Who gives it has gone on since it began: what it has learned meanwhile of deliveries after P is cut off, and what was
forgotten or settled meanwhile nobody will ask for (parts.delivered), so it need not be there.

Who takes it may have deliveries of its own after P that it cannot complete, for want of what others have forgotten:
they stand in its journal, and follow on the snapshot.

It never touches what only one process has vouched for: promises, ballots, the marker of a lost disk, and what it has
accepted that is not delivered by P. All this stays as it was, so that to its group a process that has installed a
snapshot is one that was told every delivery up to P one by one (`MulticastProtocol.on_install`). Clocks only rise: by
the timestamp of delivery P, as they would have by the deliveries.

Installation is one step. All of a snapshot is staged and sealed on disk before anything else changes. Then one batch of
the journal says it: a life that begins, `Installed`, what the protocol puts, and that it ends; then the application
takes over what is staged. A crash before the batch, or after it, finds the sealed snapshot and does both (again, which
changes nothing: no life has begun in between). A crash before the seal leaves the state as it was. From then on this
journal's floor is P.

Not for everybody: a protocol says what it has to give (`MulticastProtocol.history`), an application keeps the rows
(`Keeper`). Where either is missing, journals must not drop what a member may still lack.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from multicast.batch import Batch
from multicast.protocol import MulticastProtocol
from multicast.types import ZERO, ProcessId, Timestamp
from multicast.wire import Gone, SnapshotChunk, SnapshotRequest

CHUNK_BYTES = 256 * 1024
"""About how much one chunk carries."""
PACE = 16 * 1024 * 1024
"""How many bytes of a snapshot are asked for per second, at most."""
_REMOVED = "removed"
"""The role of who belongs to its group no more."""
RETRY_US, RETRY_US_MAX = 2_000_000, 10_000_000
"""After so long without an answer another peer is asked; after twice as long, if there was none in time, or one that
took so long: else, where every answer takes longer, each would come from somebody who was given up."""
ROWS_AT_ONCE = 4_000
"""Of the protocol's rows, which are many, so many are made ready at once: else all would wait for that."""
PAUSE_US = 2_000
"""Between two times."""
KEPT_US = 15_000_000
"""How long the protocol's rows are kept for a peer that does not ask for them."""
OF_PROTOCOL = b"\xff"
"""Keys of rows that are the protocol's begin with this, those of the application with a smaller byte."""


_Rows = list[tuple[bytes, bytes]]


class Keeper(Protocol):
    """What a host needs of its application: its rows as of a committed position, and room for those of a peer. Both
    may be called in another thread than the engine's, and raise OSError or what the application's storage raises."""

    def read(self, peer: ProcessId, request: SnapshotRequest) -> SnapshotChunk | None:
        """The application's rows for this peer, after `request.after`; from the first on, of the position that is
        committed by now, if it holds those of `request.position` no longer. The last ones have `next` OF_PROTOCOL. None
        if there is nothing to give yet."""

    def lowest(self, position: int) -> int:
        """This position, or a lower one of which a snapshot is being given: who takes it needs what follows on it. In
        the engine's thread; it does not wait."""

    def stage(self, chunk: SnapshotChunk) -> bool:
        """Keep its rows aside; the first chunk of a snapshot (`after` is empty) replaces whatever was kept. False if it
        cannot be kept, for want of room or because no correct peer sends it."""


def portion(rows: Iterator[tuple[bytes, bytes]], bytes_max: int) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """About so much of them, and the key after which the rest follows; empty if these are all."""
    found: list[tuple[bytes, bytes]] = []
    size = 0
    for key, value in rows:
        found.append((key, value))
        size += len(key) + len(value)
        if size >= bytes_max:
            return found, key
    return found, b""


class Snapshots:
    """At one process: gives to peers of its group, and fetches for itself.

    completed(): how many deliveries it has completed. away: peers to which there is no connection.
    enabled: there is a `Keeper`. missing: the floor of a peer's journal below which this process lacks deliveries that
    it cannot fetch, for want of one; 0: none. source: who gave the whole snapshot that was staged last. While that is
    news nothing else is staged over it: it is about to be sealed.
    """

    def __init__(
        self,
        protocol: MulticastProtocol,
        away: set[ProcessId],
        completed: Callable[[], int],
        send: Callable[[ProcessId, Gone | SnapshotChunk | SnapshotRequest], None],
    ):
        self.enabled = False
        self.missing = 0
        self._protocol = protocol
        self._away = away
        self._completed, self._send = completed, send
        self._given: dict[ProcessId, tuple[tuple[int, Timestamp], _Rows]] = {}
        self._given_at = self._prepare_at = 0
        self._preparing: dict[ProcessId, tuple[SnapshotRequest, Iterator[tuple[bytes, bytes]], _Rows]] = {}
        self.source: ProcessId | None = None
        self._holders: set[ProcessId] = set()
        self._peer: ProcessId | None = None
        self._position = self._bytes = self._rows = self._total = 0
        self._timestamp = ZERO
        self._after = b""
        self._asked = self._staging = False
        self._at = self._asked_at = 0
        self._patience = RETRY_US

    @property
    def _peers(self) -> list[ProcessId]:
        """Whom to ask: the members that are known, then who else has said that it has had what is missing."""
        protocol = self._protocol
        members = protocol.topology.groups[protocol.group]
        return [p for p in (*members, *sorted(self._holders.difference(members))) if p != protocol.self_id]

    def on_message(self, peer: ProcessId, message: object, now: int, batch: Batch) -> None:
        """One of Gone, SnapshotRequest and SnapshotChunk, from a member of the own group."""
        if type(message) is Gone:
            self._on_gone(peer, message.floor, now)
        elif type(message) is SnapshotRequest:
            self._on_request(peer, message, now, batch)
        elif type(message) is SnapshotChunk:
            self._on_chunk(peer, message, now, batch)

    # -- giving -------------------------------------------------------------------------------------------------------

    def _on_request(self, peer: ProcessId, request: SnapshotRequest, now: int, batch: Batch) -> None:
        """The application's rows come first, the protocol's as they are when the first of them are asked for."""
        history = self._protocol.history
        if not self.enabled or history is None or self._protocol.role() == _REMOVED:
            return  # who was removed follows the views no more, and would leave some out
        if not request.after.startswith(OF_PROTOCOL) or self._completed() < request.position:
            batch.rows.append((peer, request))
            return
        kept, of = self._given.get(peer), (request.position, request.timestamp)
        if kept is not None and kept[0] == of:
            self._give(peer, request, kept[1], now)
            return
        begun = self._preparing.get(peer)
        if begun is not None and (begun[0].position, begun[0].timestamp) == of:
            self._preparing[peer] = (request, *begun[1:])  # the answer is on its way
            return
        self._preparing[peer] = (request, iter(history.given(*of)), [])
        self._prepare(peer, now)

    def _prepare(self, peer: ProcessId, now: int) -> None:
        """Some more of the protocol's rows, which are put in order once for all chunks of this peer; then the first
        chunk."""
        request, given, rows = self._preparing[peer]
        before = len(rows)
        rows += [(OF_PROTOCOL + key, value) for key, value in islice(given, ROWS_AT_ONCE)]
        if len(rows) == before + ROWS_AT_ONCE:
            self._prepare_at = now + PAUSE_US
            return
        del self._preparing[peer]
        rows.sort()
        self._given[peer] = ((request.position, request.timestamp), rows)
        self._give(peer, request, rows, now)

    def _give(self, peer: ProcessId, request: SnapshotRequest, rows: _Rows, now: int) -> None:
        first = bisect_right(rows, request.after, key=lambda row: row[0])
        found, more = portion(islice(rows, first, None), CHUNK_BYTES)
        self._given_at = now
        self._send(peer, SnapshotChunk(request.position, request.timestamp, request.after, found, more, 0))

    # -- fetching -----------------------------------------------------------------------------------------------------

    def _on_gone(self, peer: ProcessId, floor: int, now: int) -> None:
        if floor <= self._completed():
            return
        if not self.enabled or self._protocol.history is None:
            self.missing = floor
            return
        self._holders.add(peer)
        if self._peer is None and not (self.source is not None and self._completed() < self._position):
            self._peer, self._after = peer, b""
            self._position, self._timestamp = 0, ZERO
            self._patience = RETRY_US
            self._ask(now)

    def _ask(self, now: int) -> None:
        assert self._peer is not None
        self._asked, self._asked_at, self._at = True, now, now + self._patience
        self._send(self._peer, SnapshotRequest(self._position, self._timestamp, self._after))

    def _on_chunk(self, peer: ProcessId, chunk: SnapshotChunk, now: int, batch: Batch) -> None:
        """It is the one that was asked for, or the first one of another position."""
        if peer != self._peer or self._staging:
            return
        if chunk.position != self._position or not chunk.after:
            if chunk.after:
                return
            self._bytes = self._rows = self._total = 0
            self._position, self._timestamp, self._after = chunk.position, chunk.timestamp, b""
        elif chunk.after != self._after:
            return
        self._asked, self._staging = False, True
        self._patience = max(RETRY_US, min(2 * (now - self._asked_at), RETRY_US_MAX))
        batch.staging.append(chunk)

    def staged(self, chunk: SnapshotChunk, kept: bool, now: int) -> None:
        """The host has staged it, or could not keep it: then it is asked for again, of somebody else."""
        self._staging = False
        if not kept:
            self._asked, self._at = True, now + RETRY_US
            return
        size = sum(len(key) + len(value) for key, value in chunk.rows)
        self._bytes, self._rows = self._bytes + size, self._rows + len(chunk.rows)
        self._total = max(self._total, chunk.total)
        self._after = chunk.next
        self._at = now + size * 1_000_000 // PACE
        if not chunk.next:
            self.source, self._peer = self._peer, None

    def tick(self, now: int) -> int | None:
        """Do what is due. Returns when there is something to do again."""
        if self._given and now > self._given_at + KEPT_US:
            self._given.clear()
        if self._preparing and now >= self._prepare_at:
            for peer in list(self._preparing):
                self._prepare(peer, now)
        wake = self._fetch(now)
        if self._preparing:
            return self._prepare_at if wake is None else min(wake, self._prepare_at)
        return wake

    def _fetch(self, now: int) -> int | None:
        """Ask for what is due. Returns when to ask again."""
        if self._peer is None or self._staging:
            return None
        if 0 < self._position <= self._completed():
            self._peer = None  # the deliveries came another way
            return None
        if now >= self._at:
            if self._asked or self._peer in self._away:
                self._patience = min(2 * self._patience, RETRY_US_MAX)
                self._peer = self._next_peer(self._peer)
            self._ask(now)
        return self._at

    def _next_peer(self, peer: ProcessId) -> ProcessId:
        """Another one that is connected, or the same."""
        peers = self._peers
        first = peers.index(peer) + 1 if peer in peers else 0
        around = [*peers[first:], *peers[:first]]
        return next((p for p in around if p not in self._away), peer)

    def status(self) -> dict[str, int] | None:
        """For people: from whom a snapshot is being fetched, of which position, and how far; None if none is."""
        if self._peer is None:
            return None
        return {
            "peer": self._peer, "position": self._position, "rows": self._rows, "rows_total": self._total,
            "bytes": self._bytes,
        }  # fmt: skip
