"""The consistency models by enumeration, for histories of a few transactions: independent of `spark_etl.blackbox`.

Serializable: executions one after the other. Snapshot isolation and prefix: sequences of starts and commits. Causal,
read atomic, read committed: orders of commits, and the axioms of Biswas and Enea 2019. Consistent view and read
uncommitted: orders of the versions of each key, and Adya's cycles. Every model: with some choice of what happened of
the transactions of unknown outcome.

As in `spark_etl.blackbox`: who reads a register and then writes it puts its version later; what a reader has itself
appended shows its place in a list, unless the reads as a whole contradict that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, permutations, product
from typing import Any

from spark_etl.blackbox.history import Op, Transaction

Pairs = set[tuple[int, int]]
Order = tuple[Transaction, ...]


def executed(history: Sequence[Transaction], variant: str) -> dict[str, bool]:
    """Of `models` those that are decided by executions, where values may repeat."""
    return models(history, variant, EXECUTED)


def models(history: Sequence[Transaction], variant: str, names: Iterable[str] = ()) -> dict[str, bool]:
    """Base model -> whether it holds; variant: "", "strong-session-" or "strong-". names: of which; all."""
    certain = [t for t in history if t.type == "ok"]
    unknown = [t for t in history if t.type == "info"]
    checks = {name: CHECKS[name] for name in names or CHECKS}
    found = dict.fromkeys(checks, False)
    for size in range(len(unknown) + 1):
        for chosen in combinations(unknown, size):
            committed = sorted((*certain, *chosen), key=lambda t: t.index)
            before = precedence(committed, variant)
            world = World(history, committed, before)
            for name, check in checks.items():
                found[name] = found[name] or check(world)
    return found


def precedence(committed: Sequence[Transaction], variant: str) -> Pairs:
    """Pairs (earlier, later) that the variant demands. A session's transactions follow one another in real time."""
    pairs = set()
    for a, b in permutations(committed, 2):
        session = a.process == b.process and a.index < b.index
        realtime = a.complete is not None and b.invoke is not None and a.complete < b.invoke
        if a.type == "ok" and ((variant and session) or (variant == "strong-" and realtime)):
            pairs.add((a.index, b.index))
    return closed(pairs)


def list_keys(history: Sequence[Transaction]) -> set[Any]:
    return {op.key for t in history for op in t.ops if op.kind == "append" or isinstance(op.value, tuple)}


def happened(history: Sequence[Transaction]) -> list[Transaction]:
    """What was acknowledged, and what somebody read of who happened."""
    found = [t for t in history if t.type == "ok"]
    for t in found:
        reads = [op for op in t.ops if op.kind == "r"]
        shown = {(op.key, v) for op in reads for v in (op.value if isinstance(op.value, tuple) else (op.value,))}
        unknown = [t for t in history if t.type == "info" and t not in found]
        found += [t for t in unknown if any((op.key, op.value) in shown for op in t.ops if op.kind != "r")]
    return sorted(found, key=lambda t: t.index)


