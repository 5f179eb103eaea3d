"""One transaction again, from what its client asked and the values that it read: what it must have written, and told.

Values are texts as in a history (`kvstore.core.audit.value_text`), None for an absent key; UNKNOWN is what follows from
a value that is known by its digest only. Of one value a journal may say the digest and a history the text: `same`. A
second implementation of what the store executes, on purpose.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from kvstore.core.audit import MORE, value_text
from multicast.types import ZERO, Timestamp
from spark_etl.checks.ranges import FIRST_KEY

UNKNOWN = object()
_UNTOLD: Any = object()
RANGES = ("range", "keys", "count", "delete_range")
_READING = ("get", "add", "min", "max", "append")
_FIRST = FIRST_KEY.decode()
"""What is less is the store's own. HTTP asks for ranges of other keys only, whatever its client wrote."""


def same(one: Any, other: Any) -> bool:
    """Whether this is one value, as far as it is known."""
    if isinstance(one, str) and isinstance(other, str) and {one[:1], other[:1]} == {"=", "#"}:
        return digest_text(one) == digest_text(other)
    return bool(one == other)


def digest_text(value: str) -> str:
    """ "#" and the value's digest."""
    if value[0] == "#":
        return value
    return "#" + blake2b(value[1:].encode(errors="surrogatepass"), digest_size=16).hexdigest()


CREATED_ANEW = "created-anew"


class Mismatch(NamedTuple):
    """name: "value-mismatch", of what a client was told, or "not-as-asked", of what the journals say; CREATED_ANEW: a
    comparison of create versions came out as only where an old release has overwritten the key, which nobody knows.
    said: what it is. why: a sentence's end."""

    name: str
    key: str
    said: str | None
    why: str


def _told(key: str, said: str | None, right: str | None) -> Mismatch:
    why = f"its client was told of key {key} {_shown(said)}, but by what was written it is {_shown(right)}"
    return Mismatch("value-mismatch", key, said, why)


def _wrote(key: str, said: str | None, right: str | None) -> Mismatch:
    why = f"the journals say that it left {_shown(said)} at key {key}, but what was asked makes it {_shown(right)}"
    return Mismatch("not-as-asked", key, said, why)


def _unread(key: str) -> Mismatch:
    why = f"it was asked for key {key}, and the journals do not say that it read that"
    return Mismatch("not-as-asked", key, None, why)


def _unversioned(key: str, said: Any) -> Mismatch:
    why = f"its client was told of key {key}, and not of the version that it saw"
    return Mismatch("value-mismatch", key, said if isinstance(said, str) else None, why)


def _no_lease(lease: str, again: Replay) -> list[Mismatch]:
    """Whoever attaches a key to a lease reads its row first, and does nothing if there is none."""
    if again.knows(lease):
        gone = lease in again.seen and again.seen[lease].value is None
        why = "it attached a key to a lease that the journals say was not there"
        return [Mismatch("not-as-asked", lease, None, why)] if gone else []
    return [_unread(lease)]


UNCHANGED = ""


def _shown(value: str | None) -> str:
    if value is None:
        return "nothing"
    if value == UNCHANGED:
        return "what was there"
    return f"a value with digest {value[1:]}" if value[0] == "#" else value.removeprefix("=")


class Seen(NamedTuple):
    """What a transaction read before it began: its value, and at which version, as text. since: of a key that was
    there the first version since it last was not; None: not known. Its create version is no earlier, and no later than
    `version`: what an old release overwrites is created anew."""

    value: Any
    version: str
    since: str | None = None


