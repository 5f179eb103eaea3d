"""What clients are promised holds of a cluster of processes and of the store in memory alike: one suite for both."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from itertools import islice

import msgspec
import pytest

from client_sdk import (
    ZERO,
    Add,
    Append,
    AsyncClient,
    AsyncTypedTransaction,
    Changed,
    Client,
    Compare,
    ConditionFailed,
    Conflict,
    Delete,
    DeleteRange,
    Done,
    Get,
    IdReused,
    InteractiveTransaction,
    InvalidRequest,
    Lease,
    Lost,
    Max,
    Min,
    NoneNewer,
    Put,
    Range,
    Transaction,
    TransactionFailed,
    Txn,
    TxnResult,
    TypedTransaction,
    Undecodable,
    codecs,
    new_id,
    transactional,
)
from tests.client_sdk.stores import LOSERS_TTL, Place, is_a_timeout, place
from tests.kvstore.live import wait_until

__all__ = ["place"]


@pytest.fixture
def store(place: Place) -> Iterator[Client]:
    """Empty before each test."""
    with Client(place.target, timeout=60) as client:
        client.delete_range("")
        yield client


def test_keys_have_versions_and_conditions(store: Client) -> None:
    assert store.get("k") is None and not store.delete("k")
    first = store.put("k", "1", if_absent=True)
    second = store.put("k", b"\xff", if_version=first)
    found = store.get("k")
    assert found is not None and found.value == b"\xff" and ZERO < first < second
    assert (found.version, found.create_version) == (second, first)
    for condition in ({"if_version": first}, {"if_absent": True}):
        with pytest.raises(ConditionFailed):
            store.put("k", "3", **condition)
    old = store.get("k", version=first)
    assert old is not None and (old.value, old.version) == (b"1", first)
    assert store.delete("k") and store.put("k", "4") > second
    again = store.get("k")
    assert again is not None and again.create_version == again.version


def test_a_transaction_does_one_branch_at_one_version(store: Client) -> None:
    done = store.txn(
        [Compare("a", "exists", "==", False), Compare("a", "version", "==", ZERO)],
        [Put("a", "5"), Add("b", 3), Add("b", -4), Append("c", "x"), Append("c", "yz"), Get("b"), Delete("none")],
        [Put("a", "wrong")],
    )
    assert done.succeeded
    assert [(r.value, r.length, r.deleted) for r in done.results[1:5]] == [
        (3, 0, False), (-1, 0, False), (0, 1, False), (0, 3, False),
    ]  # fmt: skip
    assert done.results[5].found is not None and done.results[5].found.version == done.version
    for compare, holds in (
        (Compare("a", "value", "<", "6"), True),
        (Compare("a", "value", "!=", "5"), False),
        (Compare("a", "version", ">", done.version), False),
        (Compare("a", "create_version", "==", done.version), True),
        (Compare("none", "value", "==", ""), False),
        (Compare("none", "value", "!=", "x"), True),
        (Compare("none", "version", "<", done.version), True),
    ):
        assert store.txn([compare], [Get("a")], [Get("c")]).succeeded is holds, compare
    with pytest.raises(TransactionFailed):
        store.txn(success=[Put("a", "lost"), Add("c", 1)])
    assert store.get("a") == store.txn(success=[Get("a")]).results[0].found
    assert store.txn(success=[Range("", 10), DeleteRange("b"), Range("", count_only=True)]).results[2].value == 2


def test_nested_transactions_compare_what_was_there_before_the_whole_one(store: Client) -> None:
    app = store.namespace("app/")
    for keys in (store, app):
        keys.txn(success=[Put("a", "1"), Put("b", "1")])
        there, gone = Compare("b", "value", "==", "1"), Compare("none", "exists", "==", True)
        done = keys.txn(
            [Compare("a", "exists", "==", True)],
            [
                Put("b", "outer"),
                Txn([there], [Get("b"), Txn([gone, there], [Put("a", "wrong")], [Append("a", "2"), Range("", 2)])]),
                Txn([Compare("b", "value", "==", "outer")], [Delete("a")], [Add("n", 7)]),
                Get("a"),
            ],
            [Txn(failure=[Delete("b")])],
        )
        _, first, second, last = done.results
        assert isinstance(first, TxnResult) and isinstance(second, TxnResult) and done.succeeded
        assert first.results[0].found is not None and first.results[0].found.value == b"outer"
        inner = first.results[1]
        assert isinstance(inner, TxnResult) and first.succeeded and not inner.succeeded and not second.succeeded
        assert inner.results[0].length == 2 and second.results[0].value == 7
        assert [one.key for one in inner.results[1].entries] == [b"a", b"b"]
        assert {one.version for one in inner.results[1].entries} == {done.version}
        assert last.found is not None and last.found.value == b"12"
    with pytest.raises(TransactionFailed):
        store.txn(success=[Put("a", "lost"), Txn([], [Txn([], [Add("b", 1)])])])
    assert store.get("b").value == b"outer" and store.get("a").value == b"12"
    with pytest.raises(InvalidRequest, match=r"success\[0\].failure\[0\].key: a key has 1 to 400 bytes"):
        store.txn(success=[Txn([], [], [Get("")])])
    with pytest.raises(InvalidRequest, match="the store's own"):
        store.txn(success=[Txn([], [], [Get(b"\0\0lease/")])])
    identity, asked = new_id(), [Txn([Compare("c", "exists", "==", False)], [Put("c", "1"), Get("c")])]
    assert store.txn(success=asked, message_id=identity) == store.txn(success=asked, message_id=identity)


def test_ranges_are_read_and_deleted_at_one_instant(store: Client) -> None:
    keys = [f"r/{i:02}" for i in range(20)]
    store.txn(success=[Put(key, key) for key in keys])
    assert [entry.key.decode() for entry in store.scan("r/", page_size=3)] == keys
    assert [e.key.decode() for e in store.scan(start="r/05", end="r/08", reverse=True)] == ["r/07", "r/06", "r/05"]
    assert {entry.value for entry in store.scan("r/", keys_only=True)} == {b""}
    pages = store.scan_pages("r/", page_size=7)
    version = next(pages).version
    store.put("r/99", "late")
    assert [(page.version, len(page.entries)) for page in pages] == [(version, 7), (version, 6)]
    assert store.count("r/") == 21 and store.delete_range(start="r/10", end="r/99") == 10
    assert store.count("r/") == 11


def test_an_id_takes_effect_once(store: Client) -> None:
    message_id = new_id()
    first = store.txn(success=[Add("n", 1)], message_id=message_id)
    assert store.txn(success=[Add("n", 1)], message_id=message_id) == first
    with pytest.raises(IdReused):
        store.txn(success=[Add("n", 2)], message_id=message_id)
    outcome = store.outcome(message_id)
    assert outcome is not None and (outcome.outcome, outcome.version) == ("applied", str(first.version))
    assert store.outcome(new_id()) is None
    with pytest.raises(InvalidRequest):
        store.put("", "x")


def test_a_watch_tells_each_transaction_once_and_goes_on(store: Client) -> None:
    before = store.put("w/0", "0")
    made = store.txn(success=[Put("w/1", "1"), Put("w/2", "2"), Put("elsewhere", "x")]).version
    store.delete("w/1")
    events = store.watch("w/", after=before)
    first, second = next(events), next(events)
    assert first.version == made and sorted(first.changes) == [(b"w/1", b"1"), (b"w/2", b"2")]
    assert list(second.changes) == [(b"w/1", None)]
    store.put("w/3", "3")
    assert [change.key for change in next(events).changes] == [b"w/3"]
    events.close()
    assert next(store.watch("w/", after=made)).version == second.version


def lease_of_a_second(store: Client, *keys: str) -> Lease:
    """And these keys, attached before it was over; on a machine that stands still not to the first one."""
    while True:
        lease = store.grant_lease(ttl=1)
        with suppress(TransactionFailed):
            store.txn(success=[Put(key, "x", lease.id) for key in keys])
            return lease


def test_keys_go_with_their_lease(place: Place, store: Client) -> None:
    before, lease = store.put("other", "x"), lease_of_a_second(store, "l/1", "l/2")
    place.let_pass(1.1)
    wait_until(lambda: store.lease(lease.id) is None)
    watch = store.watch("l/", after=before)
    gone = next(event.changes for event in watch if not any(change.value for change in event.changes))
    assert sorted(change.key for change in gone) == [b"l/1", b"l/2"], "at one point of the order"
    watch.close()
    assert store.renew_lease(lease.id) is None and store.count("l/") == 0
    with pytest.raises(TransactionFailed):
        store.put("l/4", "x", lease=lease.id)


def test_a_lease_knows_its_keys_and_takes_them_along_when_it_is_revoked(store: Client) -> None:
    lease = store.grant_lease(ttl=100)
    store.put("l/1", "x", lease=lease.id)
    store.txn(success=[Put("l/2", "x", lease.id)])
    store.put("l/3", "x", lease=lease.id)
    store.put("l/3", "taken off")
    shown = store.lease(lease.id, keys=True)
    assert shown is not None and shown.keys == (b"l/1", b"l/2")
    assert store.renew_lease(lease.id) is not None and lease.id in [one.id for one in store.leases()]
    assert store.revoke_lease(lease.id) and not store.revoke_lease(lease.id)
    assert [entry.key for entry in store.scan("l/")] == [b"l/3"]


def test_an_interactive_transaction_attaches_keys_to_a_lease(store: Client) -> None:
    lease = store.grant_lease(ttl=100)
    with store.transaction() as t:
        t.put("l/1", "x", lease=lease.id)
        t.put("l/2", "x", lease=lease.id)
        t.put("l/2", "taken off")
        assert t.get("l/1") == b"x" and t.scan("l/") == {b"l/1": b"x", b"l/2": b"taken off"}
    entry = store.get("l/1")
    assert entry is not None and entry.lease == lease.id and entry.version == t.version
    with pytest.raises(Conflict), store.transaction() as t:
        t.scan("l/")
        store.put("l/3", "came in")
        t.put("l/4", "x", lease=lease.id)
    assert store.revoke_lease(lease.id)
    assert [entry.key for entry in store.scan("l/")] == [b"l/2", b"l/3"]
    with pytest.raises(TransactionFailed, match="no such lease"), store.transaction() as t:
        t.scan("l/")
        t.put("l/5", "x", lease=lease.id)
    with pytest.raises(InvalidRequest, match="lease"), store.transaction() as t:
        t.put("l/5", "x", lease=b"short")
    assert store.get("l/5") is None


def test_locks_are_one_at_a_time_and_elections_follow(store: Client) -> None:
    with store.lock("job", ttl=60) as lock:
        is_a_timeout(lambda seconds: store.lock("job", ttl=LOSERS_TTL, timeout=seconds).__enter__())
        lock.check()
    with store.lock("job", ttl=60, timeout=60) as later:
        assert later.token > lock.token
    with store.election("e", ttl=60) as one, store.election("e", ttl=60) as other:
        token = one.campaign("one")
        leader = other.leader()
        assert leader is not None and (leader.value, leader.create_version) == (b"one", token)
        seen = other.observe()
        assert next(seen).value == b"one"
        one.proclaim("one, still")
        leader = next(seen)
        assert (leader.value, leader.create_version) == (b"one, still", token)
        assert one.campaign("one, again") == token and next(seen).value == b"one, again"
        with pytest.raises(Lost, match="campaign first"):
            other.proclaim("other")
        one.resign()
        with pytest.raises(Lost, match="campaign first"):
            one.proclaim("one")
        assert other.campaign("two") > token and next(seen).value == b"two"
        seen.close()
    assert store.count("locks/") == store.count("elections/") == 0


def test_interactive_transactions_conflict(store: Client) -> None:
    store.put("n", "1")
    with pytest.raises(Conflict) as caught, store.transaction() as t:
        value = t.get("n")
        changed = store.put("n", "2")
        t.put("n", value or b"")
    assert [(c.key, c.found) for c in caught.value.changed] == [(b"n", changed)]

    def increment(t) -> None:
        t.put("n", str(int(t.get("n")) + 1))

    store.transact(increment)
    found = store.get("n")
    assert found is not None and found.value == b"3"
    for late in (lambda: t.get("n"), lambda: t.scan("n"), lambda: t.put("n", "4")):
        with pytest.raises(RuntimeError, match="has ended"):
            late()

    async def elsewhere(t) -> None:
        raise AssertionError("it does not run")

    with pytest.raises(TypeError, match="is for an AsyncClient"):
        store.transact(elsewhere)


def test_a_namespace_is_a_store_of_its_own(store: Client) -> None:
    app = store.namespace("app/")
    store.put("k", "outside")
    first = app.put("k", "1", if_absent=True)
    inside = app.namespace(b"in/")
    inside.put("x", "2")
    assert [entry.key for entry in store.scan("app/")] == [b"app/in/x", b"app/k"]
    assert [entry.key for entry in app.scan(start="j")] == [entry.key for entry in app.scan(end="z", reverse=True)][:1]
    assert [entry.key for entry in inside.scan()] == [b"x"] and app.count() == 2 and inside.count(end="x") == 0
    result = app.txn(
        [Compare("k", "value", "==", "1")],
        [Get("k"), Range("in"), Range(start="l"), Range(after="in/x"), Add("n", 1), DeleteRange("n"), Delete("k")],
    )
    assert result.succeeded and result.results[0].found is not None and result.results[0].found.key == b"k"
    ranges = [[entry.key for entry in one.entries] for one in result.results[1:4]]
    assert ranges == [[b"in/x"], [], [b"k"]] and result.results[5].value == 1
    counted = app.txn(success=[Max("m", 7), Min("m", 5), Max("m", 2)])
    assert [one.value for one in counted.results] == [7, 5, 5]
    assert (found := store.get("app/m")) is not None and found.value == b"5" and app.delete("m")
    event = next(app.watch("k", after=first))
    assert list(event.changes) == [(b"k", None)]
    with pytest.raises(Conflict) as caught, app.transaction() as t:
        t.get("in/x")
        inside.put("x", "3")
        t.put("in/x", "4")
    assert caught.value.changed[0].key == b"in/x"
    with app.lock("l", ttl=60), store.lock("l", ttl=60, timeout=60), app.election("e", ttl=60) as election:
        election.campaign("me")
        keys = [entry.key.split(b"/")[:2] for entry in store.scan(start="app/e", end="app/m")]
        assert keys == [[b"app", b"elections"], [b"app", b"in"], [b"app", b"locks"]]
        leader = election.leader()
        assert leader is not None and leader.key.startswith(b"elections/")
    lease = app.grant_lease(ttl=100)
    app.put("leased", "x", lease=lease.id)
    store.put("leased", "x", lease=lease.id)
    told = [place.lease(lease.id, keys=True) for place in (app, store)]
    assert [sorted(one.keys or ()) for one in told if one] == [[b"leased"], [b"app/leased", b"leased"]]
    assert app.revoke_lease(lease.id)
    assert app.delete_range("") == 1 and store.get("k") is not None
    with pytest.raises(ValueError, match="a tag without a name"):
        store.namespace("{").namespace("}")


class Account(msgspec.Struct):
    owner: str
    balance: int = 0


@pytest.mark.parametrize("codec", [codecs.json(Account), codecs.msgpack(Account)], ids=["json", "msgpack"])
def test_values_are_what_a_codec_makes_of_bytes(store: Client, codec: codecs.Codec[Account]) -> None:
    accounts = store.namespace("account/").with_codec(codec)
    version = accounts.put("ann", Account("Ann", 3), if_absent=True)
    found = accounts.get("ann")
    assert found is not None and (found.key, found.value, found.version) == (b"ann", Account("Ann", 3), version)

    @transactional
    def deposit(t: TypedTransaction[Account], amount: int) -> int:
        account = t.get("ann")
        assert account is not None and t.get("bob") is None and list(t.scan()) == [b"ann"]
        account.balance += amount
        t.put("ann", account)
        t.put("bob", Account("Bob"))
        return account.balance

    assert deposit(accounts, amount=5) == 8
    assert [entry.value.balance for entry in accounts.scan(reverse=True)] == [0, 8]
    changes = sorted(islice(accounts.watch(after=version), 2))
    assert [(change.key, change.value) for change in changes] == [(b"ann", Account("Ann", 8)), (b"bob", Account("Bob"))]
    old = accounts.get("ann", version=version)
    assert old is not None and old.value.balance == 3
    with pytest.raises(TypeError, match=r"^value: Account, not dict$"):
        accounts.put("ann", {"owner": "Ann"})  # type: ignore[arg-type]
    store.put("account/ann", b"\xc1")
    with pytest.raises(Undecodable, match="b'ann'"):
        accounts.get("ann")


@transactional
def transfer(t: Transaction, source: str, target: str, amount: int) -> int:
    t.put(target, str(int(t.get(target) or b"0") + amount))
    left = int(t.get(source) or b"0") - amount
    t.put(source, str(left))
    return left


def test_a_transactional_function_runs_again_until_what_it_read_still_holds(place: Place, store: Client) -> None:
    runs: list[str] = []

    @transactional
    def twice(t: Transaction, amount: int) -> int:
        runs.append("run")
        left = transfer(t, "a", "b", amount) + transfer(t, "a", "c", amount)
        if len(runs) == 1:
            store.txn(success=[Add("a", 100)])
        return left

    assert twice(store, amount=1) == 99 + 98 and len(runs) == 2
    assert [(e.key, e.value) for e in store.scan()] == [(b"a", b"98"), (b"b", b"1"), (b"c", b"1")]
    with pytest.raises(TypeError, match=r"^transfer: a Client or its transaction comes first, not str$"):
        transfer("a", "b", "c", 1)  # type: ignore[arg-type]


def test_what_was_scanned_in_a_transaction_is_a_read_and_what_comes_into_it_a_conflict(store: Client) -> None:
    for number in range(40):  # some in each shard
        store.put(f"s/{number:02}", str(number))

    changes: list[Callable[[], object]] = [
        lambda: store.put("s/99", "a phantom"),
        lambda: store.put("s/05", "changed"),
        lambda: store.delete("s/06"),
        lambda: store.delete_range("s/1"),
        lambda: store.txn(success=[Delete("s/20"), Put("s/20", "as if it had been there")]),
    ]
    for change in changes:
        with pytest.raises(Conflict) as caught, store.transaction() as t:
            t.put("sum", str(len(t.scan("s/"))))
            change()
        assert caught.value.changed
    assert store.get("sum") is None
    with store.transaction() as t:
        t.put("s/00", "own")
        t.delete("s/01")
        t.put("s/~", "own, too")
        t.put("t", "outside")
        found = t.scan("s/", end="s/~~")
        assert list(found) == sorted(found) and found[b"s/00"] == b"own" == found[b"s/~"][:3] and b"s/01" not in found
        store.put("u", "elsewhere")
        assert t.scan("none/") == {} and t.get("s/02") == b"2"
    assert t.version is not None
    for number in range(30, 34):  # the other shard, where nothing happens, is behind; and no conflict
        store.put(f"s/{number}", "newest")
        with store.transaction() as t:
            assert t.scan("s/")[b"s/%d" % number] == b"newest"
    with pytest.raises(Conflict) as caught, store.transaction() as t:
        t.scan("none/")
        version = store.put("none/1", "x")
        t.put("w", "x")
    assert caught.value.changed == (Changed(b"none/1", ZERO, version),)
    app = store.namespace("s/")
    with pytest.raises(Conflict) as caught, app.transaction() as t:
        assert b"02" in t.scan(start="02", end="03")
        version = store.put("s/025", "x")
    assert caught.value.changed == (Changed(b"025", ZERO, version),)
    with pytest.raises(TransactionFailed, match="none_newer"):
        store.txn(success=[Put("x", "1"), NoneNewer("s/", t.version or ZERO)])
    assert store.txn(success=[NoneNewer("nobody/", ZERO), Put("nobody/1", "x")]).succeeded
    assert store.get("x") is None


def test_a_transactional_scan_runs_again_until_nothing_has_come_in(store: Client) -> None:
    """Two that each look whether there is room, and then enter: with single reads both would."""

    @transactional
    def enter(t: Transaction, name: str) -> bool:
        if len(t.scan("room/")) >= 3:
            return False
        t.put(f"room/{name}", name)
        return True

    with ThreadPoolExecutor(6) as pool:
        entered = list(pool.map(lambda n: enter(store, str(n)), range(6)))
    assert sum(entered) == store.count("room/") == 3


async def test_the_asynchronous_client_has_them_all(place: Place) -> None:
    seen: list[Done] = []

    @transactional
    async def increment(t: InteractiveTransaction, by: int) -> int:
        total = int(await t.get("n") or b"0") + by
        t.put("n", str(total))
        return total

    async with AsyncClient(place.target, timeout=60, on_done=seen.append) as whole:
        store = whole.namespace(f"{uuid.uuid4()}/")
        assert sorted(await asyncio.gather(*[increment(store, by=2) for _ in range(3)])) == [2, 4, 6]
        texts = store.with_codec(codecs.TEXT)
        version = await texts.put("t", "größe")
        found = await texts.get("t")
        assert found is not None and found.value == "größe"
        assert [(entry.key, entry.value) async for entry in texts.scan()] == [(b"n", "6"), (b"t", "größe")]

        @transactional
        async def shout(t: AsyncTypedTransaction[str], key: str) -> None:
            t.put(key, (await t.scan())[key.encode()].upper())

        await shout(texts, "t")
        async with aclosing(texts.watch("t", after=version)) as updates:
            assert (await anext(updates)).value == "GRÖSSE"
    transacts = [done for done in seen if done.operation == "transact"]
    assert len(transacts) == 4 and all(done.attempts >= 1 for done in transacts)
    assert {done.operation for done in seen} == {"transact", "GET /v1/kv/", "POST /v1/txn", "PUT /v1/kv/", "GET /v1/kv"}
    assert all(done.error == "" and done.attempts >= 1 and done.seconds > 0 for done in seen)


async def test_the_asynchronous_client_says_the_same(place: Place) -> None:
    async with AsyncClient(place.target, timeout=60) as store:
        prefix = f"{uuid.uuid4()}/"
        version = await store.put(prefix + "a", "1")
        found = await store.get(prefix + "a")
        assert found is not None and (found.value, found.version) == (b"1", version)
        assert [entry.key async for entry in store.scan(prefix)] == [f"{prefix}a".encode()]
        later = await store.put(prefix + "b", "2")
        async with aclosing(store.watch(prefix, after=version)) as events:
            assert (await anext(events)).version == later
