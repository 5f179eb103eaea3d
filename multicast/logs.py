"""structlog for the hosts, without rich, which it would only use to show exceptions on a terminal. To import rich was a
quarter of the processor time of a replica's start; who wants it imports it by itself."""

from __future__ import annotations

import sys

_SPARED = "rich"

if _SPARED in sys.modules:
    import structlog
else:
    sys.modules[_SPARED] = None  # type: ignore[assignment]  # to import it is an ImportError, which structlog expects
    try:
        import structlog
    finally:
        del sys.modules[_SPARED]

__all__ = ["structlog"]
