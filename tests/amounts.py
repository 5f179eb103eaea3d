"""How much random tests try: by default less than in the full run."""

from __future__ import annotations

import os

from hypothesis import settings

full = False
"""Set before tests are collected (`tests/conftest.py`)."""


def tries(variable: str, by_default: int, in_full: int) -> int:
    """As many as this variable of the environment says; else so many, and more in the full run."""
    return int(os.environ.get(variable, in_full if full else by_default))


def examples(by_default: int, in_full: int = 100) -> settings:
    """Decorates a property."""
    return settings(max_examples=in_full if full else by_default)
