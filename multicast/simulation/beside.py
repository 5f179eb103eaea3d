"""The same work on many items, in several processes beside this one."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

JOBS_MAX = 64


def each(
    function: Callable[[Item], Result], items: Iterable[Item], jobs: int, ordered: bool = False
) -> Iterator[tuple[Item, Result]]:
    """Each item with its result, as soon as it is there; ordered: and those of all before it. With one job it happens
    in this process. function: one of a module, found by name in the processes. An exception of it comes through.
    Whatever ends the iteration, Ctrl-C too, ends the processes."""
    if jobs == 1:
        for item in items:
            yield item, function(item)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _leave_interrupts_to_the_parent) as pool:
        yield from (pool.imap if ordered else pool.imap_unordered)(_Paired(function), items)


class _Paired(Generic[Item, Result]):
    def __init__(self, function: Callable[[Item], Result]):
        self._function = function

    def __call__(self, item: Item) -> tuple[Item, Result]:
        return item, self._function(item)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
