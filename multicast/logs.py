"""structlog for the hosts, without rich, which structlog would use only to show exceptions on a terminal.

Importing rich took a quarter of the processor time of a replica's start; a module that wants it imports it by itself.
"""

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
