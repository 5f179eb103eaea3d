"""Named timers: what a process does at which instant. A batch in which none is due costs one comparison.

A timer is a function (now, out) that returns when it acts next; None: not before it is asked for again. Whatever makes
a timer necessary says by when it has to act (`by`); an earlier deadline stays, so "within a second of the first of
these" needs no flag. Timers that are due act in the order in which they were added, each at most once in a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from multicast.protocol import Outbox

Timer = Callable[[int, Outbox], int | None]

_NEVER = 1 << 62


def earliest(*instants: int | None) -> int | None:
    """The first of these instants; None if there is none."""
    first: int | None = None
    for at in instants:
        if at is not None and (first is None or at < first):
            first = at
    return first


class Deadlines:
    """The timers of one process, in microseconds. No timer is set at first."""

    __slots__ = ("_at", "_next", "_timers")

    def __init__(self, timers: Mapping[str, Timer]):
        self._next = _NEVER
        self._timers = dict(timers)
        self._at = dict.fromkeys(timers, _NEVER)

    def add(self, name: str, timer: Timer) -> None:
        """Add a timer, behind the others. A part that is given its user's deadlines adds its own timers to them."""
        if name in self._timers:
            raise ValueError(f"there are two timers {name!r}")
        self._timers[name] = timer
        self._at[name] = _NEVER

    @property
    def wake_at(self) -> int | None:
        """When `run` has something to do. This may be too early after a timer was put off or stopped, and is never too
        late."""
        return None if self._next == _NEVER else self._next

    def due(self, now: int) -> bool:
        """Whether `run` has anything to do."""
        return now >= self._next

    def is_set(self, name: str) -> bool:
        return self._at[name] != _NEVER

    def by(self, name: str, at: int) -> None:
        """This timer acts at `at` or earlier."""
        if at < self._at[name]:
            self._at[name] = at
            if at < self._next:
                self._next = at

    def restart(self, name: str, at: int) -> None:
        """This timer acts at `at`, and not earlier."""
        self._at[name] = _NEVER
        self.by(name, at)

    def stop(self, name: str) -> None:
        """This timer does not act before it is asked for again."""
        self._at[name] = _NEVER

    def run(self, now: int, out: Outbox) -> int | None:
        """Let the timers that are due act; returns `wake_at`. A timer is not set while it acts, so what it asks for
        then counts."""
        if now >= self._next:
            for name, act in self._timers.items():
                if now >= self._at[name]:
                    self._at[name] = _NEVER
                    again = act(now, out)
                    if again is not None:
                        self.by(name, again)
            self._next = min(self._at.values(), default=_NEVER)
        return None if self._next == _NEVER else self._next
