"""The process from which Spark's Python workers are forked: it has imported what they need."""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

if __name__ == "__main__":
    for name in ("pyspark.worker", "spark_etl.certify.tasks"):
        import_module(name)
    manager()