def compare(
    asked: str | None,
    told: str | None,
    read: Mapping[str, int] | None,
    succeeded: bool,
    seen: Mapping[str, Seen],
    writes: Mapping[str, str | None],
    truths: bytes = b"",
    journaled: bool = True,
) -> list[Mismatch]:
    """What of one transaction is not as it must be. asked, told: JSON of the history, or None. read: integers that the
    history says were read. succeeded: the branch that the journals say ran; truths: of its nested transactions, as
    `kvstore.api.nesting` has them. seen, writes: by key, from the journals. journaled: `seen` is; if not, it is its
    client's word, which has no keys that were but counted."""
    found = [] if read is None else list(_integers(read, seen))
    if asked is None:
        return found
    question = json.loads(asked)
    nested = list(_nested(question))
    if len(nested) != len(truths):
        why = f"the journals tell of {len(truths)} nested transactions, and {len(nested)} were asked for"
        return [*found, Mismatch("not-as-asked", "", None, why)]
    if journaled:
        compared = (words[0] for one in (question, *nested) for words in one.get("compare", ()))
        found += [_unread(key) for key in dict.fromkeys(compared) if key not in seen]
    for number, (one, truth) in enumerate(zip((question, *nested), (succeeded, *truths), strict=True)):
        holds = _branch(one.get("compare", ()), seen)
        if holds is not None and holds != bool(truth):
            what = f"of its nested transaction {number} the" if number else "it ran its"
            why = f"the journals say that {what} {_name(bool(truth))} branch, but by what it read it is the"
            return [*found, Mismatch("not-as-asked", "", None, f"{why} {_name(holds)} branch")]
        if holds is None and _branch(one.get("compare", ()), seen, True) is (not truth):
            found.append(Mismatch(CREATED_ANEW, "", None, ""))
    again = Replay(seen)
    answers = json.loads(told) if told is not None else _UNTOLD
    for words, said in _course(question, succeeded, iter(truths), answers):
        if words[0] == "txn":
            if said is not _UNTOLD:
                found.append(Mismatch("value-mismatch", "", None, said))
            continue
        for lease in words[3:] if words[0] == "put" else ():
            found += _no_lease(lease, again) if journaled else []
        if words[0] in _READING and not again.knows(words[1]) and (journaled or said is not _UNTOLD):
            one_more = _unread(words[1]) if journaled else _unversioned(words[1], said)
            found += [one_more] if one_more not in found else []
        if words[0] in FALLIBLE and again.can(*words) is False:
            why = f"the journals say that it was applied, but by what it read {words[0]} was impossible: {words[1]}"
            return [*found, Mismatch("not-as-asked", words[1], None, why)]
        if words[0] == "none_newer" and journaled and (key := again.newer(*words[1:])) is not None:
            why = f"the journals say that it was applied, but it read key {key}, which was newer than it allowed"
            return [*found, Mismatch("not-as-asked", key, None, why)]
        right = again.run(*words)
        if said is not _UNTOLD and not (found and words[0] == "get"):
            found += _answer(words[0], words[1], said, right, again, journaled)
    for key in sorted({*again.writes, *writes}):
        made, said = again.writes.get(key, UNCHANGED), writes.get(key, UNCHANGED)
        attached = again.revokes and made == UNCHANGED and said is None
        if made is not UNKNOWN and not attached and not same(made, said):
            found.append(_wrote(key, said, made))
    return found


