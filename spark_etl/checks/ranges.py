"""What a client's history says of the ranges that it read: in which bounds so many keys stood, and no more. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from kvstore.core.audit import MORE, range_bounds

FIRST_KEY = range_bounds(("range", ""))[0]
"""The first key that a client's range finds. What is less is the store's own."""
_WORDS = ("range", "keys", "count")
_READS = ("get", *_WORDS)


class Scanned(NamedTuple):
    """In first <= key < end (empty: no end) there were so many keys. keys: which; None: they were counted. least: there
    were so many at least."""

    first: bytes
    end: bytes
    number: int
    keys: list[str] | None
    least: bool = False


def scanned(asked: str | None, told: str | None) -> list[Scanned]:
    """Of an operation without conditions that only reads; asked, told: JSON of its history, or None. Where a range has
    ended early only what lies before its last key is known, and that more follow; of one that has told of one key only
    that there are more, before or behind it."""
    if asked is None or told is None or not any(f'"{word}"' in asked for word in _WORDS):
        return []
    question, answers = json.loads(asked), json.loads(told)
    branch = question.get("success", [])
    if question.get("compare") or any(words[0] not in _READS for words in branch) or len(answers) != len(branch):
        return []
    return [one for words, said in zip(branch, answers, strict=True) for one in _scanned(words, said)]


def _scanned(words: list[Any], said: Any) -> list[Scanned]:
    if words[0] not in _WORDS:
        return []
    first, last = range_bounds(words)
    if isinstance(said, int):
        return [Scanned(first, last, said, None)]
    if not isinstance(said, dict):
        return []
    keys = [key for key in said if key != MORE]
    if MORE not in said:
        return [Scanned(first, last, len(keys), keys)]
    if len(keys) < 2:
        return [Scanned(first, last, 2, None, True)] if keys else []
    one, other = keys[0].encode(), keys[-1].encode()
    behind = other + b"\0"
    if one < other:
        return [Scanned(first, behind, len(keys), keys), Scanned(behind, last, 1, None, True)]
    return [Scanned(other, last, len(keys), keys), Scanned(first, other, 1, None, True)]
