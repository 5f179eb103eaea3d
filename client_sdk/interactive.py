"""Interactive transactions: read, think, write, commit. They live in the client; the server sees one-shot transactions.

Reads happen at once, each at its own point of the order, so before the commit they may show states that never existed
together; writes are buffered. The commit is one transaction: if every key that was read still has the version that was
seen, and no key of a range that was scanned is newer than the scan, all writes are applied, else nothing. So a
transaction that commits is strictly serializable, at its commit.

Why the versions of a range suffice. A scan has a version V that is not less than the version of anything that it has
found; so what has a greater version at the commit was written since. Conversely, whatever was written since has a
greater version, because every shard that was read had completed everything up to V: a page's version is the least up to
which all of them have completed everything, and where something newer was found, everything is read once more, at the
greatest version found; or, where that is not known any more, as when no history is kept, in its place of the order.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from msgspec.structs import replace
from tenacity import RetryCallState, retry_if_exception_type, stop_before_delay

from client_sdk import operations
from client_sdk.attempts import Attempts
from client_sdk.errors import (
    Changed,
    Compacted,
    Conflict,
    InvalidRequest,
    KvError,
    ResultsForgotten,
    TransactionFailed,
    Unavailable,
)
from client_sdk.keyspace import Keyspace
from client_sdk.operations import as_bytes
from client_sdk.requests import positive_seconds
from kvstore.api.model import (
    OPERATIONS_MAX,
    SCAN_LIMIT_MAX,
    Compare,
    Delete,
    Get,
    KeyValue,
    LeasedPut,
    NoneNewer,
    Operation,
    OperationResult,
    Put,
    Range,
    Transaction,
    between,
)
from kvstore.api.model import bounds as range_of
from multicast.types import ZERO, Timestamp

WAIT_ATTEMPTS = 24
WAIT_ATTEMPTS_MAX = 96
WAIT_SECONDS_MAX = 2.0
"""After a Conflict a transaction waits, for a time drawn up to that of WAIT_ATTEMPTS of its attempts, before it is run
again; up to twice as long after each further Conflict, within these limits. (With these numbers fifty programs that
write one key need about three attempts each: of those whose attempts overlap one commits.)"""

_NONE_NEWER = "none_newer:"
"""So the text of a failure begins whose reason is a range's, see kvstore/HTTP.md."""


class InteractiveTransaction:
    """Made by `transaction` and `transact` of the clients.

    version: None until it has committed, then the commit's version. It stays None for one that neither read nor wrote.
    """

    def __init__(self, attempts: Attempts, keys: Keyspace, timeout: float | None):
        self._attempts = attempts
        self._keys = keys
        self._deadline = None if timeout is None else time.monotonic() + positive_seconds("timeout", timeout)
        self._reads: dict[bytes, KeyValue | None] = {}
        self._writes: dict[bytes, Put | LeasedPut | Delete] = {}
        self._scans: list[tuple[bytes, bytes, bytes, Timestamp]] = []
        self._done = False
        self.version: Timestamp | None = None

    async def get(self, key: bytes | str) -> bytes | None:
        """The value: this transaction's own write if there is one, else what the first read of the key saw."""
        self._check_open()
        name = as_bytes("key", key)
        if name in self._writes:
            return _value(self._writes[name])
        if name not in self._reads:
            read = await self._attempts.run(self._keys.get(name, timeout=self._remaining()))
            self._reads.setdefault(name, read)  # unless another task has read it meanwhile
        found = self._reads[name]
        return None if found is None else found.value

    async def scan(
        self, prefix: bytes | str = b"", *, start: bytes | str = b"", end: bytes | str = b""
    ) -> dict[bytes, bytes]:
        """All keys that begin with `prefix`, are not less than `start` and less than `end`, with their values, in
        order; this transaction's own writes among them. What comes into the range, changes or goes before the commit
        is a Conflict. Together a transaction reads and writes at most OPERATIONS_MAX keys."""
        self._check_open()
        bounds = Range(as_bytes("prefix", prefix), 1, b"", as_bytes("start", start), as_bytes("end", end))
        version, found = await self._pages(bounds, None)
        newest = max([entry.version for entry in found], default=version)
        if newest > version:
            try:
                version, found = await self._pages(bounds, newest)
            except Compacted:
                version, found = await self._ordered(bounds)
        for entry in found:
            self._reads.setdefault(entry.key, entry)
        self._scans.append((bounds.prefix, bounds.start, bounds.end, version))
        first, last = range_of(bounds)
        values: dict[bytes, bytes | None] = {entry.key: entry.value for entry in found}
        values |= {key: _value(write) for key, write in self._writes.items() if between(key, first, last)}
        return {key: value for key, value in sorted(values.items()) if value is not None}

    async def _pages(self, bounds: Range, version: Timestamp | None) -> tuple[Timestamp, list[KeyValue]]:
        """All entries of a range, and the version that they are of."""
        found: list[KeyValue] = []
        token: str | None = None
        while True:
            page = await self._attempts.run(
                self._keys.page(
                    bounds.prefix, start=bounds.start, end=bounds.end, page_size=SCAN_LIMIT_MAX, token=token,
                    version=None if token else version, timeout=self._remaining(),
                )
            )  # fmt: skip
            version = page.version if version is None else min(version, page.version)
            found += page.entries
            _check_size(found)
            token = page.next_page_token
            if token is None:
                return version, found

    async def _ordered(self, bounds: Range) -> tuple[Timestamp, list[KeyValue]]:
        """The same, ordered as writes are: each page at its own version, and the first one's is told."""
        found: list[KeyValue] = []
        first, more = None, True
        while more:
            page = replace(bounds, limit=SCAN_LIMIT_MAX, after=found[-1].key if found else b"")
            asked = self._keys.transaction(Transaction(success=(page,)), timeout=self._remaining()).under(None)
            try:
                result = await self._attempts.run(asked)
            except ResultsForgotten:  # of an attempt whose answer was lost, and that has only read
                continue
            first = first or result.version
            found += result.results[0].entries
            more = result.results[0].more
            _check_size(found)
        assert first is not None
        return first, found

    def put(self, key: bytes | str, value: bytes | str, *, lease: bytes | None = None) -> None:
        """Write this key at the commit. `lease`: the id of one: the key goes when that goes; if it has gone before the
        commit, that raises TransactionFailed. Without it the key is attached to none."""
        self._write(operations.Put(key, value, lease).plain())

    def delete(self, key: bytes | str) -> None:
        """Delete this key at the commit."""
        self._write(Delete(as_bytes("key", key)))

    def _write(self, write: Put | LeasedPut | Delete) -> None:
        self._check_open()
        self._writes[write.key] = write

    async def commit(self) -> None:
        """Apply all writes if nothing that was read has changed; otherwise Conflict. TransactionFailed if a lease has
        gone, or has too many keys. Called where the block ends."""
        self._check_open()
        self._done = True
        if not self._reads and not self._writes and not self._scans:
            return
        expected = {key: found.version if found else ZERO for key, found in self._reads.items()}
        compare = tuple(Compare(key, "version", "==", version) for key, version in expected.items())
        writes: tuple[Operation, ...] = tuple(self._writes.values())
        writes += tuple(NoneNewer(prefix, version, start, end) for prefix, start, end, version in self._scans)
        look = tuple(Get(key) for key in list(expected)[: max(OPERATIONS_MAX - len(compare) - len(writes), 0)])
        commit = self._keys.transaction(Transaction(compare, writes, look), timeout=self._remaining())
        try:
            result = await self._attempts.run(commit)
        except ResultsForgotten as error:
            if error.succeeded:
                self.version = error.version
                return
            raise Conflict(_changed(expected, ())) from error
        except TransactionFailed as error:
            if not str(error).startswith(_NONE_NEWER):
                raise  # a lease is to blame
            raise Conflict(await self._come_in()) from error
        if not result.succeeded:
            raise Conflict(_changed(expected, result.results))
        self.version = result.version

    async def _come_in(self) -> list[Changed]:
        """What has been written into the ranges since their scans; the ranges themselves, if no replica can tell."""
        changed: list[Changed] = []
        for prefix, start, end, version in self._scans:
            with suppress(KvError):
                _, found = await self._pages(Range(prefix, 1, b"", start, end), None)
                reads = [(entry, self._reads.get(entry.key)) for entry in found if entry.version > version]
                changed += [Changed(entry.key, read.version if read else ZERO, entry.version) for entry, read in reads]
        return changed or [Changed(max(scan[0], scan[1]), scan[3], None) for scan in self._scans]

    def _check_open(self) -> None:
        if self._done:
            raise RuntimeError("this transaction has ended")

    def _remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(self._deadline - time.monotonic(), 0.001)


