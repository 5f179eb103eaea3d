"""`python -m spark_etl prepare`: what makes every audit of this installation start sooner."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from spark_etl.audit.runner import Audit
from spark_etl.bench.inputs import Shape, generate
from spark_etl.session import CannotStart, check_java, kept_classes, spark_session

SHAPE = Shape(2_000, shards=2)
"""Correct: to explain what is wrong with another takes a minute, and mostly not of loading classes."""
END_SECONDS = 120


def prepare(progress: Callable[[str], None]) -> Path:
    """Audit a small run, and keep the classes that Java loaded for it; returns where. CannotStart; OSError if the place
    is not ours to write to."""
    kept = kept_classes(check_java())
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="new-", dir=kept.parent) as scratch:
        out = Path(scratch)
        new = out / kept.name
        progress("auditing a small run")
        generate(SHAPE, out)
        with spark_session(out, keep=new) as spark:
            java: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc
            Audit(spark, out, out).check_all()
        progress("keeping the classes that it needed")
        if java.stdin is not None:
            java.stdin.close()  # then it ends
        try:
            status = java.wait(END_SECONDS)
        finally:
            java.kill()
        if status or not new.is_file():
            raise CannotStart(f"Java did not write the classes that it has loaded: exit status {status}")
        os.replace(new, kept)  # Java would crash on half a file
    return kept
