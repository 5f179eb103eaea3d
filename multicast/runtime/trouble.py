"""What is worth a line in the log about links."""

from __future__ import annotations

from multicast.logs import structlog

_TOLD_MAX = 1000

log = structlog.get_logger("multicast.runtime.links")


class Troubles:
    """Logs each trouble once, until it is over. closing: the links are being closed, so none is worth a line."""

    def __init__(self) -> None:
        self.closing = False
        self._told: set[tuple[str, str]] = set()

    def tell(self, what: str, why: str) -> None:
        """Log this, unless it was just the same before."""
        if (what, why) not in self._told and not self.closing:
            if len(self._told) >= _TOLD_MAX:
                self._told.clear()
            self._told.add((what, why))
            log.warning(what, reason=why) if why else log.warning(what)

    def over(self, prefix: str) -> None:
        """The next such trouble is news again."""
        self._told = {t for t in self._told if not t[0].startswith(prefix)}
