"""A program that uses the SDK rightly, and then makes every mistake that types must catch: the code that a strict type
check gives stands behind each. It is checked, never run."""

from dataclasses import dataclass

from client_sdk import (
    Add,
    AsyncClient,
    Client,
    Compare,
    InteractiveTransaction,
    MessageId,
    Operation,
    Operator,
    Put,
    Range,
    Target,
    Timestamp,
    Transaction,
    TypedTransaction,
    codecs,
    transactional,
)

operations: list[Operation] = [Put("k", "v"), Add(b"k", 1), Range("k", 10)]
target: Target = "value"
op: Operator = "=="
guard = Compare("k", target, op, "v")


def body(t: Transaction) -> int:
    t.put("n", b"1" + (t.get("n") or b""))
    return 1


async def asynchronous_body(t: InteractiveTransaction) -> int:
    t.put("n", await t.get("n") or "0")
    return 1


@transactional
def transfer(t: Transaction, source: str, amount: int) -> int:
    t.put(source, str(int(t.get(source) or b"0") - amount))
    return amount


@transactional
async def asynchronous_transfer(t: InteractiveTransaction, source: str, amount: int) -> int:
    t.put(source, str(int(await t.get(source) or b"0") - amount))
    return amount


@dataclass
class Account:
    owner: str
    balance: int


@transactional
def deposit(t: TypedTransaction[Account], owner: str) -> None:
    t.put(owner, Account(owner, len(t.scan())))


def right_with_values(store: Client) -> int:
    app = store.namespace(b"app/")
    accounts = app.with_codec(codecs.msgpack(Account))
    accounts.put("ann", Account("Ann", 3), if_absent=True)
    deposit(accounts, owner="ann")
    found = accounts.get("ann", consistency="stale", max_age=1)
    return transfer(app, "a", amount=found.value.balance if found else 0)


async def right(store: AsyncClient, message_id: MessageId) -> int:
    await asynchronous_transfer(store.namespace("app/"), "a", 1)
    await store.put("k", b"v", if_version=Timestamp(1, 2), message_id=message_id)
    return await store.transact(asynchronous_body, timeout=1)


def wrong(store: Client, asynchronous: AsyncClient) -> None:
    count: int = store.transact(body)
    version: Timestamp = store.put(b"k", "v", if_absent=True)
    store.txn([guard], success=operations, timeout=count)
    store.delete("k", if_version=version)

    print(store.get("k").value)  # union-attr
    store.put("k", {"a": 1})  # arg-type
    store.put(1, "v")  # arg-type
    store.put("k", "v", if_missing=True)  # call-arg
    store.put("k", "v", if_version="3-1")  # arg-type
    store.put("k", "v", message_id="0197b3c2-7f00-7cc3-98c4-dc0c0c07398f")  # arg-type
    Compare("k", "exist", "==", True)  # arg-type
    Compare("k", "exists", "=", True)  # arg-type
    Put("k", 1)  # arg-type
    Add("k", "1")  # arg-type
    store.txn(success=Put("k", "v"))  # arg-type
    store.txn(success=["k"])  # list-item
    store.transact(asynchronous_body)  # arg-type
    text: str = store.put("k", "v")  # assignment
    Client("http://127.0.0.1:7500", timeouts=3)  # call-arg
    asynchronous.put("k", text)  # unused-coroutine

    accounts = store.namespace("account/").with_codec(codecs.json(Account))
    balance: int = accounts.put("ann", Account("Ann", 3))  # assignment
    accounts.put("ann", {"owner": "Ann", "balance": balance})  # arg-type
    accounts.put("ann", Account("Ann", 3), if_missing=True)  # call-arg
    print(accounts.get("ann").value.balance)  # union-attr
    found = accounts.get("ann", max_age="1")  # arg-type
    total: str = found.value.balance if found else 0  # assignment
    store.namespace(1)  # arg-type
    store.with_codec(Account)  # arg-type
    transfer(store, "a", total)  # arg-type
    transfer(asynchronous, "a", 1)  # arg-type
    deposit(store, "ann")  # arg-type
    deposit(store.with_codec(codecs.TEXT), "ann")  # arg-type
    moved: str = transfer(store, "a", 1)  # assignment
    Client("http://127.0.0.1:7500", on_done=lambda done: done.retries)  # attr-defined
    store.get("k", consistency=moved)  # arg-type
