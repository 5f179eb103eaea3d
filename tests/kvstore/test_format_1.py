"""Data of format 1, when a message was one transaction and LMDB held the protocol's state: all of it is read as ever.

`format_1.tar.xz` was written by two replicas (white_box, a shard each, clocks in June 2024) that were killed with -9:
what is called "first", and a transaction under `ID`, had been committed to LMDB; the rest was in the journals only.
"""

from __future__ import annotations

import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from kvstore import config
from kvstore.api.model import Add, Get, KeyValue, Operation, Put, Range, Transaction
from kvstore.core.audit import APPLIED, FAILED, Outcome, Read, Write, decode_outcomes
from kvstore.core.bundles import NO_ID, decode_bundle, decode_transaction, encode_transaction
from kvstore.core.messages import Answered, Part, PartRequest, Parts, Vote, Wanted
from kvstore.host import LiveReplica
from multicast.types import AppMessage, Timestamp
from tests.kvstore.live import executed
from tests.kvstore.one_replica import Bench, key
from tests.ports import free_ports

ID = UUID("019000c7-af88-7123-8001-234567890abc").bytes
UNDER_ID = (Add(b"n1", 5), Add(b"n2", 7), Get(b"a"))
HELD = {b"a": b"second-a", b"b": b"first-b", b"c": b"first-c", b"d": b"first-d", b"e": b"first-e", b"g": b"second-g",
        b"h": b"second-h", b"n1": b"5", b"n2": b"7"}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("format_1.tar.xz")) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    found = config.load(tmp_path)
    ports = free_ports(4)
    replicas = tuple(
        msgspec.structs.replace(r, peer_port=ports.pop(), http_port=ports.pop()) for r in found.replicas
    )
    config.save(tmp_path, msgspec.structs.replace(found, replicas=replicas))
    return tmp_path


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[list[LiveReplica]]:
    replicas = [LiveReplica(directory, config.load(directory), number) for number in (0, 1)]
    for replica in replicas:
        await replica.start()
    yield replicas
    for replica in replicas:
        await replica.stop()


async def result(replica: LiveReplica, *operations: Operation, message_id: bytes = b"") -> Answered:
    answer = await executed(replica, message_id or replica.new_message_id(), Transaction((), operations))
    assert isinstance(answer, Answered), answer
    return answer


async def everything(replica: LiveReplica) -> dict[bytes, bytes]:
    answer = await result(replica, Range(b"", 100))
    return {found.key: found.value for found in answer.result.results[0].entries}


async def test_everything_is_there_and_stays_there_in_format_2(directory: Path) -> None:
    async with running(directory) as (first, second):
        again = await result(first, *UNDER_ID, message_id=ID)
        assert again.repeated and [r.value for r in again.result.results] == [5, 7, 0]
        assert await everything(second) == HELD
        await result(first, Put(b"new", b"x"))
    async with running(directory) as (_, second):
        assert await everything(second) == HELD | {b"new": b"x"}


# -- in journals ------------------------------------------------------------------------------------------------------


def single(transaction: Transaction, message_id: bytes) -> AppMessage:
    """A message of format 1."""
    payload = msgspec.msgpack.encode([1, msgspec.Raw(encode_transaction(transaction))])
    return AppMessage(message_id, (0,), payload, 0)


def test_a_single_transaction_is_a_bundle_of_one_whose_id_is_the_messages_and_its_version_the_timestamp() -> None:
    bench = Bench()
    message_id, put = bench.new_id(), Transaction((), (Put(key(0), b"v"),))
    delivery = bench.order(single(put, message_id))
    assert bench.store.get(key(0)) == KeyValue(key(0), b"v", delivery.timestamp, delivery.timestamp)
    bench.deliver(put, message_id)
    assert [outcome.id for outcome in bench.outcomes()] == [message_id, message_id]
    versions = [decode_outcomes(record).version_at(0) for _, record in bench.out.completions]
    assert versions[0] == delivery.timestamp < versions[1]
    bench.request(put, message_id)
    (answer,) = bench.answers()
    assert isinstance(answer, Answered) and answer.repeated and answer.result.version == delivery.timestamp


def test_a_part_that_was_kept_for_others_is_told_and_goes_when_it_is_settled() -> None:
    bench = Bench()
    message_id, stamp = bench.new_id(), Timestamp(bench.now, 3)
    vote = [False, "", b"", "", b""]
    bench.store.keep_part(message_id, msgspec.msgpack.encode([message_id, bytes(16), vote, stamp, [0, 1]]))
    bench.restart_replica()
    bench.hear(4, PartRequest([Wanted(message_id, stamp, [message_id])]))
    assert bench.sent(Parts) == [((4,), Parts(0, [Part(message_id, stamp, [Vote(holds=False)])]))]
    bench.replica.on_settled(message_id, stamp, (0, 1), bench.now, bench.out)
    assert bench.store.part(message_id) is None


def test_what_was_a_read_that_nobody_can_repeat_has_no_id() -> None:
    get = Transaction((), (Get(b"k"),))
    (bundled,) = decode_bundle(single(get, UUID("019000c7-af88-8123-8001-234567890abc").bytes))
    assert bundled.id == NO_ID and decode_transaction(bundled) == get


def test_an_outcome_of_format_1_is_that_of_a_bundle_of_one() -> None:
    stamp, earlier = Timestamp(1_700_000_000_000_000, 3), Timestamp(5, 0)
    record = [1, ID, stamp, FAILED, True, [[b"a", earlier]], [[b"b", b"x"], [b"c", None]], bytes(16), "no", b"a"]
    found = decode_outcomes(msgspec.msgpack.encode(record))
    reads, writes = (Read(b"a", earlier),), (Write(b"b", b"x"), Write(b"c", None))
    assert found.outcomes == [Outcome(ID, FAILED, True, reads, writes, "no", b"a")]
    assert (found.version_at(0), found.state_digest) == (stamp, bytes(16))
    shortest = [1, ID, stamp, APPLIED, True, [], []]
    assert decode_outcomes(msgspec.msgpack.encode(shortest)).outcomes == [Outcome(ID, APPLIED, True)]
