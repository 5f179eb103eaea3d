"""The materialised state of a replica: a write buffer of two layers over a backend.

Completed transactions write into the *active* layer. Between two batches the host freezes it, together with the
position; the *frozen* layer is then committed as one transaction of the backend, in another thread, while reads see
active over frozen over backend and writes go to a new active layer. After the commit has returned the frozen layer
goes. So what the backend holds is always a prefix of the completed transactions, with the ids, results and parts that
belong to it. What follows is in the journal.

`Store` implements `kvstore.core.state.State` for the replica; the rest is for the host.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b

from kvstore.api.model import NO_LEASE, RANGE_BYTES_MAX, KeyValue
from kvstore.core.bundles import last_version
from kvstore.core.rows import VERSION_BYTES, decode_row, encode_row, origin_of
from kvstore.core.state import ATTACHED, PLACES, Changed
from kvstore.storage.backend import (
    DATA,
    FORMAT,
    IDS,
    META,
    NOTES,
    PARTS,
    Backend,
    Changes,
    StorageError,
)
from kvstore.storage.cut import Cut, Cuts
from kvstore.storage.history import (
    FLOOR,
    HISTORY_BYTES_MAX,
    HISTORY_US,
    LOOKED_MAX,
    NOTED,
    PORTION_CHANGES,
    Kept,
    Past,
    changed_after,
    write,
)
from kvstore.storage.layers import Layer
from multicast.types import ZERO, MessageId, Timestamp

FORMAT_VERSION = 7
"""1 held the protocol's state, too, and the journal offset that it was of; both are left unread. Rows of 1 and 2 had no
checksums. 1 to 3 had no timestamp, and no second set of tables; 1 to 4 no history and no notes of moves; that of 5 and
6 had rows by key, and is forgotten when it is opened. 1 to 6 had no create versions and no leases."""

OWNER, POSITION, TIMESTAMP, DIGEST, FORGOTTEN = b"owner", b"position", b"timestamp", b"digest", b"forgotten"
"""Keys of `META`: whose it is, how many deliveries the state is of, when the last of them was, `Store.state_digest`,
and the first id that is not forgotten."""
_DELETED = b""
_ENTRY_BYTES = 120
_DIGEST_MASK = (1 << 128) - 1
_NO_FLOOR = b"\xff" * VERSION_BYTES
"""The floor where nothing that was overwritten is known."""
WRITTEN_MAX = 32_768
"""Of so many keys that were written lately the store remembers what a write needs to know of the row before it, which
would otherwise have to be read."""
_NOTHING = (0, b"", NO_LEASE)


def row_digest(key: bytes, row: bytes) -> int:
    """One row's contribution to the state digest. row: version and value."""
    return int.from_bytes(blake2b(len(key).to_bytes(2, "big") + key + row, digest_size=16).digest(), "big")


def owner_of(cluster: bytes, replica: int) -> bytes:
    """The value in `META` that says whose the data is."""
    return cluster + replica.to_bytes(4, "big")


def meta_of(
    owner: bytes, position: int, timestamp: bytes, digest: bytes, forgotten: bytes = b""
) -> dict[bytes, bytes]:
    """The rows of `META` that say whose the data is, and up to where it goes. timestamp: encoded."""
    return {
        FORMAT: FORMAT_VERSION.to_bytes(2, "big"),
        OWNER: owner,
        POSITION: position.to_bytes(8, "big"),
        TIMESTAMP: timestamp,
        DIGEST: digest,
        FORGOTTEN: forgotten,
    }


def _upto(timestamp: bytes) -> Timestamp:
    """The last version that a delivery at this timestamp can have. timestamp: encoded; empty before the first one."""
    return last_version(Timestamp.decode(timestamp)) if timestamp else ZERO


