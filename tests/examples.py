"""With how many examples a property is tried: by default fewer than in the full run."""

from __future__ import annotations

from hypothesis import settings

full = False
"""Set before tests are collected (`tests/conftest.py`)."""


def examples(by_default: int, in_full: int = 100) -> settings:
    """Decorates a property."""
    return settings(max_examples=in_full if full else by_default)
