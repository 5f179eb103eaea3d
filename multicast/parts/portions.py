"""Large states travel in portions: a message has a limited size, and others want to use the link meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from multicast.types import ProcessId

T = TypeVar("T")


class Portion(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """A message, or portion `number` of the `count` in which it travels. Its subclasses have `entries`."""

    bulk: ClassVar[bool] = True
    number: int = 0
    count: int = 1


P = TypeVar("P", bound=Portion)


def one_by_one(items: Iterable[T], bytes_of: Callable[[T], int], portion_bytes: int) -> Iterator[list[T]]:
    """The items in lists of about `portion_bytes` each, by `bytes_of` their payload; at least one list. Each looks only
    at its own items, and at the next one."""
    some: list[T] = []
    size = 0
    for item in items:
        if size > portion_bytes:
            yield some
            some, size = [], 0
        some.append(item)
        size += bytes_of(item) + 100
    yield some


def portions(items: Iterable[T], bytes_of: Callable[[T], int], portion_bytes: int) -> list[list[T]]:
    """All of them (`one_by_one`)."""
    return list(one_by_one(items, bytes_of, portion_bytes))


def split(whole: P, bytes_of: Callable[[Any], int], portion_bytes: int) -> list[P]:
    """The message as the portions in which it travels."""
    lists = portions(whole.entries, bytes_of, portion_bytes)  # type: ignore[attr-defined]
    return [msgspec.structs.replace(whole, entries=some, number=n, count=len(lists)) for n, some in enumerate(lists)]


class Assembly(Generic[T]):
    """Puts the portions of each sender together again. If one is lost, those after it are dropped."""

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        self._lists: dict[ProcessId, list[T]] = {}

    def add(self, sender: ProcessId, number: int, count: int, items: list[T]) -> list[T] | None:
        """Portion `number` of `count`, from 0 on. Returns all items with the last portion, None before."""
        if number == 0:
            self._lists[sender] = []
        held = self._lists.get(sender)
        if held is None:
            return None
        held += items
        return self._lists.pop(sender) if number == count - 1 else None

    def clear(self) -> None:
        """Nothing that was begun is wanted any more."""
        self._lists.clear()

    def keep(self, senders: Collection[ProcessId]) -> None:
        """Nobody but these completes what it has begun to send."""
        self._lists = {sender: held for sender, held in self._lists.items() if sender in senders}

    def forget(self, sender: ProcessId) -> None:
        """What this sender has begun to send will not be completed."""
        self._lists.pop(sender, None)
