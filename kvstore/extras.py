"""What may be missing from a light installation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

OURS = ("client_sdk", "kvstore", "multicast", "workloads")


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Around imports: exit with one line that says what to install, if they need what is not installed. Interrupted
    meanwhile: status 130, as later on."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        print(
            f"error: the command line needs {error.name}, which is not installed; in a checkout of this project:"
            f" pip install '.[{extra}]'",
            file=sys.stderr,
        )
        sys.exit(1)