class World:
    """A history with a choice of what is committed."""

    def __init__(self, history: Sequence[Transaction], committed: list[Transaction], before: Pairs):
        self.history = history
        self.committed = committed
        self.before = before
        self.lists = list_keys(history)
        self.keys = list(dict.fromkeys(op.key for t in history for op in t.ops))
        self.last = {(t.index, op.key): op.value for t in committed for op in t.ops if op.kind == "w"}
        self.writes = {
            (t.index, key): [op.value for op in t.ops if op.key == key and op.kind in ("w", "append")]
            for t in committed
            for key in self.keys
        }
        self.reads = [
            (t, n, op.key, op.value)
            for t in committed
            for n, op in enumerate(t.ops)
            if op.kind == "r" and (t.type == "ok" or op.value is not None)
        ]

    def writers(self, key: Any) -> list[int]:
        return [t.index for t in self.committed if self.writes[t.index, key]]

    def own(self, t: Transaction, number: int, key: Any) -> list[Any]:
        return [op.value for op in t.ops[:number] if op.key == key and op.kind in ("w", "append")]

    def external(self, t: Transaction, number: int, key: Any, value: Any) -> Any:
        """What a read shows of others; of registers `...` if it shows an own write."""
        own = self.own(t, number, key)
        if key in self.lists:
            if list(value[len(value) - len(own) :]) != own:
                return tuple(v for v in value if v not in own)
            return tuple(value)[: len(value) - len(own)]
        return ... if own else value

    def internal(self) -> bool:
        """Whether reads fit what their transaction has read and written before."""
        for t in self.committed:
            state: dict[Any, Any] = {}
            for op in t.ops:
                if op.kind == "r" and t.type != "ok" and op.value is None:
                    continue
                if op.kind == "w":
                    state[op.key] = op.value
                elif op.kind == "append":
                    state[op.key] = (*state[op.key], op.value) if op.key in state else ("?", op.value)
                else:
                    expected = state.get(op.key, op.value)
                    if isinstance(expected, tuple) and expected[:1] == ("?",):
                        own = expected[1:]
                        if tuple(op.value)[-len(own) :] != own:
                            return False
                    elif expected != op.value:
                        return False
                    state[op.key] = op.value
        return True

    def contradictory(self) -> bool:
        """Whether no order of a list explains what is read of others."""
        values = [(key, self.external(t, n, key, v)) for t, n, key, v in self.reads if key in self.lists]
        if any(k == other and a[: len(b)] != b[: len(a)] for k, a in values for other, b in values):
            return True
        for key, shown in values:
            for t in self.history:
                mine = [op.value for op in t.ops if op.kind == "append" and op.key == key]
                seen = [v for v in shown if v in mine]
                if seen != mine[: len(seen)]:
                    return True
        return self.future()

    def future(self) -> bool:
        """Whether somebody reads what it is going to write."""
        for t, n, key, value in self.reads:
            later = [op.value for op in t.ops[n:] if op.key == key and op.kind != "r"]
            if any(v in later for v in (value if isinstance(value, tuple) else (value,))):
                return True
        return False

    def wholes(self) -> list[tuple[Any, tuple[Any, ...]]]:
        """Reads of lists with what their readers have appended, where that fits."""
        found = []
        certain = happened(self.history)
        for t, n, key, value in self.reads:
            if key in self.lists and t in certain:
                own = self.own(t, n, key)
                fits = list(value[len(value) - len(own) :]) == own
                found.append((key, tuple(value) if fits else self.external(t, n, key, value)))
        return found

    def wholes_agree(self, key: Any) -> bool:
        values = [v for k, v in self.wholes() if k == key]
        return all(a[: len(b)] == b[: len(a)] for a in values for b in values)

    def fits_own(self, key: Any, final: tuple[Any, ...]) -> bool:
        """A list in the end, beside what its appenders have read themselves."""
        if not self.wholes_agree(key):
            return True
        appended = {(t.type != "fail", op.value) for t in self.history for op in t.ops if op[:2] == ("append", key)}
        aborted = {value for lives, value in appended if not lives and (True, value) not in appended}
        values = [tuple(e for e in v if e not in aborted) for k, v in self.wholes() if k == key]
        return all(final[: len(v)] == v for v in values)

    def version(self, key: Any, value: Any) -> int | None:
        """Whose last write this is; -1 the initial one; None nobody's."""
        if value == None:  # noqa: E711 - or it is said to be that
            return -1
        return next((i for (i, k), v in self.last.items() if k == key and v == value), None)


# -- one after the other ----------------------------------------------------------------------------------------------


def respects(order: Order, before: Pairs) -> bool:
    place = {t.index: n for n, t in enumerate(order)}
    return all(place[a] < place[b] for a, b in before)


def returns(t: Transaction, op: Op, now: Any) -> bool:
    """Whether a read fits. What a transaction of unknown outcome has read is unknown, too, or it has read that."""
    return op.value == now or (op.value is None and (now == () or t.type != "ok"))


def executes(order: Iterable[Transaction], lists: set[Any]) -> bool:
    state: dict[Any, Any] = {}
    for t in order:
        for op in t.ops:
            now = state.get(op.key, () if op.key in lists else None)
            if op.kind == "r":
                if not returns(t, op, now):
                    return False
            elif op.kind == "neq":
                if t.type == "ok" and op.value == now:
                    return False
            elif op.kind == "w":
                state[op.key] = op.value
            else:
                state[op.key] = (*now, op.value)
    return True


def serializable(world: World) -> bool:
    orders = permutations(world.committed)
    return any(respects(order, world.before) and executes(order, world.lists) for order in orders)


# -- starts and commits -----------------------------------------------------------------------------------------------


def schedules(world: World) -> Iterator[list[tuple[int, bool]]]:
    """Sequences of (transaction, is it the commit), by depth first."""
    todo = {t.index for t in world.committed}

    def extend(sofar: list[tuple[int, bool]], started: set[int], done: set[int]) -> Iterator[list[tuple[int, bool]]]:
        if len(done) == len(todo):
            yield sofar
        for i in sorted(todo - done):
            if i in started:
                yield from extend([*sofar, (i, True)], started, done | {i})
            elif all(a in done for a, b in world.before if b == i):
                yield from extend([*sofar, (i, False)], started | {i}, done)

    yield from extend([], set(), set())


