"""The client against a cluster that fails in every way that HTTP allows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from unittest.mock import AsyncMock, patch

import pytest

from client_sdk import (
    ZERO,
    Add,
    Append,
    AsyncClient,
    ClosedClient,
    Compacted,
    Compare,
    ConditionFailed,
    Conflict,
    Delete,
    Denied,
    Expired,
    ForeignLoop,
    Get,
    IdReused,
    InteractiveTransaction,
    InvalidRequest,
    KvError,
    OutcomeUnknown,
    Put,
    Range,
    ResultsForgotten,
    TransactionFailed,
    Unavailable,
    interactive,
    rights,
)
from client_sdk.connections import Transport
from client_sdk.hedging import SAVED_MAX, Hedges
from multicast.types import is_uuid7, new_message_id
from tests.client_sdk.fake import FakeCluster

ODD_KEYS = [
    b"a",
    b"a/b//c",
    b"..",
    b"a/../b",
    b".",
    b"%2F",
    b"\xff\x00\xfe",
    "müsli".encode(),
    b"?q=1&x#y",
    b"a b+c",
    b"{t}x",
]


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


def client(cluster: FakeCluster, **options: float) -> AsyncClient:
    """Which asks nobody else because one is slow: see `hedging`."""
    options = {"timeout": 60.0, "attempt_timeout": 50.0, **options}
    made = AsyncClient(cluster.urls[0], **options)
    made.attempts.hedges = Hedges(after=3600.0)
    return made


def hedging(store: AsyncClient) -> None:
    """From now on this client does."""
    store.attempts.hedges = Hedges()


async def test_put_get_delete_round_trip_any_bytes() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for key in ODD_KEYS:
            version = await store.put(key, key[::-1])
            found = await store.get(key)
            assert found is not None
            assert (found.key, found.value, found.version) == (key, key[::-1], version)
            assert await store.delete(key)
            assert await store.get(key) is None
            assert not await store.delete(key)
        assert cluster.rows == {}


async def test_conditional_writes() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        first = await store.put("k", "1", if_absent=True)
        with pytest.raises(ConditionFailed) as caught:
            await store.put("k", "2", if_absent=True)
        assert caught.value.outcome == "not_applied"
        second = await store.put("k", "2", if_version=first)
        with pytest.raises(ConditionFailed):
            await store.delete("k", if_version=first)
        assert await store.delete("k", if_version=second)
        assert await store.put("k", "3", if_version=ZERO) > second


async def test_a_transaction_returns_one_result_per_operation() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("a", b"\xff")
        result = await store.txn(
            [Compare(b"a", "value", "==", b"\xff"), Compare(b"no", "version", "==", ZERO)],
            [
                Get(b"a"),
                Get(b"no"),
                Put(b"\xfe", b"\x80"),
                Add(b"n", -7),
                Append(b"t", b"text"),
                Delete(b"a"),
                Delete(b"a"),
                Range(b"", 2, after=b"n"),
            ],
            [Get(b"a")],
        )
        assert result.succeeded
        read, absent, _, added, appended, deleted, again, page = result.results
        assert read.found is not None
        assert read.found.value == b"\xff"
        assert absent.found is None
        assert added.value == -7
        assert appended.length == 4
        assert (deleted.deleted, again.deleted) == (True, False)
        assert [e.key for e in page.entries] == [b"t", b"\xfe"]
        assert not page.more
        refused = await store.txn([Compare(b"a", "exists", "==", True)], [Put(b"x", b"1")])
        assert not refused.succeeded
        assert b"x" not in cluster.rows


async def test_a_broken_limit_is_refused_before_anything_is_sent() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        with pytest.raises(InvalidRequest) as caught:
            await store.txn(success=[Put(b"k", b""), Put(b"x" * 401, b"")])
        assert caught.value.field == "success[1].key"
        with pytest.raises(InvalidRequest) as refused:
            await store.put("k" * 401, "")
        assert refused.value.field == "key"
        with pytest.raises(InvalidRequest):
            await store.put("k", "", message_id=bytes(16))
        assert cluster.applied == 0


async def test_scan_reads_every_page_in_order() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for i in range(7):
            await store.put(f"p/{i}", str(i))
        await store.put("q", "")
        pages = [page async for page in store.scan_pages("p/", page_size=3)]
        assert [len(page.entries) for page in pages] == [3, 3, 1]
        assert pages[0].version < pages[1].version
        assert [entry.value async for entry in store.scan(b"p/", page_size=3)] == [b"%d" % i for i in range(7)]


@pytest.mark.parametrize(
    "fault", ["reset_before", "reset_after", "hang", "hang_after", "garbage", "page", "timeout", "late"]
)
async def test_a_retry_keeps_its_id_and_applies_once(fault: str) -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        hedging(store)
        cluster.leader(b"n").faults.append(fault)
        result = await store.txn(success=[Add(b"n", 1)])
        assert result.results[0].value == 1
        assert cluster.rows[b"n"][0] == b"1"
        ids = {i for replica in cluster.replicas for _, path, i in replica.seen if path == "/v1/txn"}
        attempts = [path for replica in cluster.replicas for _, path, _ in replica.seen if path == "/v1/txn"]
        assert len(attempts) >= 2
        assert len(ids) == 1


@pytest.mark.usefixtures("long_suspected")
@pytest.mark.parametrize("fault", ["not_ready", "reset_before", "hang", "page"])
async def test_another_replica_is_asked_when_one_fails(fault: str) -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("k", "v")
        hedging(store)
        bad = cluster.leader(b"k")
        bad.always = fault
        for _ in range(5):
            found = await store.get("k")
            assert found is not None
            assert found.value == b"v"
        assert len(bad.seen) <= 3, "a suspect is asked last"


async def test_a_request_goes_to_a_leader_of_an_involved_shard() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for key in (b"a", b"b", b"c", b"d", b"e", b"f"):
            before = len(cluster.leader(key).seen)
            await store.put(key, b"")
            assert len(cluster.leader(key).seen) == before + 1
        await store.txn(success=[Get(b"a"), Get(b"b")])
        followers = [r for r in cluster.replicas if r.number not in cluster.leaders.values()]
        assert not any(replica.seen for replica in followers)


async def test_one_replica_can_be_asked_about_itself() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for replica in cluster.replicas:
            assert (await store.cluster(replica.url))["self"] == replica.number
        await cluster.replicas[3].stop()
        with pytest.raises(Unavailable):
            await store.cluster(cluster.replicas[3].url, timeout=0.3)


async def test_a_new_leader_is_learnt() -> None:
    async with FakeCluster() as cluster, client(cluster, refresh=0.05) as store:
        await store.put("k", "1")
        shard = cluster.shard_map.shard_of(b"k")
        cluster.leaders[shard] = 2 * shard + 1
        deadline = time.monotonic() + 60
        while not cluster.leader(b"k").seen:
            assert time.monotonic() < deadline
            await store.put("k", "2")
            await asyncio.sleep(0.01)


async def test_a_dead_replica_is_survived_and_used_again_after_its_return() -> None:
    async with FakeCluster() as cluster, AsyncClient(cluster.urls, timeout=60.0, refresh=0.05) as store:
        await store.put("k", "1")
        leader = cluster.leader(b"k")
        await leader.stop()
        await store.put("k", "2")
        again = type(leader)(cluster, leader.number)
        again.port = leader.port
        await again.start()
        cluster.replicas[leader.number] = again
        deadline = time.monotonic() + 60
        while not again.seen:
            assert time.monotonic() < deadline
            await store.put("k", "3")
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("few_attempts")
async def test_nobody_there_is_unavailable_and_certainly_not_applied() -> None:
    async with FakeCluster() as cluster:
        urls = cluster.urls
    async with AsyncClient(urls, timeout=60.0) as store:
        with pytest.raises(Unavailable) as caught:
            await store.put("k", "v")
        assert caught.value.outcome == "not_applied"
        with pytest.raises(Unavailable):
            await store.get("k")


class Unconnected(Transport):
    """Connects nobody: only after a while it says so."""

    urls = ("http://127.0.0.1:1", "http://127.0.0.2:1")

    def __init__(self, seconds: float):
        self.seconds = seconds

    async def connect(self, *_: object, **__: object) -> None:
        await asyncio.sleep(self.seconds)
        raise ConnectionRefusedError("nobody is there")


@pytest.mark.parametrize("seconds", [0.1, 3600.0])
async def test_what_was_never_connected_was_certainly_not_applied(seconds: float) -> None:
    """Neither by an attempt whose time is over before it is connected, nor by a hedge beside it."""
    async with AsyncClient(Unconnected(seconds), timeout=1.0) as store:
        store.attempts.hedges = Hedges(after=0.01)
        with pytest.raises(Unavailable) as caught:
            await store.put("k", "v")
        assert caught.value.outcome == "not_applied" and store.attempts.hedges.made


async def test_what_a_hedge_alone_brought_to_somebody_is_unknown() -> None:
    """Also if it is known of every other attempt that it was not connected."""
    taken: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(await reader.read(1000))
        if taken[-1].startswith(b"PUT"):
            server.close()  # nobody is there afterwards
        writer.transport.abort()

    class FirstRefuses(Transport):
        async def connect(self, protocol, host, port, tls) -> None:
            if host == "127.0.0.2":
                await asyncio.sleep(0.2)
                raise ConnectionRefusedError("nobody is there")
            await super().connect(protocol, host, port, tls)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    transport = FirstRefuses()
    transport.urls = ("http://127.0.0.2:1", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with AsyncClient(transport, timeout=1.0) as store:
        store.attempts.hedges = Hedges(after=0.05)
        with pytest.raises(OutcomeUnknown):
            await store.put("k", "v")
    assert [data.partition(b" ")[0] for data in taken].count(b"PUT") == 1


@pytest.mark.usefixtures("few_attempts")
@pytest.mark.parametrize("fault", ["reset_after", "hang", "late", "garbage"])
async def test_an_unanswered_write_is_unknown_and_can_be_resolved_by_its_id(fault: str) -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = fault
        with pytest.raises(OutcomeUnknown) as caught:
            await store.txn(success=[Add(b"n", 1)], timeout=1.5)
        assert caught.value.outcome == "unknown"
        message_id = caught.value.message_id
        assert message_id is not None
        assert is_uuid7(message_id)
        with pytest.raises(Unavailable):
            await store.get("n", timeout=0.2)
        for replica in cluster.replicas:
            replica.always = ""
        result = await store.txn(success=[Add(b"n", 1)], message_id=message_id)
        assert result.results[0].value == 1
        assert cluster.rows[b"n"][0] == b"1"


@pytest.mark.usefixtures("few_attempts")
async def test_refusals_alone_are_certainly_not_applied() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = "not_ready"
        with pytest.raises(Unavailable) as caught:
            await store.put("k", "v")
        assert (caught.value.code, caught.value.status) == ("not_ready", 503)


@pytest.mark.parametrize(("refusal", "kind"), [("id_expired", InvalidRequest), ("forbidden", Denied)])
async def test_a_refusal_after_an_unanswered_attempt_is_unknown(refusal: str, kind: type[KvError]) -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = refusal
        cluster.leader(b"k").faults.append("reset_after")
        with pytest.raises(OutcomeUnknown) as unknown:
            await store.put("k", "v")
        assert unknown.value.code == refusal and cluster.rows[b"k"][0] == b"v"
        with pytest.raises(kind):
            await store.put("other", "v")


@pytest.mark.usefixtures("few_attempts")
async def test_an_id_that_the_caller_brings_may_have_been_sent_before() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for replica in cluster.replicas:
            replica.always = "not_ready"
        with pytest.raises(OutcomeUnknown):
            await store.put("k", "v", message_id=new_message_id(time.time_ns() // 1000, 6))
        with pytest.raises(InvalidRequest):
            await store.txn(success=[Put(b"", b"")], message_id=new_message_id(time.time_ns() // 1000, 7))


async def test_an_expired_id_decides_earlier_attempts() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = "expired"
        cluster.leader(b"k").faults.append("reset_before")
        with pytest.raises(Expired) as caught:
            await store.put("k", "v")
        assert caught.value.outcome == "not_applied"


async def test_overload_is_waited_for_as_long_as_the_server_asks() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        cluster.leader(b"k").faults.append("overloaded")
        began = time.monotonic()
        await store.put("k", "v")
        assert time.monotonic() - began >= 1.0


async def test_impossible_operations_and_reused_ids_have_their_own_errors() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("t", "text")
        with pytest.raises(TransactionFailed) as caught:
            await store.txn(success=[Add(b"t", 1)])
        assert caught.value.field == "success[0]"
        message_id = new_message_id(time.time_ns() // 1000, 5)
        await store.put("a", "1", message_id=message_id)
        assert await store.put("a", "1", message_id=message_id)
        with pytest.raises(IdReused):
            await store.put("a", "2", message_id=message_id)


async def test_applied_with_forgotten_results_is_not_taken_for_an_answer() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for replica in cluster.replicas:
            replica.always = "forgotten"
        with pytest.raises(ResultsForgotten) as caught:
            await store.txn(success=[Get(b"a")])
        assert (caught.value.outcome, caught.value.succeeded, str(caught.value.version)) == ("applied", True, "7-0")


async def test_a_cancelled_request_leaves_nothing_behind() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = "hang"
        task = asyncio.create_task(store.put("k", "v"))
        deadline = time.monotonic() + 60
        while not cluster.leader(b"k").seen:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_client_that_was_closed_says_so_and_leaves_nothing_open() -> None:
    async with FakeCluster() as cluster:
        store = client(cluster)
        await store.get("warm")
        cluster.leader(b"r").always = cluster.leader(b"w").always = "hang"
        read, write = asyncio.create_task(store.get("r")), asyncio.create_task(store.put("w", "1"))
        await eventually(lambda: cluster.paths >= {"/v1/kv/r", "/v1/kv/w"})
        tasks = asyncio.all_tasks()
        await store.close()
        with pytest.raises(ClosedClient):
            await read
        with pytest.raises(OutcomeUnknown):
            await write
        with pytest.raises(ClosedClient):
            await store.get("a")
        await store.close()
        assert asyncio.all_tasks() <= tasks


async def test_a_client_of_another_event_loop_says_so() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("a", "1")
        for use in (lambda: store.get("a"), lambda: store.put("a", "2"), store.close):
            with pytest.raises(ForeignLoop, match="make one for each loop"):
                await asyncio.to_thread(lambda use=use: asyncio.run(use()))
        assert (await store.get("a")).value == b"1"


@pytest.mark.parametrize("fault", ["hang", "hang_after", "overloaded", "not_ready", "page"])
async def test_every_call_ends_at_its_deadline(fault: str) -> None:
    async with FakeCluster() as cluster, client(cluster, timeout=60.0, attempt_timeout=50.0) as store:
        await store.get("warm")
        for replica in cluster.replicas:
            replica.always = fault
        calls = (
            store.get("a", timeout=0.2),
            store.put("a", "1", timeout=0.2),
            store.delete("a", timeout=0.2),
            store.txn([], [Add("a", 1)], timeout=0.2),
            anext(store.scan(timeout=0.2)),
            anext(store.scan_pages(timeout=0.2)),
            store.transact(lambda t: t.get("a"), timeout=0.2),
        )
        async with asyncio.timeout(20):
            ended = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(one, Unavailable | OutcomeUnknown) for one in ended), ended


async def test_who_waits_for_ever_may_say_so() -> None:
    for_ever = float("inf")
    async with FakeCluster() as cluster, client(cluster, timeout=for_ever, attempt_timeout=for_ever) as store:
        assert await store.get("a") is None
        store.attempts._router.view = None
        assert await store.get("a") is None


# --- interactive transactions ---


async def test_a_transaction_reads_its_own_writes_and_commits_at_once() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("a", "1")
        async with store.transaction() as t:
            assert await t.get("a") == b"1"
            t.put("b", "2")
            t.delete("a")
            assert await t.get("b") == b"2"
            assert await t.get("a") is None
            assert b"b" not in cluster.rows
        assert set(cluster.rows) == {b"b"}
        assert t.version == cluster.rows[b"b"][1]
        with pytest.raises(RuntimeError):
            t.put("c", "3")


async def test_a_transaction_that_raises_writes_nothing() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        with pytest.raises(ZeroDivisionError):
            async with store.transaction() as t:
                t.put("a", "1")
                raise ZeroDivisionError
        assert cluster.rows == {}


async def test_a_changed_read_is_a_conflict_that_names_the_keys_and_their_versions() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        before, same = await store.put("b", "1"), await store.put("c", "1")
        with pytest.raises(Conflict) as caught:
            async with store.transaction() as t:
                assert [await t.get(key) for key in ("a", "b", "c")] == [None, b"1", b"1"]
                made = await store.put("a", "other")
                await store.delete("b")
                t.put("a", "mine")
        assert caught.value.changed == ((b"a", ZERO, made), (b"b", before, ZERO))
        a, b = f"b'a' was absent, is now version {made}", f"b'b' was version {before}, is now absent"
        assert str(caught.value) == f"what was read has changed: {a}; {b}"
        assert cluster.rows[b"a"][0] == b"other" and cluster.rows[b"c"][1] == same


@patch("client_sdk.interactive.OPERATIONS_MAX", 20)
async def test_a_conflict_of_more_keys_than_can_be_looked_at_says_what_it_knows() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        with pytest.raises(Conflict) as caught:
            async with store.transaction() as t:
                for i in range(12):
                    await t.get(f"k{i}")
                await store.put("k11", "other")
        assert (b"k11", ZERO, None) in caught.value.changed
        assert "and 1 more" in str(caught.value) and "perhaps no longer" in str(caught.value)


async def test_a_transaction_that_is_too_large_is_told_its_own_size() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        with pytest.raises(InvalidRequest, match=r"at most 1024 comparisons and operations, not 1026$"):
            async with store.transaction() as t:
                for i in range(3):
                    await t.get(f"k{i}")
                for i in range(1023):
                    t.put(f"n{i}", "v")


@pytest.mark.parametrize("succeeded", [True, False])
async def test_a_commit_whose_answer_was_lost_knows_whether_it_was_applied(succeeded: bool) -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        t = InteractiveTransaction(store.attempts, store.keys, None)
        await t.get("a")
        cluster.forgotten_succeeded = succeeded
        for replica in cluster.replicas:
            replica.always = "forgotten"
        if succeeded:
            await t.commit()
            assert str(t.version) == "7-0"
        else:
            with pytest.raises(Conflict) as caught:
                await t.commit()
            assert caught.value.changed == ((b"a", ZERO, None),)


async def test_an_ordered_look_at_a_range_whose_answer_was_lost_is_made_again() -> None:
    """It only reads: nothing of it was applied that could not be asked for once more."""
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.put("k", "v")
        t = InteractiveTransaction(store.attempts, store.keys, None)
        found = await store.get("k")
        assert found is not None
        older = ZERO, [found]
        for replica in cluster.replicas:
            replica.faults = deque(("forgotten",))
        with patch.object(t, "_pages", AsyncMock(side_effect=(older, Compacted("known no more")))):
            assert await t.scan("k") == {b"k": b"v"}


async def test_transact_runs_again_until_it_commits() -> None:
    async with FakeCluster() as cluster, client(cluster, timeout=60.0) as store:

        async def increment(t) -> int:
            value = int(await t.get("n") or b"0") + 1
            t.put("n", str(value))
            return value

        values = await asyncio.gather(*[store.transact(increment) for _ in range(8)])
        assert sorted(values) == list(range(1, 9))
        assert cluster.rows[b"n"][0] == b"8"


@patch.object(interactive, "pause", lambda conflicts, *_: 0.01 if conflicts < 3 else 3600.0)
async def test_transact_ends_with_the_conflict_when_its_time_would_be_over_before_it_is_run_again() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:

        async def hopeless(t) -> None:
            await t.get("n")
            await store.put("n", "x")
            t.put("n", "y")

        await store.get("warm")
        async with asyncio.timeout(60):
            with pytest.raises(Conflict):
                await store.transact(hopeless)
        assert cluster.rows[b"n"][0] == b"x"


@patch.object(interactive, "pause", lambda *_: 0.0)
async def test_transact_ends_with_the_conflict_when_its_time_is_over_while_it_is_run_again() -> None:
    """It is what it ran into; that replicas had too little time in the end is not."""
    async with FakeCluster() as cluster, client(cluster) as store:
        runs: list[bytes] = []

        async def contended(t) -> None:
            if runs:
                for replica in cluster.replicas:
                    replica.always = "hang"
            runs.append(b"")
            await t.get("n")
            await store.put("n", "x")
            t.put("n", "y")

        await store.get("warm")
        with pytest.raises(Conflict):
            await store.transact(contended, timeout=1.0)
        assert len(runs) == 2


@pytest.mark.usefixtures("long_suspected")
async def test_what_is_unanswered_is_asked_elsewhere_under_the_same_id() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        hedging(store)
        bad = cluster.leader(b"n")
        bad.faults.append("hang_after")
        result = await store.txn(success=[Add(b"n", 1)])
        assert result.results[0].value == 1 and cluster.rows[b"n"][0] == b"1"
        assert store.attempts.hedges.made == 1
        seen = [(r.number, i) for r in cluster.replicas for _, path, i in r.seen if path == "/v1/txn"]
        assert len({i for _, i in seen}) == 1 and len({number for number, _ in seen}) == 2
        assert cluster.leaders[cluster.shard_map.shard_of(b"n")] == bad.number
        before = len(bad.seen)
        await store.put("n", "2")
        assert len(bad.seen) == before, "who was too slow is asked last"


async def test_an_answer_that_decides_nothing_does_not_take_the_place_of_the_first() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        await store.get("warm")
        hedging(store)
        bad = cluster.leader(b"n")
        for replica in cluster.replicas:
            replica.always = "hang" if replica is bad else "not_ready"
        with pytest.raises(OutcomeUnknown):
            await store.put("n", "1", timeout=3.0)
        assert store.attempts.hedges.made == 1


async def test_results_that_are_forgotten_elsewhere_are_told_by_the_first_that_was_asked() -> None:
    async with FakeCluster() as cluster, client(cluster, attempt_timeout=60, timeout=60) as store:
        await store.get("warm")
        store.attempts.hedges = Hedges(after=0.01)
        slow = cluster.leader(b"n")
        for replica in cluster.replicas:
            replica.always = "slow" if replica is slow else "forgotten"
        asked = asyncio.create_task(store.txn(success=[Add(b"n", 1)]))
        await eventually(lambda: any(replica.seen for replica in cluster.replicas if replica is not slow))
        await eventually(lambda: not store.attempts.hedges._tasks)
        cluster.slow.set()
        assert (await asked).results[0].value == 1


@pytest.mark.usefixtures("few_attempts")
async def test_what_is_no_answer_about_rights_is_none() -> None:
    async with FakeCluster() as cluster, client(cluster) as store:
        for replica in cluster.replicas:
            replica.always = "garbage"
        with pytest.raises(OutcomeUnknown):
            await store.run(rights.make_token("ann", []))
        with pytest.raises(Unavailable):
            await store.run(rights.list_rights())


async def test_hedges_are_a_bounded_share() -> None:
    hedges = Hedges(after=0.001)
    loop, asked = asyncio.get_running_loop(), 0

    async def again() -> None:
        nonlocal asked
        asked += 1

    answers = [loop.create_future() for _ in range(100)]
    for answer in answers:
        hedges.watch(answer, lambda: None, again)
    await eventually(lambda: not hedges._open and not hedges._tasks)
    await hedges.close()
    assert asked == hedges.made == SAVED_MAX, "what was saved before; ten requests save one more, up to that"