def _nested(asked: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All nested transactions, as they stand."""
    for words in (*asked.get("success", ()), *asked.get("failure", ())):
        if words[0] == "txn":
            yield words[1]
            yield from _nested(words[1])


def course(asked: Mapping[str, Any], succeeded: bool, truths: bytes) -> Iterator[Sequence[Any]]:
    """The operations that ran, those of nested transactions among them. Arguments as of `compare`."""
    for words, _ in _course(asked, succeeded, iter(truths), _UNTOLD):
        yield words


def _course(
    asked: Mapping[str, Any], holds: bool, truths: Iterator[int], told: Any, runs: bool = True
) -> Iterator[tuple[Sequence[Any], Any]]:
    """What runs, and what its client was told of it; of a nested transaction, and of a branch of which it was told
    something of another number of operations, only a sentence's end, if that is wrong. told: of its branch."""
    for name, chosen in (("success", holds), ("failure", not holds)):
        branch = asked.get(name, ())
        answers = told if runs and chosen else _UNTOLD
        if answers is not _UNTOLD and not (isinstance(answers, list) and len(answers) == len(branch)):
            count = len(answers) if isinstance(answers, list) else 0
            yield ("txn",), f"its client was told of {count} operations of its {name} branch, which has {len(branch)}"
            answers = _UNTOLD
        for at, words in enumerate(branch):
            said = answers if answers is _UNTOLD else answers[at]
            if words[0] == "txn":
                inner = bool(next(truths))
                if said is not _UNTOLD and not (isinstance(said, list) and said and said[0] is inner):
                    which = _name(said[0]) if isinstance(said, list) and said and isinstance(said[0], bool) else "no"
                    yield (
                        words,
                        f"its client was told that a nested transaction ran its {which} branch, the journals differ",
                    )
                    said = _UNTOLD
                yield from _course(words[1], inner, truths, said if said is _UNTOLD else said[1:], runs and chosen)
            elif runs and chosen:
                yield words, said


def _name(succeeded: bool) -> str:
    return "success" if succeeded else "failure"


def _integers(read: Mapping[str, int], seen: Mapping[str, Seen]) -> list[Mismatch]:
    """A reader's integers: all that was there, and nothing else."""
    said = {key: f"={n}" for key, n in read.items()}
    right = {key: one.value for key, one in seen.items()}
    return [
        _told(key, said.get(key), right.get(key))
        for key in sorted({*said, *(k for k, v in right.items() if v is not None)})
        if right.get(key, UNKNOWN) is not UNKNOWN and not same(said.get(key), right[key])
    ]


def _answer(what: str, key: str, said: Any, right: Any, again: Replay, journaled: bool) -> list[Mismatch]:
    if what in ("count", "delete_range"):
        least, most = right
        if said is None or again.revokes or (type(said) is int and least <= said and (said <= most or not journaled)):
            return []
        return [_told(key, f"{said} of them", f"{least}" if journaled else f"{least}, or more")]
    if what in ("range", "keys"):
        return _range(key, said, right, again)
    if right is UNKNOWN or same(said, right):
        return []
    shown = (one if one is None or isinstance(one, str) else json.dumps(one) for one in (said, right))
    return [_told(key, *shown)]


def _range(prefix: str, said: Any, right: Mapping[str, Any], again: Replay) -> list[Mismatch]:
    """Every key as it was, none that was not read, in order, and none left out before the last one."""
    if not isinstance(said, dict):
        return [_told(prefix, json.dumps(said), "a range")]
    told = {key: value for key, value in said.items() if key != MORE}
    found = [
        _told(k, v, right.get(k))
        for k, v in sorted(told.items())
        if right.get(k) is not UNKNOWN and not same(v, right.get(k))
    ]
    keys = [*told]
    if MORE in said and not keys:
        why = "its client was told of no key of a range, but that there are more"
        found.append(Mismatch("value-mismatch", prefix, None, why))
    if keys != sorted(keys, reverse=keys[:1] > keys[-1:]):
        why = f"its client was told of {len(keys)} keys of a range in no order, first of {keys[0]}"
        found.append(Mismatch("value-mismatch", keys[0], None, why))
    there = {k for k, value in right.items() if value is not None and k >= _FIRST}
    missing = set() if again.revokes else there - {*keys}
    missing = _before_the_end(keys, missing) if MORE in said else missing
    return found + [_told(k, None, right[k] if isinstance(right[k], str) else "there") for k in sorted(missing)]


def _before_the_end(told: Sequence[str], keys: set[str]) -> set[str]:
    """Those of the keys that come before the last one told. Who was told of a single one, was of the first or the last
    one that is there."""
    if len(told) > 1:
        return {key for key in keys if (key < told[-1]) == (told[0] < told[-1])}
    before = {key for key in keys if [key] < [*told]}
    return before if len(before) < len(keys) else set()


def _within(key: str, prefix: str, start: str, end: str) -> bool:
    return key.startswith(prefix) and start <= key and (not end or key < end)


class Replay:
    """A branch, operation by operation. writes: key -> its last value. revokes: it deletes other keys, too, those that
    are attached to a lease."""

    def __init__(self, seen: Mapping[str, Seen]):
        self.seen = seen
        self.writes: dict[str, Any] = {}
        self.revokes = False

    def knows(self, key: str) -> bool:
        """Whether it was read or written, or may have gone with a lease."""
        return key in self.seen or key in self.writes or self.revokes

    def run(self, what: str, key: str, operand: Any = None, *further: str) -> Any:
        """What the client must be told of this operation; of a range: key -> value or version, for all keys that are
        known; of a count: at least and, if all that was read is known, at most how many."""
        if what == "none_newer":
            return None
        if what in RANGES:
            return self._range(what, key, *(operand or "", *further))
        seen = self.seen.get(key)
        now = self.writes.get(key, UNKNOWN if seen is None or self.revokes else seen.value)
        if what == "get":
            return now
        if what == "delete":
            self.writes[key] = None
            return UNKNOWN if now is UNKNOWN else now is not None
        if what == "put":
            self.writes[key] = operand
            for lease in further:  # whose row notes where the key is
                self.writes.setdefault(lease, UNKNOWN)
            return None
        if what == "revoke":
            self.writes = {k: UNKNOWN for k in self.writes} | {key: None}
            self.revokes = True
            return None
        if what in ("add", "min", "max"):
            return self._count(what, key, now, operand)
        return self._append(key, now, operand)

    def _range(self, what: str, prefix: str, start: str, end: str = "") -> Any:
        known = {k: one.value for k, one in self.seen.items()} | self.writes
        known = {k: v for k, v in known.items() if _within(k, prefix, start, end)}
        if what == "range":
            return known
        there = [k for k, value in known.items() if value is not None]
        if what == "keys":
            return {k: UNKNOWN if k in self.writes else self.seen[k].version for k in there}
        if what == "delete_range":
            self.writes |= {k: None if k >= _FIRST else UNKNOWN for k in there}
        return sum(k >= _FIRST for k in there), len(there)

    def newer(self, prefix: str, version: str, start: str = "", end: str = "") -> str | None:
        """A key in these bounds that was written after this version, before the transaction; None: none that it read,
        which were all if it was applied."""
        limit = Timestamp.parse(version)
        within = (k for k in sorted(self.seen) if _within(k, prefix, start, end) and k >= _FIRST)
        return next((k for k in within if Timestamp.parse(self.seen[k].version) > limit), None)

    def can(self, what: str, key: str, operand: Any) -> bool | None:
        """Whether one of FALLIBLE is possible; None: not known."""
        known = key in self.seen and not self.revokes
        now = self.writes.get(key, self.seen[key].value if known else UNKNOWN)
        if now is UNKNOWN:
            return None
        if what == "append":
            return None if "#" in (operand[0], (now or "=")[0]) else True
        if now is not None and not _INTEGER.fullmatch(now):
            return False
        before = 0 if now is None else int(now[1:])
        return all(-(2**63) <= number < 2**63 for number in (before, before + operand * (what == "add")))

    def _count(self, what: str, key: str, now: Any, operand: int) -> Any:
        if now is UNKNOWN or (now is not None and now[0] == "#"):
            self.writes[key] = UNKNOWN
            return UNKNOWN
        if what == "add":
            total = operand + (0 if now is None else int(now[1:]))
        else:
            known = [operand] if now is None else [operand, int(now[1:])]
            total = min(known) if what == "min" else max(known)
        self.writes[key] = f"={total}"
        return total

    def _append(self, key: str, now: Any, more: str) -> Any:
        if now is None and more[0] == "#":
            self.writes[key] = more
            return UNKNOWN
        if now is UNKNOWN or "#" in (more[0], (now or "=")[0]):
            self.writes[key] = UNKNOWN
            return UNKNOWN
        value = ((now or "=")[1:] + more[1:]).encode()
        self.writes[key] = value_text(value)
        return len(value)


FALLIBLE = ("add", "min", "max", "append")
"""Operations of which it can be told whether they were possible. What the store says of one that was not begins so."""
_LEASED = "put"
REASONS = (*FALLIBLE, "none_newer", "delete_range", "put: more", _LEASED)
"""So begins why something was impossible."""
_INTEGER = re.compile("=-?[0-9]{1,20}")
_JUDGED = (*FALLIBLE, "get", "put", "delete", "range", "keys", "count")


def _fallible(words: Sequence[Any]) -> str:
    """What of an operation may be impossible; empty: nothing."""
    return words[0] if words[0] != "put" or len(words) > 3 else ""


def possible(asked: str, seen: Mapping[str, Seen], kind: str) -> bool | None:
    """Whether all operations of this kind (one of REASONS) were, of a transaction that had no effect. None: not known,
    as of what it did not come to, or where it was asked for something else. seen: what it had read by then."""
    question, name = json.loads(asked), kind.partition(":")[0]
    every = (*question.get("success", ()), *question.get("failure", ()))
    inner = [words for one in _nested(question) for words in (*one.get("success", ()), *one.get("failure", ()))]
    if name not in map(_fallible, (*every, *inner)):
        return True
    holds = None if any(_nested(question)) else _branch(question.get("compare", ()), seen)
    branch = question.get("success" if holds else "failure", ())
    if holds is not None and name not in map(_fallible, branch):
        return True
    if holds is None or any(words[0] not in _JUDGED for words in branch):
        return None
    if kind == _LEASED:
        there = [seen[words[3]].value is not None if words[3] in seen else None
                 for words in branch if _fallible(words) == _LEASED]  # fmt: skip
        return False if False in there else None if None in there else True
    if kind not in FALLIBLE or _LEASED in map(_fallible, branch):
        return None
    again, found = Replay(seen), None
    for words in branch:
        can = again.can(*words) if words[0] in FALLIBLE else True
        if not can:
            return False if can is False and words[0] == kind else None
        found = found or words[0] == kind or None
        again.run(*words)
    return found


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def _branch(compares: Sequence[Sequence[Any]], seen: Mapping[str, Seen], kept: bool = False) -> bool | None:
    """Whether all comparisons hold; None if that is not known. kept: if no key was created anew while it was there."""
    held = [_holds(target, op, operand, seen.get(key), kept) for key, target, op, operand in compares]
    return False if False in held else None if None in held else True


def _created(op: str, operand: Timestamp, seen: Seen, kept: bool) -> bool | None:
    """Of the create version of a key that was there; None if that is not known well enough."""
    if kept:
        return None if seen.since is None else _HOLDS[op](Timestamp.parse(seen.since), operand)
    last = Timestamp.parse(seen.version)
    first = Timestamp(0, 1) if seen.since is None else Timestamp.parse(seen.since)
    held = {_HOLDS[op](version, operand) for version in (first, last)}
    between = op in ("==", "!=") and first < operand < last
    return None if between or len(held) > 1 else held.pop()


def _holds(target: str, op: str, operand: Any, seen: Seen | None, kept: bool) -> bool | None:
    if seen is None or seen.value is UNKNOWN:
        return None
    if target == "exists":
        return _HOLDS[op](seen.value is not None, operand)
    if target == "create_version":  # what is read tells whether the key was there, and since when it was not
        if seen.value is None:
            return _HOLDS[op](ZERO, Timestamp.parse(operand))
        return _created(op, Timestamp.parse(operand), seen, kept)
    if target == "version":
        return _HOLDS[op](Timestamp.parse(seen.version), Timestamp.parse(operand))
    if seen.value is None:
        return op == "!="
    if op in ("==", "!="):
        return same(seen.value, operand) == (op == "==")
    if "#" in (seen.value[0], operand[0]):
        return None
    return _HOLDS[op](seen.value[1:].encode(), operand[1:].encode())
