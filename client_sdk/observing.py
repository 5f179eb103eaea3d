"""What a program can count of its client, for metrics: its requests, how long they took and how they ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

_log = logging.getLogger(__name__)


class Done(NamedTuple):
    """A request that is over, with all its attempts.

    operation: method and path without keys and ids, such as "GET /v1/kv/"; or "transact". attempts: how often it was
    sent; of "transact", how often the function ran. hedges: those of them that went out beside an unanswered one.
    seconds: from the call to the answer. error: the name of the exception that it raised, "" if none.
    """

    operation: str
    attempts: int
    hedges: int
    seconds: float
    error: str


OnDone = Callable[[Done], object]


class Observed:
    """A request that is under way, as a context. began: `time.monotonic` seconds."""

    __slots__ = ("_method", "_on_done", "_path", "attempts", "began", "hedges")

    def __init__(self, on_done: OnDone | None, method: str, path: str = ""):
        self._on_done, self._method, self._path = on_done, method, path
        self.attempts = self.hedges = 0
        self.began = time.monotonic()

    def __enter__(self) -> Observed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._on_done is not None:
            name = "" if kind is None else kind.__name__
            seconds = time.monotonic() - self.began
            try:
                self._on_done(Done(_operation(self._method, self._path), self.attempts, self.hedges, seconds, name))
            except Exception:  # the request has ended as it has, whatever is wrong with who counts it
                _log.exception("on_done has raised")


def _operation(method: str, path: str) -> str:
    if not path:
        return method
    _, version, place, *more = path.partition("?")[0].split("/", 3)
    return f"{method} /{version}/{place}{'/' * len(more)}"
