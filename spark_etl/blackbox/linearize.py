"""Linearizability by search, also for histories whose values repeat (Wing and Gong 1993; Lowe 2017; Porcupine).

Either each key by itself, of each transaction only what it does there, or what transactions span together, which is
strict serializability (parts that no transaction joins are judged apart: Herlihy and Wing 1990, Theorem 1; that is of
real time, so that what only its session puts in order is joined).
For each such part: take the operations in an order that respects real time, execute them on a state, and go back where
a read does not fit. A configuration (what was taken, the state) is never tried twice. An operation of unknown outcome
may be taken at any time after its invocation, or never. Without real time the same search asks for serializability, and
with the order within sessions for strong session serializability (then everything is one part).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from spark_etl.blackbox.facts import Key, show
from spark_etl.blackbox.history import Op, Transaction

LINEARIZABLE, NOT_LINEARIZABLE, UNDETERMINED = "linearizable", "not-linearizable", "not determined"
CONFIGURATIONS_MAX = 2_000_000
_FIRST_ROUND = 20_000
_FOREVER = math.inf
_SHOWN_OPS = 6

_State = tuple[Any, ...]
_Configuration = tuple[int, int, _State]


class Searched(msgspec.Struct, frozen=True):
    """keys: of this part. configurations: how many were looked at. why: what blocks the longest order that was found,
    or why it is not determined."""

    keys: tuple[Key, ...]
    verdict: str
    configurations: int
    why: str = ""
    stuck: tuple[int, ...] = ()


def tied(history: Sequence[Transaction]) -> list[tuple[Transaction, Transaction]]:
    """Transactions of one session that real time does not order: one is answered and the other invoked at one time."""
    last: dict[int, Transaction] = {}
    found = []
    for t in history:
        before = last.get(t.process)
        if before is not None and before.complete is not None and before.complete == t.invoke:
            found.append((before, t))
        if t.type == "ok":
            last[t.process] = t
    return found


def parts(
    history: Sequence[Transaction], joined: Sequence[tuple[Transaction, Transaction]] = ()
) -> list[tuple[tuple[Key, ...], list[Transaction]]]:
    """Keys that transactions touch together, and those transactions. joined: transactions that are not judged apart."""
    leader: dict[Key, Key] = {}

    def find(key: Key) -> Key:
        while leader.setdefault(key, key) != key:
            leader[key] = leader[leader[key]]
            key = leader[key]
        return key

    groups = [t.ops for t in history] + [(*one.ops, *other.ops) for one, other in joined]
    for ops in groups:
        for op in ops:
            leader[find(op.key)] = find(ops[0].key)
    members: dict[Key, list[Key]] = defaultdict(list)
    for key in leader:
        members[find(key)].append(key)
    chosen: dict[Key, list[Transaction]] = defaultdict(list)
    for transaction in history:
        if transaction.ops and transaction.type != "fail":
            chosen[find(transaction.ops[0].key)].append(transaction)
    return [(tuple(members[root]), chosen[root]) for root in members]


def projections(history: Sequence[Transaction]) -> list[tuple[tuple[Key, ...], list[Transaction]]]:
    """Each key, and of each transaction what it does there."""
    found: dict[Key, list[Transaction]] = {}
    for t in history:
        for key in dict.fromkeys(op.key for op in t.ops):
            there = found.setdefault(key, [])
            if t.type != "fail":
                ops = tuple(op for op in t.ops if op.key == key)
                there.append(t if len(ops) == len(t.ops) else msgspec.structs.replace(t, ops=ops))
    return [((key,), transactions) for key, transactions in found.items()]


def linearize(
    history: Sequence[Transaction],
    configurations_max: int = CONFIGURATIONS_MAX,
    together: bool = False,
    initial: Mapping[Key, Any] | None = None,
    deadline: float = math.inf,
) -> list[Searched]:
    """Every key of a history; together: every part. The bound is for each; it is exhausted only while none is found
    wrong. initial: key -> what it held in the beginning, where that is not null. deadline: of `time.monotonic`."""
    lists = {op.key for t in history for op in t.ops if op.kind == "append" or isinstance(op.value, tuple)}
    found: list[Searched] = []
    hard: list[tuple[int, _Search]] = []
    for keys, transactions in parts(history, tied(history)) if together else projections(history):
        if any(t.invoke is None or (t.complete is None and t.type == "ok") for t in transactions):
            found.append(Searched(keys, UNDETERMINED, 0, "some of its operations have no real time"))
            continue
        search = _Search(keys, transactions, lists, initial or {})
        found.append(search.run(min(_FIRST_ROUND, configurations_max), deadline))
        if found[-1].verdict == UNDETERMINED:
            hard.append((len(found) - 1, search))
    for place, search in hard:
        if configurations_max <= _FIRST_ROUND or any(part.verdict == NOT_LINEARIZABLE for part in found):
            break
        found[place] = search.run(configurations_max, deadline)
    return found


def serialize(
    history: Sequence[Transaction],
    sessions: bool,
    configurations_max: int,
    initial: Mapping[Key, Any] | None = None,
    deadline: float = math.inf,
) -> list[Searched]:
    """Every part of a history, or all of it at once if the order within sessions counts, without real time."""
    lists = {op.key for t in history for op in t.ops if op.kind == "append" or isinstance(op.value, tuple)}
    there = parts(history)
    if sessions and there:
        used = [t for t in history if t.ops and t.type != "fail"]
        there = [(tuple(key for keys, _ in there for key in keys), used)]
    found: list[Searched] = []
    for keys, transactions in there:
        search = _Search(keys, transactions, lists, initial or {}, False, sessions)
        found.append(search.run(configurations_max, deadline))
        if found[-1].verdict == NOT_LINEARIZABLE:
            break
    return found


def _take(low: int, taken: int, i: int) -> tuple[int, int]:
    """With one more."""
    taken |= 1 << (i - low)
    ones = (~taken & taken + 1).bit_length() - 1
    return low + ones, taken >> ones


class _Search:
    """The transactions of one part."""

    def __init__(
        self,
        keys: tuple[Key, ...],
        transactions: Sequence[Transaction],
        lists: set[Key],
        initial: Mapping[Key, Any],
        timed: bool = True,
        sessions: bool = True,
    ):
        """timed, sessions: whether real time counts, and the order within sessions."""
        self.keys = keys
        self.place = {key: i for i, key in enumerate(keys)}
        self.lists = lists
        self.start: _State = tuple(initial.get(key, () if key in lists else None) for key in keys)
        useful = [t for t in transactions if t.type == "ok" or any(op.kind in ("w", "append") for op in t.ops)]
        self.transactions = sorted(useful, key=lambda t: (t.invoke or 0, t.index))
        self.ranks = [_FOREVER if t.type != "ok" or t.complete is None else t.complete for t in self.transactions]
        self.ends = self.ranks if timed else [_FOREVER for _ in self.ranks]
        self.begins = [t.invoke or 0 if timed else 0 for t in self.transactions]
        self.certain = [t.type == "ok" for t in self.transactions]
        self.waits = self._waits(timed) if sessions else [-1 for _ in self.ranks]
        self.one_list = len(keys) == 1 and keys[0] in lists
        if self.one_list:
            first = [(i, t.ops[0]) for i, t in enumerate(self.transactions) if self.certain[i]]
            reads = [(self.ends[i], i, op.value or ()) for i, op in first if op.kind == "r"]
            self.reads = sorted(reads, key=lambda read: (read[0], len(read[2]), read[1]))
            puts = [i for i, t in enumerate(self.transactions) if any(op.kind == "w" for op in t.ops)]
            self.puts = sorted((self.begins[i], i) for i in puts)

    def _waits(self, timed: bool) -> list[int]:
        """Of each the last acknowledged one before it in its session, where times do not contradict that; or -1."""
        last: dict[int, int] = {}
        waits = [-1 for _ in self.transactions]
        for i in sorted(range(len(self.transactions)), key=lambda i: self.transactions[i].index):
            process = self.transactions[i].process
            if process in last and (not timed or self.ends[last[process]] <= self.begins[i]):
                waits[i] = last[process]
            if self.certain[i]:
                last[process] = i
        return waits

    def run(self, most: int, deadline: float) -> Searched:
        """Depth first, without recursion. A configuration is `low`, the first transaction that is not taken; a bit set
        of those taken from there on; and the state."""
        owed = sum(self.certain)
        start: _Configuration = (0, 0, self.start)
        seen: set[_Configuration] = {start}
        stack: list[tuple[int, _Configuration]] = [(owed, start)]
        best, stuck = owed + 1, start
        while stack:
            left, configuration = stack.pop()
            low, taken, state = configuration
            if not left:
                return Searched(self.keys, LINEARIZABLE, len(seen))
            if left < best:
                best, stuck = left, configuration
            if len(seen) > most:
                why = f"more than {most} configurations for {len(self.transactions)} operations at {self._names()}"
                return Searched(self.keys, UNDETERMINED, len(seen), why)
            if time.monotonic() > deadline:
                why = f"the search at {self._names()} took too long (--seconds)"
                return Searched(self.keys, UNDETERMINED, len(seen), why)
            following: list[tuple[int, _Configuration]] = []
            for i in self._candidates(low, taken):
                after = self._apply(state, self.transactions[i], not self.certain[i])
                if after is None:
                    continue
                one = (left - self.certain[i], (*_take(low, taken, i), after))
                if after is state:
                    # Who only reads, and fits, may as well be next: it stands in nobody's way.
                    following = [one]
                    break
                following.append(one)
            following = [c for c in following if c[1] not in seen]
            if self.one_list:
                following = [c for c in following if not self._hopeless(*c[1])]
            seen.update(c[1] for c in following)
            stack += reversed(following)
        blocked = [i for i in self._candidates(*stuck[:2]) if self.certain[i]]
        texts = [self._did(self.transactions[i]) for i in blocked[:3]]
        found = f"after {owed - best} operations none of these can be next: {'; '.join(texts)}"
        why = f"no order explains {self._names()}: {found}"
        indexes = tuple(self.transactions[i].index for i in blocked[:10])
        return Searched(self.keys, NOT_LINEARIZABLE, len(seen), why, indexes)

    @staticmethod
    def _did(transaction: Transaction) -> str:
        more = ", ..." if len(transaction.ops) > _SHOWN_OPS else ""
        return f"T{transaction.index} {', '.join(map(show, transaction.ops[:_SHOWN_OPS]))}{more}"

    def _names(self) -> str:
        return ", ".join(repr(key) for key in self.keys[:4]) + (", ..." if len(self.keys) > 4 else "")

    def _candidates(self, low: int, taken: int) -> list[int]:
        """What may be next: invoked before anything not taken had completed. Those that must come soon, first."""
        found: list[tuple[float, int]] = []
        limit = _FOREVER
        for i in range(low, len(self.transactions)):
            if self.begins[i] > limit:
                break
            if not taken >> (i - low) & 1:
                wait = self.waits[i]
                if wait < low or taken >> (wait - low) & 1:
                    found.append((self.ranks[i], i))
                limit = min(limit, self.ends[i])
        return [i for _, i in sorted(found) if self.begins[i] <= limit]

    def _apply(self, state: _State, transaction: Transaction, unknown: bool) -> _State | None:
        """The state afterwards, None if what the transaction saw does not fit. What an unknown one saw is not known."""
        after: list[Any] | None = None
        for op in transaction.ops:
            place = self.place[op.key]
            now = (after or state)[place]
            if op.kind in ("w", "append"):
                after = after or list(state)
                after[place] = (*(now or ()), op.value) if op.kind == "append" else op.value
            elif not self._fits(op, now) and not (unknown and (op.kind == "neq" or op.value is None)):
                return None
        return state if after is None else tuple(after)

    def _hopeless(self, low: int, taken: int, state: _State) -> bool:
        """The read of a list that must come soonest cannot fit any more: appends alone never change what is there."""
        for end, i, value in self.reads:
            if i >= low and not taken >> (i - low) & 1:
                held = state[0] or ()
                if held == value[: len(held)]:
                    return False
                return not any(begin <= end and j >= low and not taken >> (j - low) & 1 for begin, j in self.puts)
        return False

    @staticmethod
    def _fits(op: Op, now: Any) -> bool:
        if op.kind == "neq":
            return bool(now != op.value)
        return bool(now == op.value or (not now and not op.value and op.value in (None, ()) and now in (None, ())))