class Store:
    """See the module. Open it with `Store.open`. looked_max, portion: see LOOKED_MAX and PORTION_CHANGES; drawn in
    simulations."""

    looked_max = LOOKED_MAX
    portion = PORTION_CHANGES

    def __init__(self, backend: Backend, owner: bytes, history_us: int, history_bytes_max: int):
        self._backend = backend
        self._owner = owner
        self._history_us = history_us
        self._history_bytes_max = history_bytes_max
        self._active = Layer()
        self._frozen: Layer | None = None
        self._frozen_meta: dict[bytes, bytes] = {}
        self._timestamp = backend.get(META, TIMESTAMP) or b""
        self.complete_to = _upto(self._timestamp)
        """The last version of what is complete."""
        self._first_floor = backend.get(META, FLOOR) or ZERO.encode()
        if backend.get(META, FLOOR) is None and backend.get(META, FORMAT) is not None:  # nobody kept anything
            self._first_floor = self.complete_to.encode() if self._timestamp else _NO_FLOOR
        self._first_noted = backend.get(META, NOTED) or self.complete_to.encode()
        self._digest = int.from_bytes(backend.get(META, DIGEST) or b"", "big")
        self._written: dict[bytes, tuple[int, bytes, bytes]] = {}
        """Of keys written lately: the row's digest, create version and lease; _NOTHING for a deleted one."""
        self._forgotten = backend.get(META, FORGOTTEN) or b""
        self.cuts = Cuts()
        self._cuts_due: list[Timestamp] = []
        self._newest_id = self._newest_frozen = backend.last(IDS) or b""
        """No id in the backend is greater: nearly all that are asked for are not there, and greater."""

    @classmethod
    def open(
        cls,
        backend: Backend,
        cluster: bytes = bytes(16),
        replica: int = 0,
        history_us: int = HISTORY_US,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> Store:
        """history_us: for so long, by the log's timestamps, what was overwritten can be read; 0: nothing of it is kept.
        history_bytes_max: about so many bytes of it at most. StorageError for a newer format or for what belongs to
        another cluster or replica."""
        found = backend.get(META, FORMAT)
        if found is not None and int.from_bytes(found, "big") > FORMAT_VERSION:
            raise StorageError(
                f"{backend.name}: data format {int.from_bytes(found, 'big')} is newer than this program's "
                f"{FORMAT_VERSION}; use a newer release"
            )
        owner = owner_of(cluster, replica)
        other = backend.get(META, OWNER)
        if other is not None and other != owner:
            raise StorageError(
                f"{backend.name}: belongs to replica {int.from_bytes(other[16:], 'big')} of cluster "
                f"{other[:16].hex()}, not to replica {replica} of cluster {cluster.hex()}; use the directory of this"
                " replica"
            )
        if found is not None and int.from_bytes(found, "big") < FORMAT_VERSION:
            backend.upgrade()
        return cls(backend, owner, history_us, history_bytes_max)

    # -- the host's side ----------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The number of deliveries whose effects the backend holds."""
        return int.from_bytes(self._backend.get(META, POSITION) or b"", "big")

    @property
    def pending_bytes(self) -> int:
        """About how much memory the active layer takes: what the next commit would write."""
        return self._active.bytes

    def freeze(self, position: int) -> bool:
        """Between batches: the active layer, complete up to `position`, becomes the frozen one.

        False if a layer is frozen already. Commit only what the journal durably holds: after the flush of the batch
        before this call.
        """
        if self._frozen is not None:
            return False
        self._frozen, self._active = self._active, Layer()
        self._frozen_meta = meta_of(self._owner, position, self._timestamp, self.state_digest(), self._forgotten)
        return True

    def commit(self) -> None:
        """Write the frozen layer in one transaction.

        Blocking; may run in another thread while the loop reads and writes. StorageError leaves everything as it was:
        `commit` may be called again; once it has returned, `thawed` is to be called.
        """
        layer, meta = self._frozen, self._frozen_meta
        if layer is None:
            return
        forgotten = meta[FORGOTTEN]
        self._newest_frozen = max(layer.ids, default=b"")
        tables: dict[str, dict[bytes, bytes | None]] = {
            IDS: {id_: record for id_, record in layer.ids.items() if id_ >= forgotten},
            PARTS: layer.parts,
            NOTES: layer.notes,
            META: {**meta},
        }
        kept = self._kept(layer, _upto(meta[TIMESTAMP]))
        self._backend.apply(Changes(tables, forgotten, partial(write, kept)))

    def _kept(self, layer: Layer, upto: Timestamp) -> Kept:
        if not self._history_us:
            return Kept(layer.data, {}, {}, [], upto.encode(), upto.encode(), upto.encode(), upto.encode(), 0)
        before = Timestamp(max(0, upto.time - self._history_us), 0).encode()
        floor = min(self._first_floor, upto.encode())
        written = layer.data, layer.since, layer.past, layer.log
        return Kept(*written, upto.encode(), floor, self._first_noted, before, self._history_bytes_max)

    def thawed(self) -> None:
        """On the loop, after `commit` returned: the backend has it, the frozen layer goes."""
        self._backend.refresh()
        self._frozen = None
        self._newest_id = max(self._newest_id, self._newest_frozen)

    def close(self) -> None:
        """Release the backend. Does not commit."""
        self._backend.close()

    # -- the replica's side: kvstore.core.state.State -----------------------------------------------------------------

    def _row(self, key: bytes) -> bytes | None:
        row = self._active.data.get(key)
        if row is None and self._frozen is not None:
            row = self._frozen.data.get(key)
        if row is None:
            row = self._backend.get(DATA, key)
        return row or None

    def get(self, key: bytes) -> KeyValue | None:
        """None: absent."""
        row = self._row(key)
        return None if row is None else decode_row(key, row)

    def scan(
        self, first: bytes, end: bytes, limit: int, reverse: bool = False, keys_only: bool = False
    ) -> tuple[list[KeyValue], bool]:
        """The first `limit` rows with first <= key < end (b"": no end), about RANGE_BYTES_MAX at
        most; whether there are more. reverse: the last ones, falling. keys_only: empty values."""
        start = end if reverse else first
        committed = self._backend.scan(DATA, start, reverse)
        newest = -1 if reverse else 1  # of two rows of a key the newer one comes first
        sources = [self._active.rows(start, 0, reverse), ((key, 2 * newest, row) for key, row in committed)]
        if self._frozen is not None:
            sources.append(self._frozen.rows(start, newest, reverse))
        found: list[KeyValue] = []
        last = None
        more = False
        left = RANGE_BYTES_MAX
        for key, _, row in heapq.merge(*sources, reverse=reverse):
            if key < first if reverse else end and key >= end:
                break
            if key == last:
                continue
            last = key
            if row:
                if len(found) == limit or left <= 0:
                    more = True
                    break
                one = decode_row(key, row)
                if keys_only:
                    one.value = b""
                else:
                    left -= len(key) + len(one.value)
                found.append(one)
        committed.close()
        return found, more

    @property
    def floor(self) -> Timestamp:
        """The first version at which everything can be read."""
        complete_to = self.complete_to
        if not self._history_us:
            return complete_to
        by_time = Timestamp(max(0, complete_to.time - self._history_us), 0)
        return max(by_time, Timestamp.decode(max(self._backend.get(META, FLOOR) or b"", self._first_floor)))

    def at(self, version: Timestamp) -> Past:
        """The state as it was at this version, between `floor` and `complete_to`; to be read at once."""
        layers = [layer for layer in (self._active, self._frozen) if layer is not None]
        return Past(self._backend, layers, version, self.looked_max)

    @property
    def changes_from(self) -> Timestamp:
        """What was changed after this version is known."""
        if not self._history_us:
            return self.complete_to
        return Timestamp.decode(max(self._backend.get(META, NOTED) or b"", self._first_noted))

    def changes(self, after: Timestamp, first: bytes, end: bytes) -> tuple[list[Changed], Timestamp]:
        """See `changed_after`; and up to which version that is all. Not before `changes_from`."""
        layers = [layer for layer in (self._active, self._frozen) if layer is not None]
        found, upto = changed_after(self._backend, layers, after, first, end, self.portion)
        return found, max(self.complete_to, after) if upto is None else upto

    def write(
        self,
        key: bytes,
        value: bytes | None,
        version: Timestamp,
        create_version: Timestamp | None = None,
        lease: bytes = NO_LEASE,
    ) -> None:
        """value None: delete; an absent key may be deleted. create_version: None: that of the key, which is `version`
        if it was absent."""
        at = version.encode()
        created = None if create_version is None else create_version.encode()
        if self._put(key, value, at, at, created, lease) and self._history_us:
            self._active.log.append((at, key))

    def place(self, key: bytes, row: KeyValue | None, at: Timestamp) -> None:
        """A row comes or goes with a move at version `at`, which is no change of the key."""
        if row is None:
            self._put(key, None, b"", at.encode(), None, NO_LEASE)
        else:
            self._put(key, row.value, row.version.encode(), at.encode(), row.create_version.encode(), row.lease)

    def _put(
        self, key: bytes, value: bytes | None, version: bytes, at: bytes, created: bytes | None, lease: bytes
    ) -> bool:
        """Returns whether the key was there before or is now. at: the version from which on. created: None: as `write`
        has it."""
        layer, written = self._active, self._written
        before = written.get(key)
        if before is None:
            replaced = self._row(key)
            before = _NOTHING if replaced is None else (row_digest(key, replaced), *origin_of(replaced))
            if len(written) >= WRITTEN_MAX:
                written.clear()
        row, after = _DELETED, _NOTHING
        if value is not None:
            created = (before[1] or version) if created is None else created
            row = encode_row(version, created, lease, value)
            after = row_digest(key, row), created, lease
        written[key] = after
        self._digest = (self._digest + after[0] - before[0]) & _DIGEST_MASK
        if before[2] != after[2]:
            self._attach(key, before[2], after[2])
        if key not in layer.data:
            layer.since[key] = at
        elif self._history_us:
            layer.past.setdefault(key, []).append((at, layer.data[key]))
        layer.data[key] = row
        layer.bytes += _ENTRY_BYTES + len(key) + len(row)
        return bool(before[1] or row)

    def _attach(self, key: bytes, before: bytes, lease: bytes) -> None:
        if before:
            self.set_note(ATTACHED + before + key, None)
        if lease:
            self.set_note(ATTACHED + lease + key, b"1")

    def attached(self, lease: bytes) -> list[bytes]:
        """The keys that are attached to this lease, rising."""
        prefix = ATTACHED + lease
        return [key[len(prefix) :] for key, _ in self.notes(prefix)]

    def cut(self, version: Timestamp) -> None:
        """Keep the rows as they are when the delivery that is being executed is complete."""
        self._cuts_due.append(version)

    def forget_past(self, version: Timestamp) -> None:
        """`floor` is no less than this from now on."""
        self._first_floor = max(self._first_floor, version.encode())

    def reached(self, position: int, timestamp: Timestamp) -> None:
        """Delivery number `position`, at `timestamp`, is complete."""
        self._timestamp, self.complete_to = timestamp.encode(), last_version(timestamp)
        if self._cuts_due:
            layers = [layer for layer in (self._active, self._frozen) if layer is not None]
            digest, places, floor = self.state_digest(), self.note(PLACES) or b"", self.floor
            for version in self._cuts_due:
                cut = Cut(position, timestamp, digest, places, floor, self._backend.view(), layers)
                self.cuts.keep(version, cut)
            self._cuts_due = []

    def state_digest(self) -> bytes:
        """16 bytes: the sum of all rows' digests modulo 2**128, so it depends on the rows alone."""
        return self._digest.to_bytes(16, "big")

    def remembered(self, message_id: MessageId) -> bytes | None:
        """The result kept for this id; None if it was never kept, or forgotten."""
        if message_id < self._forgotten:
            return None
        found = self._active.ids.get(message_id)
        if found is None and self._frozen is not None:
            found = self._frozen.ids.get(message_id)
        if found is None and message_id <= self._newest_id:
            found = self._backend.get(IDS, message_id)
        return found

    def remember(self, message_id: MessageId, record: bytes) -> None:
        """Keep the result of a completed transaction."""
        self._active.ids[message_id] = record
        self._active.bytes += _ENTRY_BYTES + len(record)

    def forget_before(self, message_id: MessageId) -> None:
        """Forget every id less than this one: a range delete at the left end with the next commits."""
        if message_id > self._forgotten:
            self._forgotten = message_id

    def remembered_after(self, message_id: bytes, limit: int) -> list[tuple[MessageId, bytes]]:
        """The first `limit` of (id, result) with greater ids, rising."""
        found: dict[MessageId, bytes] = {}
        committed = self._backend.scan(IDS, message_id + b"\0")
        for id_, record in committed:
            found[id_] = record
            if len(found) == limit:
                break
        committed.close()
        for layer in (self._frozen, self._active):
            if layer is not None:
                found |= {id_: record for id_, record in layer.ids.items() if id_ > message_id}
        return sorted(found.items())[:limit]

    def note(self, key: bytes) -> bytes | None:
        """What `set_note` kept."""
        for layer in (self._active, self._frozen):
            if layer is not None and key in layer.notes:
                return layer.notes[key]
        return self._backend.get(NOTES, key)

    def set_note(self, key: bytes, value: bytes | None) -> None:
        """Keep a note; None: delete it."""
        self._active.notes[key] = value
        self._active.bytes += _ENTRY_BYTES + len(key) + len(value or b"")

    def notes(self, prefix: bytes, limit: int = 0, below: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Those whose keys begin with `prefix` and are less than `below` (b"": all), rising; at most `limit` unless
        that is 0."""
        committed = self._backend.scan(NOTES, prefix)
        sources: list[Iterator[tuple[bytes, int, bytes | None]]] = [((key, 2, value) for key, value in committed)]
        for rank, layer in enumerate((self._active, self._frozen)):  # of two of a key the newer one comes first
            if layer is not None:
                sources.append(layer.noted_from(prefix, rank))
        found: list[tuple[bytes, bytes]] = []
        last = None
        for key, _, value in heapq.merge(*sources):
            if not key.startswith(prefix) or (below and key >= below):
                break
            if key != last and value is not None:
                found.append((key, value))
                if len(found) == limit:
                    break
            last = key
        committed.close()
        return found

    def part(self, message_id: MessageId) -> bytes | None:
        """The retained part of this shard for this transaction."""
        for layer in (self._active, self._frozen):
            if layer is not None and message_id in layer.parts:
                return layer.parts[message_id]
        return self._backend.get(PARTS, message_id)

    def parts(self) -> Iterator[tuple[MessageId, bytes]]:
        """All retained parts."""
        layers = [layer.parts for layer in (self._frozen, self._active) if layer is not None]
        changed = {message_id: part for layer in layers for message_id, part in layer.items()}
        for message_id, committed in self._backend.scan(PARTS, b""):
            if message_id not in changed:
                yield message_id, committed
        for message_id, part in changed.items():
            if part is not None:
                yield message_id, part

    def keep_part(self, message_id: MessageId, part: bytes) -> None:
        """Keep a part until `drop_part`."""
        self._active.parts[message_id] = part
        self._active.bytes += _ENTRY_BYTES + len(part)

    def drop_part(self, message_id: MessageId) -> None:
        """Nobody will ask for it; it need not exist."""
        if self._active.parts.pop(message_id, None) is None and self.part(message_id) is not None:
            self._active.parts[message_id] = None
            self._active.bytes += _ENTRY_BYTES
