"""The process from which Spark's Python workers are forked: it has imported what they need, and keeps memory that
columns come and go in: getting it anew from the system, whole pages at a time, was a third of their processor time."""

from __future__ import annotations

import ctypes
from importlib import import_module

import pyarrow as pa
from pyspark.daemon import manager

_THP_DISABLE = 41
"""prctl(2): no huge pages, for which the kernel would move others while a worker waits."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = {_TRIM_THRESHOLD: 1 << 30, _TOP_PAD: 1 << 26, _MMAP_THRESHOLD: 1 << 25}
"""mallopt(3); the last one is the greatest that it takes."""


def keep_memory() -> None:
    """Where the C library knows how; columns of Arrow are taken from it, too."""
    pa.set_memory_pool(pa.system_memory_pool())
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl") and hasattr(library, "mallopt"):
        library.prctl(_THP_DISABLE, 1, 0, 0, 0)
        for option, size in _KEPT_BYTES.items():
            library.mallopt(option, size)


if __name__ == "__main__":
    keep_memory()
    for name in ("pyspark.worker", "spark_etl.certify.tasks"):
        import_module(name)
    manager()
