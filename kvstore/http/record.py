"""Which requests stand in the log: slow ones, refused ones, and who did what.

Who did what is told with the path and the names of keys, never with values or bodies; of a slow or refused request the
route only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from kvstore.api.http1 import Head
from kvstore.api.model import FIRST_KEY, DeleteRange, Get, Rule, Transaction, operations_of
from kvstore.api.routes import Route
from kvstore.config import LogSettings
from multicast.logs import structlog

DENIED = (401, 403)
LINES_PER_SECOND = 20
"""Of slow and refused requests: under overload, or an attack, all are. How many were left out the next line says."""
KEYS_MAX = 16
"""So many keys that a transaction writes are named, and so many ranges that it deletes."""

_log = structlog.get_logger("kvstore.http")


class Asked(Protocol):
    """What is told of a call (`kvstore.http.calls.Call`)."""

    head: Head
    route: str
    recorded: str
    holder: str
    text_id: str
    ordered: bool
    transaction: Transaction

    @property
    def request_id(self) -> str:
        """By which its client calls it, or we do."""

    @property
    def goes_on(self) -> bool:
        """Whether its answer has no end."""

    @property
    def address(self) -> str:
        """Of its client."""


class Record:
    """settings: what is wanted. name_of(token id): whose it is; empty: nobody's."""

    def __init__(self, settings: LogSettings, name_of: Callable[[str], str]):
        self._settings = settings
        self._name_of = name_of
        self._slow_seconds = settings.slow_request_ms / 1000 or float("inf")
        self._second, self._lines, self._left_out = 0, 0, 0

    def kind(self, route: Route) -> str:
        """As what requests of a route are told: "admin" or "write"; empty: they are not."""
        if route.method == "GET":
            return ""
        if route.access == "admin":
            return "admin" if self._settings.admin else ""
        return "write" if self._settings.writes else ""

    def ended(self, call: Asked, status: int, seconds: float) -> None:
        """It is answered."""
        if call.recorded and (call.text_id or call.recorded == "admin"):
            what = {"path": call.head.target, **_keys(call)}
            _log.info(call.recorded, **self._about(call, status, seconds), **what)
        elif status in DENIED:
            self._tell("denied", call, status, seconds)
        if seconds >= self._slow_seconds and not call.goes_on:
            self._tell("slow request", call, status, seconds)

    def _tell(self, event: str, call: Asked, status: int, seconds: float) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > LINES_PER_SECOND:
            self._left_out += 1
            return
        more = {"left_out": self._left_out} if self._left_out else {}
        self._left_out = 0
        _log.warning(event, **self._about(call, status, seconds), route=call.route, **more)

    def _about(self, call: Asked, status: int, seconds: float) -> dict[str, Any]:
        about = {"method": call.head.method, "status": status, "ms": round(1000 * seconds, 1), "id": call.text_id}
        about |= {"request_id": call.request_id, "by": self._name_of(call.holder), "address": call.address}
        return {name: value for name, value in about.items() if value != ""}


def _keys(call: Asked) -> dict[str, Any]:
    """What a transaction writes, and the path does not say: keys and names, and what it deletes in one piece."""
    if not call.ordered:
        return {}
    operations = operations_of(call.transaction)
    names = [o.name if isinstance(o, Rule) else getattr(o, "key", None) for o in operations if not isinstance(o, Get)]
    keys = [_text(name) for name in names if name is not None]
    ranges = [
        {name: _text(bound) for name in ("prefix", "start", "end")
         if (bound := getattr(operation, name)) not in (b"", FIRST_KEY)}
        for operation in operations if isinstance(operation, DeleteRange)
    ]  # fmt: skip
    told = {name: some[:KEYS_MAX] for name, some in (("keys", keys), ("ranges", ranges)) if some}
    return {**told, "operations": len(operations)} if told else {}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")
