"""How a replica writes its log: lines for people on a terminal, JSON otherwise, and no secret in either."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

from multicast.logs import structlog

STANDARD_ERROR = 2
HIDDEN = "(hidden)"
_TOKEN = re.compile(r"\bkv-[\w-]+-[\w-]{16,}")
_SECRET_NAMES = frozenset(("authorization", "token", "password", "secret", "root"))


class Log:
    """Standard error for lines that may be lost: a full disk under it, or a closed pipe, fails nothing that must be
    done."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(STANDARD_ERROR, text.encode("utf-8", "replace"))

    def flush(self) -> None:
        """Nothing is kept."""


def set_up_logging() -> None:
    """Lines on standard error. Values of keys are never logged, tokens are hidden wherever they stand."""
    terminal = sys.stderr.isatty()
    sys.stderr = cast(TextIO, Log())
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
    line = '{"level": "%(levelname)s", "logger": "%(name)s", "event": %(message)r}'
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format=line)


def hide_secrets(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: what looks like a token, or is called like a secret, is not shown."""
    for name, value in line.items():
        if name.lower() in _SECRET_NAMES:
            line[name] = HIDDEN
        elif isinstance(value, str):
            line[name] = _TOKEN.sub(HIDDEN, value)
    return line
