"""Causal multicast among the members of one view: what is held, by whom, and what is safe.

Theory of operation. A cast names its past: how many casts of each member its author held. A member accepts a cast once
it holds its past, and numbers make copies and gaps visible. Every cast, and every receipt, tells what its sender
durably holds; a cast is *safe* once a majority of all processes hold it. What is safe is closed under causality,
and survives every change of views; so only safe casts may decide about an order that is told to applications.

No IO; members are known here by their index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from multicast.parts.views import Cast, Span
from multicast.types import AppMessage, ProcessId

AHEAD_MAX = 10_000
"""A cast that is further ahead of what is held is dropped; it will be asked for."""


class CausalView:
    """One member's side.

    me: its own index; None if it is no member. quorum: how many holders make a cast safe.
    held: accepted casts of each member. known[k]: what member k durably holds, as far as known. safe: see above.
    wanted: casts that are known to exist. last_app: number of the last accepted cast with messages. covered: past of
    the own last cast. base: casts up to here are dropped.
    """

    def __init__(self, number: int, members: Sequence[ProcessId], self_id: ProcessId, quorum: int):
        n = len(members)
        self.number = number
        self.members = tuple(members)
        self.index = {p: k for k, p in enumerate(self.members)}
        self.me = self.index.get(self_id)
        self.others = tuple(p for p in self.members if p != self_id)
        self.quorum = quorum
        self.n = n
        self.held = [0] * n
        self.known = [[0] * n for _ in range(n)]
        self.safe = [0] * n
        self.wanted = [0] * n
        self.last_app = [0] * n
        self.covered = [0] * n
        self.base = [0] * n
        self._casts: list[deque[Cast]] = [deque() for _ in range(n)]
        self._waiting: list[dict[int, Cast]] = [{} for _ in range(n)]

    # -- casts --------------------------------------------------------------------------------------------------------

    def restore(self, cast: Cast) -> None:
        """A cast from this process's disk; each author's in order."""
        self._add(self.index[cast.author], cast)

    def drop_below(self, base: Sequence[int]) -> None:
        """Before any cast is there: those up to `base` were held by everybody and ordered here."""
        self.base = list(base)
        self.held = list(base)
        self.covered = list(base)

    def _add(self, k: int, cast: Cast) -> None:
        assert cast.number == self.held[k] + 1, f"cast {cast.number} of {cast.author} after {self.held[k]}"
        self.held[k] = cast.number
        self._casts[k].append(cast)
        if cast.messages:
            self.last_app[k] = cast.number
        if k == self.me:
            self.covered = cast.past
        if cast.number > self.wanted[k]:
            self.wanted[k] = cast.number

    def next_cast(self, stamp: int, messages: list[AppMessage]) -> Cast:
        """The own next one, accepted at once."""
        assert self.me is not None
        cast = Cast(self.number, self.members[self.me], self.held[self.me] + 1, list(self.held), stamp, messages)
        self._add(self.me, cast)
        return cast

    def arrive(self, cast: Cast) -> list[Cast]:
        """A cast has come, from its author or as a copy. Returns the casts that can be accepted now, in a causal
        order."""
        k = self.index[cast.author]
        if cast.number <= self.held[k] or cast.number > self.held[k] + AHEAD_MAX:
            return []
        self._waiting[k][cast.number] = cast
        accepted: list[Cast] = []
        progress = True
        while progress:
            progress = False
            for j, waiting in enumerate(self._waiting):
                while waiting and (first := waiting.get(self.held[j] + 1)) is not None and self.precedes(first):
                    del waiting[first.number]
                    self._add(j, first)
                    accepted.append(first)
                    progress = True
        return accepted

    def precedes(self, cast: Cast) -> bool:
        """Whether the past of this cast is held."""
        return all(map(int.__le__, cast.past, self.held))

    def cast(self, k: int, number: int) -> Cast:
        """One that is held and not dropped."""
        return self._casts[k][number - self.base[k] - 1]

    def copies(self, span: Span) -> list[Cast]:
        """What is held of a span."""
        author, first, last = span
        k = self.index.get(author)
        if k is None:
            return []
        first, last = max(first, self.base[k] + 1), min(last, self.held[k])
        return [self.cast(k, number) for number in range(first, last + 1)]

    def everything(self) -> list[Cast]:
        return [cast for casts in self._casts for cast in casts]

    def drop(self, upto: Sequence[int]) -> list[Cast]:
        """Forget the casts up to these numbers. Returns those that were forgotten."""
        dropped: list[Cast] = []
        for k, number in enumerate(upto):
            while self.base[k] < number:
                dropped.append(self._casts[k].popleft())
                self.base[k] += 1
        return dropped

    # -- what is known ------------------------------------------------------------------------------------------------

    def learn(self, k: int, held: Sequence[int]) -> bool:
        """Member k durably holds this. Whether something became safe."""
        row, news = self.known[k], False
        for j, number in enumerate(held):
            if number > row[j]:
                row[j] = number
                if number > self.wanted[j]:
                    self.wanted[j] = number
                if number > self.safe[j]:
                    column = sorted([known[j] for known in self.known], reverse=True)
                    if column[self.quorum - 1] > self.safe[j]:
                        self.safe[j] = column[self.quorum - 1]
                        news = True
        return news

    def learn_from(self, cast: Cast) -> bool:
        """The author of a cast holds its past and itself."""
        k = self.index[cast.author]
        held = list(cast.past)
        held[k] = cast.number
        return self.learn(k, held)

    def held_by_all(self) -> list[int]:
        return [min(column) for column in zip(*self.known, strict=True)]

    def silent_about(self) -> bool:
        """Whether this member holds a cast with messages of another one, and has sent no cast since: others do not know
        yet that it holds it."""
        for k, (last, covered) in enumerate(zip(self.last_app, self.covered, strict=True)):
            if last > covered and k != self.me:
                return True
        return False

    def gaps(self) -> list[Span]:
        """Casts that exist and did not arrive."""
        spans: list[Span] = []
        for k, wanted in enumerate(self.wanted):
            held = self.held[k]
            if held < wanted:
                waiting = self._waiting[k]
                first = held + 1
                while first in waiting:
                    first += 1
                if first <= wanted:
                    last = first
                    while last < wanted and last + 1 not in waiting:
                        last += 1
                    spans.append((self.members[k], first, last))
        return spans

    def holders(self, span: Span) -> list[ProcessId]:
        """Other members that hold the first cast of a span."""
        k = self.index[span[0]]
        return [p for j, p in enumerate(self.members) if j != self.me and self.known[j][k] >= span[1]]
