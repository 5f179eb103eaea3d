"""When the write buffer goes to LMDB: after the journal, one commit at a time. The host is held while it is too
full."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore import committing
from kvstore.committing import Committer, when_there_is_room
from kvstore.limits import Limits
from kvstore.storage.backend import NoSpace, StorageError
from tests.multicast.live import eventually

LIMITS = Limits(commit_bytes=10, buffer_bytes_max=67, commit_interval_ms=3_600_000)  # held_bytes: 100


class FakeStore:
    """Notes what is frozen and committed; a commit waits for `room`."""

    def __init__(self) -> None:
        self.position = self.pending_bytes = 0
        self.frozen: list[int] = []
        self.commits = 0
        self.errors: list[Exception] = []

    def freeze(self, position: int) -> bool:
        self.frozen.append(position)
        self.pending_bytes = 0
        return True

    def commit(self) -> None:
        if self.errors:
            raise self.errors.pop()
        self.commits += 1

    def thawed(self) -> None:
        self.position = self.frozen[-1]


class FakeHost:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.engine = SimpleNamespace(completed=0)
        self.released: list[int] = []
        self.held: list[bool] = []

    def release(self, position: int) -> None:
        self.released.append(position)

    def hold(self, held: bool) -> None:
        self.held.append(held)


class Case:
    """A committer between both; `ended` has what its commits raised, None if nothing."""

    def __init__(self) -> None:
        self.store, self.host = FakeStore(), FakeHost()
        self.stopping = False
        self.ended: list[BaseException | None] = []
        store: Any = self.store
        self.committer = Committer(
            store, LIMITS, lambda: self.stopping, lambda task: self.ended.append(task.exception())
        )
        host: Any = self.host
        self.committer.follow(host)

    def batch(self, number: int, completed: int, pending_bytes: int) -> None:
        self.host.engine.completed, self.store.pending_bytes = completed, pending_bytes
        batch: Any = SimpleNamespace(number=number, journal=[b"something"])
        self.committer.on_batch(batch)


async def test_what_is_in_the_buffer_is_committed_once_the_journal_has_the_batch() -> None:
    case = Case()
    case.batch(1, 5, 9)
    assert case.store.frozen == []
    case.batch(2, 6, 10)
    assert case.store.frozen == [6]
    case.committer.on_flushed(1)
    await asyncio.sleep(0)
    assert (case.store.commits, case.ended) == (0, [])
    case.committer.on_flushed(2)
    await eventually(lambda: case.ended == [None], "the commit is done")
    assert (case.store.commits, case.store.position, case.host.released) == (1, 6, [0, 6])


async def test_a_second_layer_is_not_frozen_before_the_first_is_committed() -> None:
    case = Case()
    case.batch(1, 5, 10)
    case.batch(2, 6, 10)
    assert case.store.frozen == [5]
    case.committer.on_flushed(2)
    await eventually(lambda: case.ended == [None], "the commit is done")
    case.batch(3, 7, 10)
    assert case.store.frozen == [5, 7]


async def test_the_host_is_held_while_the_buffer_is_too_full() -> None:
    case = Case()
    case.batch(1, 5, 10)
    case.batch(2, 6, 101)
    assert case.host.held == [True]
    case.committer.on_flushed(2)
    await eventually(lambda: case.host.held == [True, False], "the host goes on")
    assert case.store.frozen == [5, 6]


async def test_an_error_of_the_disk_is_told_and_nothing_is_released() -> None:
    case = Case()
    case.store.errors = [StorageError("gone")]
    case.batch(1, 5, 10)
    case.committer.on_flushed(1)
    await eventually(lambda: bool(case.ended), "the commit has failed")
    assert isinstance(case.ended[0], StorageError)
    assert (case.store.position, case.host.released) == (0, [0])


async def test_a_commit_without_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "NO_SPACE_SECONDS", 0.001)
    case = Case()
    case.store.errors = [NoSpace("full"), NoSpace("full")]
    case.batch(1, 5, 10)
    case.committer.on_flushed(1)
    await eventually(lambda: case.ended == [None], "the commit is done")
    assert case.store.commits == 1


async def test_who_is_stopping_does_not_wait_for_room() -> None:
    def work() -> None:
        raise NoSpace("full")

    with pytest.raises(asyncio.CancelledError):
        await when_there_is_room(work, lambda: True)


async def test_at_the_end_what_is_left_is_committed() -> None:
    case = Case()
    case.batch(1, 5, 10)
    case.batch(2, 6, 3)
    case.committer.cancel_timer()
    await case.committer.commit_rest()
    assert (case.store.frozen, case.store.commits, case.store.position) == ([5, 6], 2, 6)


async def test_where_another_life_will_begin_nothing_more_is_frozen() -> None:
    case = Case()
    case.committer.unfollow()
    case.batch(1, 5, 101)
    assert (case.store.frozen, case.host.held) == ([], [])
    await case.committer.finish()
