"""Directories of clusters that a workload makes for one run. The next run replaces them, and nobody else's cluster."""

from __future__ import annotations

from pathlib import Path

MARK = "made-for-one-run"
"""A file that says so, from before there is anything else."""


def is_free(directory: Path) -> bool:
    """Whether a run can begin there without taking anything away."""
    return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))


def is_replaceable(directory: Path) -> bool:
    """Whether it is an earlier run's."""
    return (directory / MARK).is_file()


def mark(directory: Path) -> None:
    """It is this run's, and the next one's to replace. OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
