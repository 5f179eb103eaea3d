"""A cluster's directory of data format 1, whose LMDB held the protocol's state: it opens, and nothing is lost.

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
from kvstore.api.model import Add, Get, Operation, Put, Range, Transaction
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from tests.kvstore.live import executed
from tests.ports import free_ports

ID = UUID("019000c7-af88-7123-8001-234567890abc").bytes
UNDER_ID = (Add(b"n1", 5), Add(b"n2", 7), Get(b"a"))
HELD = {b"a": b"second-a", b"b": b"first-b", b"c": b"first-c", b"d": b"first-d", b"e": b"first-e", b"g": b"second-g",
        b"h": b"second-h", b"n1": b"5", b"n2": b"7"}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("format_1.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
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
