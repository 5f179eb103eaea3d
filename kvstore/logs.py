"""How a replica writes its log: lines for people on a terminal, JSON otherwise, and no secret in either."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from multicast.logs import structlog

STANDARD_ERROR = 2
HIDDEN = "(hidden)"
_TOKEN = re.compile(r"\bkv-[\w-]+-[\w-]{16,}")
_SECRET_NAMES = frozenset(("authorization", "token", "password", "secret", "root"))


WAIT_SECONDS = 0.25
"""So long a line is waited for, so that who asks for the log finds what has happened; then the log is behind, and
nobody waits until it has caught up."""
WAITING_MAX = 1000
"""Lines beyond so many that wait are lost."""
END_SECONDS = 1.0
"""At its end a process waits for the log at most so long."""


class Log:
    """Standard error for lines that may be lost: a full disk under it, or a closed pipe, fails nothing that must be
    done; and one that takes nothing, a pipe that nobody reads, a device that hangs, stops nobody: a thread writes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._behind = False
        self._lost = 0
        threading.Thread(target=self._work, name="log", daemon=True).start()

    def write(self, text: str) -> None:
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                self._lost += 1
                return
            self._waiting.append(text.encode("utf-8", "replace"))
            self._changed.notify_all()
            if not self._behind:
                self._behind = not self.drain(WAIT_SECONDS)

    def flush(self) -> None:
        """Nothing is kept."""

    def drain(self, seconds: float) -> bool:
        """Whether everything is written, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                line, lost, self._lost = self._waiting[0], self._lost, 0
            self._write(line)
            if lost:
                self._write(b'{"level": "warning", "event": "%d lines of the log were lost"}\n' % lost)
            with self._changed:
                self._waiting.popleft()
                if not self._waiting:
                    self._behind = False
                    self._changed.notify_all()

    @staticmethod
    def _write(line: bytes) -> None:
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(STANDARD_ERROR, line) :]


def set_up_logging() -> None:
    """Lines on standard error. Values of keys are never logged, tokens are hidden wherever they stand."""
    terminal = sys.stderr.isatty()
    log = Log()
    atexit.register(log.drain, END_SECONDS)
    sys.stderr = cast(TextIO, log)
    plain = structlog.dev.plain_traceback  # others show what variables hold
    renderer = (
        structlog.dev.ConsoleRenderer(exception_formatter=plain) if terminal else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            hide_secrets,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    standard = logging.StreamHandler(sys.stderr)
    standard.setFormatter(_Standard(renderer))
    logging.basicConfig(level=logging.WARNING, handlers=[standard])


class _Standard(logging.Formatter):
    """Lines of the standard library, of asyncio for example, in the form of ours."""

    def __init__(self, render: Callable[[Any, str, MutableMapping[str, Any]], Any]):
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {"logger": record.name, "event": record.getMessage(), "level": record.levelname.lower()}
        line["timestamp"] = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return str(self._render(None, line["level"], hide_secrets(None, "", line)))


def hide_secrets(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: what looks like a token, or is called like a secret, is not shown."""
    for name, value in line.items():
        if name.lower() in _SECRET_NAMES:
            line[name] = HIDDEN
        elif isinstance(value, str):
            line[name] = _TOKEN.sub(HIDDEN, value)
    return line
