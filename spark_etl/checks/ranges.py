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
    """In first <= key < end (empty: no end) there were so many keys. keys: which; None: they were counted."""

    first: bytes
    end: bytes
    number: int
    keys: list[str] | None


def scanned(asked: str | None, told: str | None) -> list[Scanned]:
    """Of an operation without conditions that only reads; asked, told: JSON of its history, or None. Where a range has
    ended early only what lies before its last key is known, and nothing of one that has told fewer than two."""
    if asked is None or told is None or not any(f'"{word}"' in asked for word in _WORDS):
        return []
    question, answers = json.loads(asked), json.loads(told)
    branch = question.get("success", [])
    if question.get("compare") or any(words[0] not in _READS for words in branch) or len(answers) != len(branch):
        return []
    found = [_scanned(words, said) for words, said in zip(branch, answers, strict=True)]
    return [one for one in found if one is not None]


def _scanned(words: list[Any], said: Any) -> Scanned | None:
    if words[0] not in _WORDS:
        return None
    first, last = range_bounds(words)
    if isinstance(said, int):
        return Scanned(first, last, said, None)
    keys = [key for key in said if key != MORE] if isinstance(said, dict) else []
    if isinstance(said, dict) and MORE in said:
        if len(keys) < 2:
            return None
        one, other = keys[0].encode(), keys[-1].encode()
        first, last = (first, other + b"\0") if one < other else (other, last)
    return Scanned(first, last, len(keys), keys) if isinstance(said, dict) else None
