"""Clients of the store: `AsyncClient` for asyncio, `Client` for blocking code.

    from client_sdk import Add, AsyncClient, Compare, codecs, transactional

    async with AsyncClient("http://127.0.0.1:7500") as store:
        await store.put("greeting", "hello")
        found = await store.get("greeting")                      # found.value, found.version
        await store.txn([Compare("a", "exists", "==", True)], success=[Add("a", -5), Add("b", 5)])

        @transactional
        async def double(t, key):                                # an interactive transaction, run again on conflict
            t.put(key, str(2 * int(await t.get(key) or "1")))
        await double(store, "n")

    async with store.lock("report", ttl=10) as lock:             # lock.token rises from one holder to the next
        ...

        app = store.namespace("app/").with_codec(codecs.json(dict[str, int]))     # keys under app/, values as JSON

Needs msgspec and tenacity, and nothing of the server (`client_sdk.testing`, a store in memory for tests, does). Keys
and values are bytes, or text, which stands for its UTF-8; what is read is bytes. An argument of a wrong type is a
TypeError that names it, before anything is sent.

`watch` tells every change as it happens, of all shards in one order, and goes on by itself where a replica fails; its
`timeout` is how long nobody may serve it.

Retries. A write carries an id (a UUIDv7) made before its first attempt; the cluster applies an id once and answers a
repetition with the first result. A program that must repeat a write after its own restart makes the id itself
(`new_id`), and gives it as `message_id`. The client repeats a request when the connection failed or the server says
that it may, elsewhere and with growing pauses, until `timeout`.

Timeouts, in seconds: `timeout` (10) bounds a request with all its retries; `attempt_timeout` (2) is when an unanswered
attempt is repeated elsewhere; connecting takes at most 1. They are arguments of the clients; each method takes its own
`timeout`; a scan's is for each of its pages. What is unanswered after 0.3 is asked elsewhere as well, for a tenth of
all requests at most (`hedging`).

A client is for one process, an AsyncClient also for one event loop. In a forked child a Client begins anew, with
connections of its own. `run` makes any request of `client_sdk.requests`.

Exceptions. `outcome` says what became of the request. No exception but the last stands for one that was applied.

    KvError
    ├── InvalidRequest      it breaks a limit (`field` names the part)         not_applied, for ever
    │   └── IdReused        the message id belongs to another request          not_applied, for ever
    ├── Denied              no token, an unknown one, or without that right    not_applied
    ├── ConditionFailed     `if_version` or `if_absent` does not hold          not_applied
    ├── TransactionFailed   an operation was impossible (add to a text)        not_applied
    ├── Conflict            what a transaction had read was changed: `changed` not_applied: run it again
    ├── Expired             it was ordered later than its id allows            not_applied: send it under a new id
    ├── Compacted           that `version` is too long ago                     not_applied, for ever
    ├── Undecodable         what a key holds is not what its codec reads       not_applied
    ├── Unavailable         no replica took it before the deadline             not_applied: send it later
    ├── Lost                a lease was not renewed in time, or revoked        its lock may be another's
    ├── ClosedClient        the client was closed before                       not_applied
    ├── ForeignLoop         an AsyncClient in a loop, or a Client in a thread, not_applied
    │                       that is not for it
    ├── OutcomeUnknown      the deadline passed, and it may have been sent     unknown: send it again under `message_id`
    └── ResultsForgotten    a retry found it applied, its large results gone   applied: `succeeded`, `version` are known
"""

from client_sdk import codecs
from client_sdk.async_client import AsyncClient, AsyncTyped, AsyncTypedTransaction
from client_sdk.blocking import Transaction
from client_sdk.client import Client, Typed, TypedTransaction
from client_sdk.codecs import Codec
from client_sdk.errors import (
    Changed,
    ClosedClient,
    Compacted,
    ConditionFailed,
    Conflict,
    Denied,
    Expired,
    ForeignLoop,
    IdReused,
    InvalidRequest,
    KvError,
    Lost,
    OutcomeUnknown,
    ResultsForgotten,
    TransactionFailed,
    Unavailable,
    Undecodable,
)
from client_sdk.interactive import InteractiveTransaction
from client_sdk.observing import Done
from client_sdk.operations import (
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    Max,
    Min,
    NoneNewer,
    Operation,
    Put,
    Range,
    Txn,
)
from client_sdk.requests import Lease, new_id
from client_sdk.sessions import Election, Lock, Session
from client_sdk.transactional import transactional
from client_sdk.typed import Entry, Update
from kvstore.api.answers import Outcome, Page
from kvstore.api.events import Change, Event
from kvstore.api.model import Consistency, KeyValue, OperationResult, Operator, Result, Target, TxnResult
from multicast.types import ZERO, MessageId, Timestamp

__all__ = [
    "ZERO",
    "Add",
    "Append",
    "AsyncClient",
    "AsyncTyped",
    "AsyncTypedTransaction",
    "Change",
    "Changed",
    "Client",
    "ClosedClient",
    "Codec",
    "Compacted",
    "Compare",
    "ConditionFailed",
    "Conflict",
    "Consistency",
    "Delete",
    "DeleteRange",
    "Denied",
    "Done",
    "Election",
    "Entry",
    "Event",
    "Expired",
    "ForeignLoop",
    "Get",
    "IdReused",
    "InteractiveTransaction",
    "InvalidRequest",
    "KeyValue",
    "KvError",
    "Lease",
    "Lock",
    "Lost",
    "Max",
    "MessageId",
    "Min",
    "NoneNewer",
    "Operation",
    "OperationResult",
    "Operator",
    "Outcome",
    "OutcomeUnknown",
    "Page",
    "Put",
    "Range",
    "Result",
    "ResultsForgotten",
    "Session",
    "Target",
    "Timestamp",
    "Transaction",
    "TransactionFailed",
    "Txn",
    "TxnResult",
    "Typed",
    "TypedTransaction",
    "Unavailable",
    "Undecodable",
    "Update",
    "codecs",
    "new_id",
    "transactional",
]
