"""Clients of the store: `AsyncClient` for asyncio, `Client` for blocking code.

    from client_sdk import AsyncClient, Add, Compare

    async with AsyncClient("http://127.0.0.1:7500") as store:
        await store.put("greeting", "hello")
        found = await store.get("greeting")                      # found.value, found.version
        await store.txn([Compare(b"a", "exists", "==", True)], success=[Add(b"a", -5), Add(b"b", 5)])

        async def double(t):                                     # an interactive transaction, run again on conflict
            t.put("n", str(2 * int(await t.get("n") or "1")))
        await store.transact(double)

Needs msgspec and tenacity, and nothing of the server.

Retries. A write carries an id (a UUIDv7) made before its first attempt; the cluster applies an id once and answers a
repetition with the first result. The client repeats a request when the connection failed or the server says that it
may, elsewhere and with growing pauses, until `timeout`.

Timeouts, in seconds: `timeout` (10) bounds a request with all its retries; `attempt_timeout` (2) is when an unanswered
attempt is repeated elsewhere; connecting takes at most 1. They are arguments of the clients; each method takes its own
`timeout`. What is unanswered after 0.3 is asked elsewhere as well, for a tenth of all requests at most (`hedging`).

Exceptions. `outcome` says what became of the request. No exception but the last stands for one that was applied.

    KvError
    ├── InvalidRequest      it breaks a limit (`field` names the part)         not_applied, for ever
    │   └── IdReused        the message id belongs to another request          not_applied, for ever
    ├── ConditionFailed     `if_version` or `if_absent` does not hold          not_applied
    ├── TransactionFailed   an operation was impossible (add to a text)        not_applied
    ├── Conflict            what a transaction had read was changed            not_applied: run it again
    ├── Expired             it was ordered later than its id allows            not_applied: send it under a new id
    ├── Unavailable         no replica took it before the deadline             not_applied: send it later
    ├── OutcomeUnknown      the deadline passed, and it may have been sent     unknown: send it again under `message_id`
    └── ResultsForgotten    a retry found it applied, its large results gone   applied: `succeeded`, `version` are known
"""

from client_sdk.async_client import AsyncClient
from client_sdk.client import Client
from client_sdk.errors import (
    ConditionFailed,
    Conflict,
    Expired,
    IdReused,
    InvalidRequest,
    KvError,
    OutcomeUnknown,
    ResultsForgotten,
    TransactionFailed,
    Unavailable,
)
from client_sdk.interactive import InteractiveTransaction
from kvstore.api.codec import Page
from kvstore.api.model import Add, Append, Compare, Delete, Get, KeyValue, OperationResult, Put, Range, Result
from multicast.types import ZERO, Timestamp

__all__ = [
    "ZERO",
    "Add",
    "Append",
    "AsyncClient",
    "Client",
    "Compare",
    "ConditionFailed",
    "Conflict",
    "Delete",
    "Expired",
    "Get",
    "IdReused",
    "InteractiveTransaction",
    "InvalidRequest",
    "KeyValue",
    "KvError",
    "OperationResult",
    "OutcomeUnknown",
    "Page",
    "Put",
    "Range",
    "Result",
    "ResultsForgotten",
    "Timestamp",
    "TransactionFailed",
    "Unavailable",
]