def snapshots(world: World, conflicts: bool) -> bool:
    by_index = {t.index: t for t in world.committed}
    return world.internal() and any(_snapshot(world, by_index, s, conflicts) for s in schedules(world))


def _snapshot(world: World, by_index: dict[int, Transaction], schedule: Sequence[Any], conflicts: bool) -> bool:
    state: dict[Any, Any] = {key: () if key in world.lists else None for key in world.keys}
    seen: dict[int, dict[Any, Any]] = {}
    changed: dict[int, set[Any]] = {}
    for i, commit in schedule:
        t = by_index[i]
        if not commit:
            seen[i], changed[i] = dict(state), set()
            if not executes_on(t, dict(state)):
                return False
            continue
        keys = {key for key in world.keys if world.writes[i, key]}
        if conflicts and changed[i] & keys:
            return False
        for other in changed.values():
            other |= keys
        for key in keys:
            wrote = world.writes[i, key]
            state[key] = (*state[key], *wrote) if key in world.lists else wrote[-1]
    return all(world.fits_own(key, state[key]) for key in world.lists)


def executes_on(t: Transaction, state: dict[Any, Any]) -> bool:
    for op in t.ops:
        if op.kind == "r":
            if not returns(t, op, state[op.key]):
                return False
        else:
            state[op.key] = (*state[op.key], op.value) if op.kind == "append" else op.value
    return True


# -- orders of commits ------------------------------------------------------------------------------------------------


def axiom(world: World, level: str) -> bool:
    if world.future() or (level != "read-committed" and not world.internal()):
        return False
    return any(_commit_order(world, order, level) for order in permutations(world.committed))


def _commit_order(world: World, order: Order, level: str) -> bool:
    place = {t.index: n for n, t in enumerate(order)} | {-1: -1}
    if any(place[a] > place[b] for a, b in world.before):
        return False
    finals = {key: tuple(v for t in order for v in world.writes[t.index, key]) for key in world.lists}
    if not all(world.fits_own(key, final) for key, final in finals.items()):
        return False
    sources: list[tuple[int, int, Any, int]] = []
    for t, n, key, value in world.reads:
        shown = world.external(t, n, key, value)
        if shown is ...:  # no read of others, unless it shows theirs: then nothing aborted or intermediate
            if value not in world.own(t, n, key) and world.version(key, value) is None:
                return False
            continue
        writer = source_of(world, order, key, shown, finals)
        if writer is None or place[writer] >= place[t.index] or writer == t.index:
            return False
        sources.append((t.index, n, key, writer))
    wr = {(w, r) for r, _, _, w in sources if w != -1}
    past = closed(wr | world.before)
    for reader, n, key, writer in sources:
        if level == "read-committed":
            seen = {w for r, m, _, w in sources if r == reader and m < n}
        elif level == "read-atomic":
            seen = {a for a, b in world.before | wr if b == reader}
        else:
            seen = {a for a, b in past if b == reader}
        for other in seen - {writer, reader, -1}:
            if world.writes[other, key] and place[other] > place[writer]:
                return False
    return True


def source_of(world: World, order: Order, key: Any, shown: Any, finals: dict[Any, tuple[Any, ...]]) -> int | None:
    if key not in world.lists:
        return world.version(key, shown)
    if finals[key][: len(shown)] != shown:
        return None
    at = 0
    for t in order:
        if at == len(shown):
            break
        at += len(world.writes[t.index, key])
    if at != len(shown):
        return None
    if not shown:
        return -1
    return next(t.index for t in order if shown[-1] in world.writes[t.index, key])


def closed(pairs: Pairs) -> Pairs:
    while more := {(a, d) for a, b in pairs for c, d in pairs if b == c} - pairs:
        pairs = pairs | more
    return pairs


# -- orders of versions -----------------------------------------------------------------------------------------------


def version_orders(world: World) -> Iterator[dict[Any, tuple[int, ...]]]:
    for orders in product(*(list(permutations(world.writers(key))) for key in world.keys)):
        yield dict(zip(world.keys, orders, strict=True))


