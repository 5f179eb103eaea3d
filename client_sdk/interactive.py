"""Interactive transactions: read, think, write, commit. They live in the client; the server sees one-shot transactions.

Reads happen at once, each at its own point of the order, so before the commit they may show states that never existed
together; writes are buffered. The commit is one transaction: if every key that was read still has the version that was
seen, all writes are applied, else nothing. So a transaction that commits is strictly serializable, at its commit.
"""

from __future__ import annotations

import time
from typing import Any

from tenacity import retry_if_exception_type, stop_before_delay, wait_random_exponential

from client_sdk import requests
from client_sdk.attempts import Attempts
from client_sdk.errors import Conflict
from client_sdk.requests import as_bytes
from kvstore.api.model import Compare, Delete, KeyValue, Operation, Put
from multicast.types import ZERO, Timestamp


class InteractiveTransaction:
    """Made by `transaction` and `transact` of the clients.

    version: None until it has committed, then the commit's version. It stays None for one that neither read nor wrote.
    """

    def __init__(self, attempts: Attempts, timeout: float | None):
        self._attempts = attempts
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._reads: dict[bytes, KeyValue | None] = {}
        self._writes: dict[bytes, bytes | None] = {}
        self._done = False
        self.version: Timestamp | None = None

    async def get(self, key: bytes | str) -> bytes | None:
        """The value: this transaction's own write if there is one, else what the first read of the key saw."""
        name = as_bytes(key)
        if name in self._writes:
            return self._writes[name]
        if name not in self._reads:
            self._reads[name] = await self._attempts.run(requests.get(name, timeout=self._remaining()))
        found = self._reads[name]
        return None if found is None else found.value

    def put(self, key: bytes | str, value: bytes | str) -> None:
        """Write at the commit."""
        self._write(key, as_bytes(value))

    def delete(self, key: bytes | str) -> None:
        """Delete at the commit."""
        self._write(key, None)

    def _write(self, key: bytes | str, value: bytes | None) -> None:
        if self._done:
            raise RuntimeError("this transaction has ended")
        self._writes[as_bytes(key)] = value

    async def commit(self) -> None:
        """Apply all writes if nothing that was read has changed; otherwise Conflict. Called where the block ends."""
        if self._done:
            raise RuntimeError("this transaction has ended")
        self._done = True
        if not self._reads and not self._writes:
            return
        compare = [Compare(k, "version", "==", found.version if found else ZERO) for k, found in self._reads.items()]
        writes: list[Operation] = [Delete(k) if v is None else Put(k, v) for k, v in self._writes.items()]
        result = await self._attempts.run(requests.txn(compare, writes, timeout=self._remaining()))
        if not result.succeeded:
            raise Conflict(f"one of {len(compare)} keys that were read has changed", code="conflict")
        self.version = result.version

    def _remaining(self) -> float | None:
        if self._deadline is None:
            return None
        return max(self._deadline - time.monotonic(), 0.001)


def conflict_policy(deadline: float) -> dict[str, Any]:
    """tenacity's arguments for running a transaction again after a Conflict, until `deadline` (monotonic clock)."""
    return {
        "stop": stop_before_delay(deadline - time.monotonic()),
        "wait": wait_random_exponential(multiplier=0.01, max=0.5),
        "retry": retry_if_exception_type(Conflict),
        "reraise": True,
    }
