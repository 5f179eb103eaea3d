"""How many requests may be under way at one replica, so that those that are taken are answered in time.

By Little's law the number of requests under way is the rate at which they are answered times the time that one takes.
So if requests take longer than TARGET_SECONDS, no more may be under way than have lately been answered in that time. A
request beyond that is refused at once, which costs little, instead of late, when everything has been done for it. The
rate is measured while there is something to do, and only then, and a limit falls only when answers really are late.
While they are in time it rises again, to BURST, or beyond with the rate: a burst after a quiet time is taken.

LEAST may always be under way. Where a request takes its time though nothing waits (a slow disk, far data centres),
fewer would not make it faster, and a limit that is a share of them would sink further and further.

Pure: instants are seconds of any clock that does not go back.
"""

from __future__ import annotations

TARGET_SECONDS = 0.4
LEAST, BURST = 512, 1024
INTERVAL_SECONDS = 0.1
"""So long is measured before the limit is set anew; longer, until there is an answer, but not beyond the target."""
SMOOTHING = 0.25
"""The weight of the last interval in the rate."""
GROWTH = 1.02
"""By what a limit below BURST grows in one interval, while answers are in time."""


class Admission:
    """At one replica. under_way_max: `limit` is never more. under_way: how many requests are now. admitted: how many
    have begun."""

    def __init__(self, under_way_max: int):
        self.under_way_max = under_way_max
        self.limit = min(BURST, under_way_max)
        self.under_way = self.admitted = 0
        self._rate = 0.0
        self._since = 0.0
        """When the interval began, in which so many were answered, after so many seconds in all."""
        self._answered = 0
        self._waited = 0.0

    def takes(self, now: float) -> bool:
        """Whether one more may begin."""
        if now - self._since >= INTERVAL_SECONDS and self.under_way:
            self._measure(now)
        return self.under_way < self.limit

    def begin(self, now: float) -> None:
        """A request is under way."""
        if not self.under_way:
            self._begin_interval(now)
        self.under_way += 1
        self.admitted += 1

    def end(self, began: float, now: float, served: bool) -> None:
        """A request that began then is answered. served: it was not refused after all, which would say nothing of how
        many can be served."""
        if served:
            self._answered += 1
            self._waited += now - began
        if now - self._since >= INTERVAL_SECONDS:
            self._measure(now)
        self.under_way -= 1

    def _measure(self, now: float) -> None:
        """Set the limit, unless nothing was answered and it is too early to conclude anything from that."""
        elapsed = now - self._since
        if not self._answered and elapsed < TARGET_SECONDS:
            return
        self._rate += (self._answered / elapsed - self._rate) * SMOOTHING
        limit = int(self._rate * TARGET_SECONDS)
        in_time = self._answered and self._waited <= TARGET_SECONDS * self._answered
        if in_time:
            limit = max(limit, min(int(self.limit * GROWTH) + 1, BURST))
        self.limit = min(max(limit, LEAST), self.under_way_max)
        self._begin_interval(now)

    def _begin_interval(self, now: float) -> None:
        self._since, self._answered, self._waited = now, 0, 0.0
