"""What a client's history says of the ranges that it read: in which bounds so many keys stood, and no more. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kvstore.core.audit import MORE, range_bounds

FIRST_KEY = range_bounds(("range", ""))[0]
"""The first key that a client's range finds. What is less is the store's own."""
_WORDS = ("range", "keys", "count")
_READS = ("get", *_WORDS)
_WRITES = ("put", "add", "min", "max", "append", "delete")
_DELETES = "delete_range"


Bounds = tuple[bytes, bytes]
"""The keys first <= key < end; an empty end is none."""


class Scanned(NamedTuple):
    """In first <= key < end (empty: no end) there were so many keys. keys: which; None: they were counted. least: there
    were so many at least. course: so it was in the course of a transaction, as what stood there before that, but for
    these keys, which it has written or deleted by then: of them none counts; they follow one another."""

    first: bytes
    end: bytes
    number: int
    keys: list[str] | None
    least: bool = False
    course: list[Bounds] | None = None


def scanned(asked: str | None, told: str | None, succeeded: bool | None = None) -> list[Scanned]:
    """Of an operation; asked, told: JSON of its history, or None; succeeded: the branch that ran. Where a range has
    ended early only what lies before its last key is known, and that more follow; of one that has told of one key only
    that there are more, before or behind it."""
    if asked is None or told is None or not any(f'"{word}"' in asked for word in (*_WORDS, _DELETES)):
        return []
    question, answers = json.loads(asked), json.loads(told)
    branch = question.get("success", [])
    if question.get("compare") or any(words[0] not in _READS for words in branch):
        return list(_Course().run(question, succeeded is not False, answers))
    if len(answers) != len(branch):
        return []
    return [one for words, said in zip(branch, answers, strict=True) for one in _scanned(words, said)]


class _Course:
    """A transaction with conditions, or that writes, operation by operation. written: what it has, and whether that is
    there. emptied: ranges that it has deleted. lost: nobody knows what it has done."""

    def __init__(self) -> None:
        self.written: dict[bytes, bool] = {}
        self.emptied: list[Bounds] = []
        self.lost = False

    def run(self, question: Mapping[str, Any], succeeded: bool, answers: Any) -> Iterator[Scanned]:
        branch = question.get("success" if succeeded else "failure", [])
        self.lost |= not isinstance(answers, list) or len(answers) != len(branch)
        for words, said in () if self.lost else zip(branch, answers, strict=True):
            if self.lost:
                return
            if words[0] == "txn" and isinstance(said, list) and said:
                yield from self.run(words[1], said[0] is True, said[1:])
            elif words[0] in _WRITES:
                self.written[words[1].encode()] = words[0] != "delete"
            elif words[0] == _DELETES:
                yield from self._seen(_scanned(words, said))
                self._empty(range_bounds(words))
            elif words[0] in _WORDS:
                yield from self._seen(_scanned(words, said))
            elif words[0] not in ("get", "none_newer"):
                self.lost = True

    def _empty(self, bounds: Bounds) -> None:
        self.emptied.append(bounds)
        self.written |= {key: False for key in self.written if _within(key, bounds)}

    def _seen(self, found: Iterable[Scanned]) -> Iterator[Scanned]:
        for one in found:
            mine = {key for key, there in self.written.items() if there and _within(key, one[:2])}
            others = None if one.keys is None else [key for key in one.keys if key.encode() not in mine]
            number = one.number - len(mine) if others is None else len(others)
            if not one.least:
                yield one._replace(number=number, keys=others, course=self._but(one[:2]))

    def _but(self, bounds: Bounds) -> list[Bounds]:
        """All that it has written or emptied in there, one behind the other."""
        each = [*self.emptied, *((key, key + b"\0") for key in self.written)]
        found: list[Bounds] = []
        for first, end in sorted((max(first, bounds[0]), _least(end, bounds[1])) for first, end in each):
            if found and (not found[-1][1] or first <= found[-1][1]):
                first, end = found[-1][0], b"" if not (end and found[-1][1]) else max(end, found[-1][1])
                found.pop()
            if not end or first < end:
                found.append((first, end))
        return found


def _within(key: bytes, bounds: Bounds) -> bool:
    return bounds[0] <= key and (not bounds[1] or key < bounds[1])


def _least(end: bytes, other: bytes) -> bytes:
    """Of two ends."""
    return min(end, other) if end and other else end or other


def _scanned(words: list[Any], said: Any) -> list[Scanned]:
    if words[0] not in (*_WORDS, _DELETES):
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