def _value(write: Put | LeasedPut | Delete) -> bytes | None:
    return None if isinstance(write, Delete) else write.value


def _check_size(found: list[KeyValue]) -> None:
    if len(found) > OPERATIONS_MAX:
        detail = f"scan: a transaction reads at most {OPERATIONS_MAX} keys; narrow the range"
        raise InvalidRequest(detail, code="invalid", field="prefix")


def _changed(expected: dict[bytes, Timestamp], looked: Sequence[OperationResult]) -> list[Changed]:
    """The keys that are to blame for a conflict; where none of the keys that were looked at again has changed, the
    others."""
    keys = list(expected)
    found = {key: one.found.version if one.found else ZERO for key, one in zip(keys, looked, strict=False)}
    changed = [Changed(key, expected[key], version) for key, version in found.items() if version != expected[key]]
    return changed or [Changed(key, expected[key], None) for key in keys if key not in found]


def pause(conflicts: int, attempt_seconds: float, draw: float) -> float:
    """Seconds until a transaction is run again after so many conflicts. attempt_seconds: what one attempt took on
    average. draw: at random, from 0 to 1."""
    attempts = min(WAIT_ATTEMPTS << (conflicts - 1), WAIT_ATTEMPTS_MAX)
    return draw * min(attempts * attempt_seconds, WAIT_SECONDS_MAX)


def _wait(state: RetryCallState) -> float:
    busy = (state.seconds_since_start or 0.0) - state.idle_for
    return pause(state.attempt_number, busy / state.attempt_number, random.random())


class Conflicts:
    """Of the attempts at one transaction. Who is refused the time for another attempt soon after one (`seconds`) had no
    lack of replicas."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._last: Conflict | None = None
        self._at = 0.0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """One. Unavailable becomes the Conflict before it."""
        try:
            yield
        except Conflict as error:
            self._last, self._at = error, time.monotonic()
            raise
        except Unavailable as error:
            if self._last is not None and time.monotonic() < self._at + self._seconds:
                raise self._last from error
            raise


def conflict_policy(deadline: float) -> dict[str, Any]:
    """tenacity's arguments for running a transaction again after a Conflict, until `deadline` (monotonic clock)."""
    return {
        "stop": stop_before_delay(deadline - time.monotonic()),
        "wait": _wait,
        "retry": retry_if_exception_type(Conflict),
        "reraise": True,
    }
