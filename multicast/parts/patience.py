"""When to ask again for something large: it may be lost, or only be slow.

Who asks in every turn of its timer is sent all of it in every turn; over a link that takes longer for it than a turn,
what was asked for in vain stands before what is wanted, ever more of it, until the queue overflows and all is lost.
So the pauses between two questions double, and while it comes, nobody asks.
"""

from __future__ import annotations

_PAUSE_MAX = 127


class Patience:
    """Of one who asks in turns of a timer."""

    __slots__ = ("_left", "_pause")

    def __init__(self) -> None:
        self._left = self._pause = 0

    def asks(self) -> bool:
        """Whether to ask in this turn."""
        if self._left:
            self._left -= 1
            return False
        self._left, self._pause = self._pause, min(2 * self._pause + 1, _PAUSE_MAX)
        return True

    def comes(self) -> None:
        """A part of it has come, and more will."""
        self._left = self._pause

    def over(self) -> None:
        """It is there, or what was under way is lost: the next question is the first."""
        self._left = self._pause = 0