def _dependencies(world: World, orders: dict[Any, tuple[int, ...]]) -> tuple[Pairs, Pairs, Pairs, Pairs] | None:
    """ww, wr, rw, and rw of those who read a list after they had appended to it; None if the reads do not fit."""
    by_index = {t.index: t for t in world.committed}
    ww = {(a, b) for order in orders.values() for a, b in combinations(order, 2)}
    wr, rw, own = set(), set(), set()
    finals = {key: tuple(v for i in orders[key] for v in world.writes[i, key]) for key in world.lists}
    if not all(world.fits_own(key, final) for key, final in finals.items()):
        return None
    for t, n, key, value in world.reads:
        shown = world.external(t, n, key, value)
        if shown is ...:
            continue
        writer = source_of(world, tuple(by_index[i] for i in orders[key]), key, shown, finals)
        if writer is None or writer == t.index:
            return None
        if writer != -1:
            wr.add((writer, t.index))
        at = orders[key].index(writer) if writer != -1 else -1
        missed = {(t.index, w) for w in orders[key][at + 1 :] if w != t.index}
        if key in world.lists and world.own(t, n, key):
            own |= missed
        else:
            rw |= missed
    return ww, wr, rw, own


def consistent_view(world: World) -> bool:
    if not world.internal():
        return False
    for orders in version_orders(world):
        found = _dependencies(world, orders)
        if found is None:
            continue
        ww, wr, rw, own = found
        if any((b, a) in closed(wr | world.before) for a, b in own):
            continue
        reach = closed(ww | wr | world.before)
        if not any(a == b for a, b in reach) and not any((b, a) in reach for a, b in rw):
            return True
    return False


def read_uncommitted(world: World) -> bool:
    """No G0. Who reads a register and writes it puts its version later; lists are in the order that is read. What was
    read counts as having happened, unless it is known to be aborted."""
    seen = {(key, v) for _, _, key, value in world.reads for v in (value if isinstance(value, tuple) else (value,))}
    committed = {t.index for t in world.committed}
    for t in world.history:
        wrote = ((op.key, op.value) for op in t.ops if op.kind != "r")
        if t.type == "info" and t.index not in committed and any(write in seen for write in wrote):
            return False
    for orders in version_orders(world):
        ww = {(a, b) for order in orders.values() for a, b in combinations(order, 2)}
        if any(a == b for a, b in closed(ww | world.before)):
            continue
        finals = {key: tuple(v for i in orders[key] for v in world.writes[i, key]) for key in world.lists}
        if not all(world.fits_own(key, final) for key, final in finals.items()):
            continue
        if all(_fits_reads(world, orders, read) for read in world.reads):
            return True
    return False


def _fits_reads(world: World, orders: dict[Any, tuple[int, ...]], read: tuple[Transaction, int, Any, Any]) -> bool:
    t, n, key, value = read
    shown = world.external(t, n, key, value)
    order = orders[key]
    if key in world.lists:
        committed = [v for v in shown if any(v in world.writes[i, key] for i in order)]
        final = [v for i in order for v in world.writes[i, key]]
        return final[: len(committed)] == committed
    first = next(m for reader, m, k, _ in world.reads if reader.index == t.index and k == key)
    if shown is ... or not world.writes[t.index, key] or n != first:
        return True
    writer = next((i for i in order if shown in world.writes[i, key]), None)
    return writer is None or writer == t.index or order.index(writer) < order.index(t.index)


CHECKS: dict[str, Callable[[World], bool]] = {
    "read-uncommitted": read_uncommitted,
    "read-committed": lambda world: axiom(world, "read-committed"),
    "read-atomic": lambda world: axiom(world, "read-atomic"),
    "causal": lambda world: axiom(world, "causal"),
    "consistent-view": consistent_view,
    "prefix": lambda world: snapshots(world, conflicts=False),
    "snapshot-isolation": lambda world: snapshots(world, conflicts=True),
    "repeatable-read": serializable,
    "serializable": serializable,
}

EXECUTED = ("prefix", "snapshot-isolation", "serializable")


def linearizable(history: Sequence[Transaction], key: Any) -> bool:
    """One key by itself: some order of its operations that respects real time."""
    ops = [(t, tuple(op for op in t.ops if op.key == key)) for t in history if t.type != "fail"]
    there = [(t, only) for t, only in ops if only]
    certain = [x for x in there if x[0].type == "ok"]
    unknown = [x for x in there if x[0].type == "info"]
    lists = list_keys(history)
    for size in range(len(unknown) + 1):
        for chosen in combinations(unknown, size):
            parts = [
                Transaction(t.index, t.process, t.type, t.invoke, t.complete, only) for t, only in (*certain, *chosen)
            ]
            before = precedence(parts, "strong-")
            if any(respects(order, before) and executes(order, lists) for order in permutations(parts)):
                return True
    return False
