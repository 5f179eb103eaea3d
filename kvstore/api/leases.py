"""Leases: rows that must be renewed, and the keys that go with them. Pure.

Theory of operation. A lease is an ordinary row, of a key that no client can name (`OWN`): so it is replicated, moved,
backed up and judged as all rows are. Its value is the time to live in milliseconds, then the slots in which keys were
attached to it. Its version is its count of renewals: granting, renewing and revoking it are ordinary transactions that
compare and write that row. A lease's id is that of the transaction that granted it.

To attach a key is to write it with the lease's id in its own row (`LeasedPut`), in one transaction with the lease's
home, the shard of the lease's row: without that row nothing is written, and a slot that is new to it is noted there. A
put without a lease, or a deletion, detaches the key: its row names the lease no more. Nobody else has to know, for what
goes with a lease is exactly what names it when the lease goes. Adding and appending leave a key attached.

To end a lease, as its client asks or since it has expired, is one transaction: *if the row still has version v*, delete
it, and, in the shards of its slots, every key that names it (`Revoke`). Version and slots are of one read of the row.
Whatever is ordered before decides: after a renewal, or a first key in another slot, the version is another one and
nothing happens. All shards decide by the votes, as for any condition; so what is attached goes at one point of the
order, whichever shards it is in. Who asks for it, and how often, is a matter of time only (`kvstore.core.leases`).
"""

from __future__ import annotations

from typing import NamedTuple

from kvstore.api.model import (
    FIRST_KEY,
    SCAN_LIMIT_MAX,
    Append,
    Compare,
    Get,
    InvalidTransaction,
    KeyValue,
    OperationResult,
    Put,
    Range,
    Revoke,
    Transaction,
    lease_key,
)
from multicast.types import MessageId

ROWS = lease_key(b"")
"""With what the keys of all leases begin."""

TTL_MS_MIN = 1_000
TTL_MS_MAX = 24 * 3600 * 1000


class Lease(NamedTuple):
    """What its row says. slots: where keys were attached to it, rising."""

    ttl_ms: int
    slots: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The value of its row."""
        return b" ".join([b"%d" % number for number in (self.ttl_ms, *sorted(self.slots))])

    def with_slot(self, slot: int) -> Lease:
        """A key of this slot is attached to it, too."""
        return Lease(self.ttl_ms, tuple(sorted({*self.slots, slot})))


def decode_lease(value: bytes) -> Lease:
    """The inverse of `Lease.encode`."""
    ttl_ms, *slots = [int(number) for number in value.split()]
    return Lease(ttl_ms, tuple(slots))


def check_ttl(ttl_ms: int) -> None:
    """InvalidTransaction if it is out of bounds."""
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise InvalidTransaction("ttl_ms", f"from {TTL_MS_MIN} to {TTL_MS_MAX}, not {ttl_ms}")


def grant(lease: MessageId, ttl_ms: int) -> Transaction:
    """Its version is the lease's first."""
    key = lease_key(lease)
    return Transaction((Compare(key, "exists", "==", False),), (Put(key, Lease(ttl_ms).encode()),))


def look(lease: MessageId, keys: bool = False) -> Transaction:
    """Its last result has the row, if there is one. keys: the one before has what is attached to it."""
    row = Get(lease_key(lease))
    attached = Range(b"", SCAN_LIMIT_MAX, start=FIRST_KEY, keys_only=True, lease=lease)
    return Transaction(success=(attached, row) if keys else (row,))


def list_after(lease: MessageId, limit: int) -> Transaction:
    """Its result has the rows of the first `limit` leases with greater ids (empty: of all), in the order of ids."""
    return Transaction(success=(Range(ROWS, limit, lease_key(lease) if lease else b""),))


def id_of(key: bytes) -> MessageId:
    """Of the lease whose row has this key."""
    return bytes.fromhex(key[len(ROWS) :].decode())


def renew(lease: MessageId) -> Transaction:
    """If it succeeds, the lease begins anew; its second result has the row."""
    key = lease_key(lease)
    return Transaction((Compare(key, "exists", "==", True),), (Append(key, b""), Get(key)))


def revoke(row: KeyValue, lease: MessageId) -> Transaction:
    """If it succeeds, the lease and what is attached to it are gone; else its row, which its result has, is not this
    one any more."""
    condition = Compare(row.key, "version", "==", row.version)
    return Transaction((condition,), (Revoke(lease, decode_lease(row.value).slots),), (Get(row.key),))


def ends(transaction: Transaction) -> bool:
    """Whether it is of `revoke`: replicas ask for it, too."""
    condition, success = transaction.compare, transaction.success
    return len(condition) == len(success) == 1 and isinstance(success[0], Revoke) and condition[0].target == "version"


def row_of(results: tuple[OperationResult, ...]) -> KeyValue | None:
    """The row in the last of these."""
    return results[-1].found if results else None
