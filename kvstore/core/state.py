"""What a replica needs of its storage. Pure: an interface."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kvstore.api.model import NO_LEASE, KeyValue
from multicast.types import MessageId, Timestamp

ATTACHED = b"attached"
"""With what the keys of notes begin that tell which keys are attached to a lease; lease and key follow. Stores write
them, as what they tell is in the rows."""

Changed = tuple[Timestamp, list[tuple[bytes, bytes | None]]]
"""What a transaction has changed: its version, and each key with its value, None if it was deleted."""

PLACES = b"places"
"""The key of the note that says which slots the shard has given and taken (`kvstore.api.shard_map.encode_places`)."""


class PastState(Protocol):
    """The data of one shard as it was at some version. To be read at once."""

    def get(self, key: bytes) -> KeyValue | None:
        """The row of a key; None: absent."""

    def look(
        self, first: bytes, end: bytes, reverse: bool
    ) -> tuple[list[KeyValue], tuple[bytes, bytes] | None]:
        """Some rows with first <= key < end (b"": no end), rising, or falling; and the bounds of the
        rest, None if there is nothing."""


class State(Protocol):
    """The data of one shard, remembered ids and retained parts, as of the last completed transaction."""

    @property
    def position(self) -> int:
        """The number of deliveries whose effects it durably holds."""

    def get(self, key: bytes) -> KeyValue | None:
        """The row of a key; None: absent."""

    def scan(
        self, first: bytes, end: bytes, limit: int, reverse: bool = False, keys_only: bool = False
    ) -> tuple[list[KeyValue], bool]:
        """The first `limit` rows with first <= key < end (b"": no end), in key order, and whether
        there are more. It ends early, but not before the first, at RANGE_BYTES_MAX of keys and values. reverse: the
        last ones, falling. keys_only: empty values, and all that `limit` allows."""

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

    def attached(self, lease: bytes) -> list[bytes]:
        """The keys that are attached to this lease, rising."""

    def place(self, key: bytes, row: KeyValue | None, at: Timestamp) -> None:
        """A row comes, or with None goes, with a move at version `at`."""

    @property
    def changes_from(self) -> Timestamp:
        """What was changed after this version is known."""

    def changes(self, after: Timestamp, first: bytes, end: bytes) -> tuple[list[Changed], Timestamp]:
        """What the first transactions after this version, not before `changes_from`, have changed with first <= key <
        end (b"": no end), in order; and up to which version that is all."""

    def cut(self, version: Timestamp) -> None:
        """Once the delivery that is being executed is complete, its rows are kept under `version`, as they are then."""

    def forget_past(self, version: Timestamp) -> None:
        """What was overwritten before this version is known no more: `floor` is no less."""

    def reached(self, position: int, timestamp: Timestamp) -> None:
        """Delivery number `position`, at `timestamp`, is complete, with all that it writes."""

    @property
    def complete_to(self) -> Timestamp:
        """The last version of what is complete; ZERO: nothing is."""

    @property
    def floor(self) -> Timestamp:
        """The first version of which everything is known."""

    def at(self, version: Timestamp) -> PastState:
        """The data as it was at a version from `floor` to `complete_to`."""

    def state_digest(self) -> bytes:
        """16 bytes, a function of all rows alone."""

    def remembered(self, message_id: MessageId) -> bytes | None:
        """What `remember` kept for this id."""

    def remember(self, message_id: MessageId, record: bytes) -> None:
        """Keep the result of a completed transaction."""

    def forget_before(self, message_id: MessageId) -> None:
        """Forget every id less than this one. Never called with a smaller one than before."""

    def remembered_after(self, message_id: bytes, limit: int) -> list[tuple[MessageId, bytes]]:
        """The first `limit` of (id, what `remember` kept) with greater ids, rising; some may be forgotten already."""

    def note(self, key: bytes) -> bytes | None:
        """What `set_note` kept. Notes are of moves (`kvstore.core.moves`), and ATTACHED."""

    def set_note(self, key: bytes, value: bytes | None) -> None:
        """Keep a note; None: delete it."""

    def notes(self, prefix: bytes, limit: int = 0, below: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Those whose keys begin with `prefix` and are less than `below` (b"": all), rising; at most `limit` unless
        that is 0."""

    def part(self, message_id: MessageId) -> bytes | None:
        """What `keep_part` kept."""

    def parts(self) -> Iterator[tuple[MessageId, bytes]]:
        """All that `keep_part` kept and `drop_part` did not drop. Nothing is written meanwhile."""

    def keep_part(self, message_id: MessageId, part: bytes) -> None:
        """Keep this shard's part of a transaction."""

    def drop_part(self, message_id: MessageId) -> None:
        """Nobody will ask for this part, which need not exist."""
