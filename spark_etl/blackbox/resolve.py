"""From values to versions: who wrote what was read, what is certain about the order of versions, what is plainly wrong.

A *version* of a register is the last write of a committed transaction to it; a version of a list is one element. Values
that a history writes once name their writer. A transaction of unknown outcome counts as committed if somebody committed
has read from it, and as absent otherwise: what nobody saw can be left out of any explanation. If it counts, so does
what it has read itself, where that is known (a compare-and-set has read what it compared). A value that nobody wrote
is taken for the initial state of its key, where it can be that; otherwise it is a `garbage-read`.

What is certain about the order of the versions of a key: the initial one is first; who reads one version and writes
another (a register) puts its own later; lists show their order, and what no read shows comes after all that the longest
read shows; a given order, where there is one.

After Adya, Liskov and O'Neil 2000; Kingsbury and Alvaro, Elle, VLDB 2020, Sections 4 and 5.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any

from spark_etl.blackbox.facts import INIT, Facts, Key, Read, listed, show
from spark_etl.blackbox.history import Op, Transaction

_ByValue = tuple[int, int, Any]
"""(reader, ordinal of the operation, what it read)."""


def resolve(
    history: Sequence[Transaction],
    orders: Mapping[Key, Sequence[Any]] | None = None,
    initial: Mapping[Key, Any] | None = None,
) -> Facts:
    """orders: key -> its values in the order of their versions, if the source gives it. initial: `Facts.initial`, if
    that is decided."""
    return _Resolver(history, orders or {}, initial).run()


class _Resolver:
    def __init__(
        self,
        history: Sequence[Transaction],
        orders: Mapping[Key, Sequence[Any]],
        initial: Mapping[Key, Any] | None,
    ):
        self.history = {t.index: t for t in history}
        self.orders = orders
        self.decided = initial
        self.facts = Facts()
        self.written: dict[tuple[Key, Any], list[int]] = defaultdict(list)
        self.times: dict[tuple[Key, Any], int] = defaultdict(int)
        self.last: dict[tuple[int, Key], Any] = {}
        self.appended: dict[tuple[int, Key], list[Any]] = defaultdict(list)
        self.after_own: set[tuple[int, int]] = set()
        self.whole: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.list_keys = {op.key for t in history for op in t.ops if op.kind == "append"}
        self.assigned = {op.key for t in history for op in t.ops if op.kind == "w"}
        self.lists = self.list_keys | {op.key for t in history for op in t.ops if isinstance(op.value, tuple)}
        self.perhaps: dict[Key, set[Any]] = defaultdict(set)
        """What those of unknown outcome have read."""
        self.after_write: dict[Key, list[_ByValue]] = defaultdict(list)

    def run(self) -> Facts:
        facts = self.facts
        facts.list_keys = self.list_keys
        self._index()
        self._commit()
        for index, transaction in facts.committed.items():
            for key in dict.fromkeys(op.key for op in transaction.ops if op.kind in ("w", "append")):
                facts.writers[key].append(index)
            self._internal(transaction)
        registers, lists = self._external_reads()
        for key in dict.fromkeys((*facts.writers, *registers, *lists)):
            if key not in self.list_keys and key not in lists:
                self._register(key, registers.get(key, []))
            elif not (facts.repeated & {key}) and self._named(key, lists.get(key, [])) == lists.get(key, []):
                self._list(key, lists.get(key, []))
            else:
                facts.initial[key] = self._nobodys_beginning(key, lists.get(key, []))
        return facts

    def _named(self, key: Key, reads: list[_ByValue]) -> list[_ByValue]:
        """The reads that name their writers."""
        shown = [_elements(self._whole(*read)) for read in reads]
        named = [r for r, values in zip(reads, shown, strict=True) if not any(self._ambiguous(key, v) for v in values)]
        if len(named) < len(reads):
            self.facts.repeated.add(key)
        return named

    def _ambiguous(self, key: Key, value: Any) -> bool:
        return self.times[key, value] > (value is not None)

    def _index(self) -> None:
        """Who wrote which value, and how often that may have happened; what cannot be told from reads."""
        for transaction in self.history.values():
            for op in transaction.ops:
                if op.kind in ("w", "append"):
                    self.written[op.key, op.value].append(transaction.index)
                    self.times[op.key, op.value] += transaction.type != "fail"
                    self.last[transaction.index, op.key] = op.value
                if op.kind == "append":
                    self.appended[transaction.index, op.key].append(op.value)
                compared = op.kind == "neq" and transaction.type == "ok"
                if compared or (op.kind == "w" and op.key in self.lists):
                    self.facts.repeated.add(op.key)
                if transaction.type == "info" and _shown(transaction, op):
                    self.perhaps[op.key].add(op.value)

    def _commit(self) -> None:
        """Everything acknowledged, and of the unknown what acknowledged ones have certainly read from."""
        committed = {t.index: t for t in self.history.values() if t.type == "ok"}
        unknown: dict[Key, dict[Any, Transaction]] = defaultdict(dict)
        for transaction in self.history.values():
            for op in transaction.ops if transaction.type == "info" else ():
                if op.kind in ("w", "append") and not self._ambiguous(op.key, op.value):
                    unknown[op.key][op.value] = transaction
        readers = list(committed.values()) if unknown else []
        for transaction in readers:
            for op in transaction.ops:
                if op.kind == "r" and (there := unknown.get(op.key)):
                    seen = {there[value].index: there[value] for value in _elements(op.value) if value in there}
                    readers += (writer for index, writer in seen.items() if index not in committed)
                    committed |= seen
        self.facts.committed = dict(sorted(committed.items()))

    # -- inside one transaction ---------------------------------------------------------------------------------------

    def _internal(self, transaction: Transaction) -> None:
        """What a transaction reads must fit what it has itself read and written before."""
        state: dict[Key, Any] = {}
        appended: dict[Key, list[Any]] = defaultdict(list)  # since then, or since it began
        to_write: dict[tuple[Key, Any], int] = {}
        for number, op in enumerate(transaction.ops):
            if op.kind in ("w", "append"):
                to_write.setdefault((op.key, op.value), number)
        for op in transaction.ops:
            key = op.key
            if op.kind != "r":
                to_write.pop((key, op.value), None)
            if op.kind == "w":
                state[key] = op.value
                appended.pop(key, None)
            elif op.kind == "append":
                appended[key].append(op.value)
            elif _shown(transaction, op):
                self._future(transaction, op, to_write)
                own, wrong = tuple(appended.pop(key, ())), False
                if key in state:
                    wrong = not _same((*_listed(state[key]), *own) if own else state[key], op.value)
                elif own:
                    wrong = not isinstance(op.value, tuple) or op.value[-len(own) :] != own
                if wrong:
                    text = f"T{transaction.index} reads {show(op)}; it had read or written something else there before"
                    self.facts.report("internal", [transaction.index], text)
                state[key] = op.value

    def _future(self, transaction: Transaction, op: Op, to_write: Mapping[tuple[Key, Any], int]) -> None:
        """to_write: what it writes only after this operation, and at which one first. Null may have been there from the
        beginning; whose a list's element is that was written whole is for a search to say."""
        if op.key in self.lists & self.assigned:
            return
        places = (to_write.get((op.key, value)) for value in _elements(op.value) if value is not None)
        for place in sorted(place for place in places if place is not None):
            later = transaction.ops[place]
            if all(
                writer == transaction.index or self.history[writer].type == "fail"
                for writer in self.written[op.key, later.value]
            ):
                text = f"T{transaction.index} reads {show(op)} before it does {show(later)}"
                self.facts.report("future-read", [transaction.index], text)
                return

    def _external_reads(self) -> tuple[dict[Key, list[_ByValue]], dict[Key, list[_ByValue]]]:
        """Of registers (before an own write) and of lists (without own appends): key -> (reader, ordinal, value)."""
        registers: dict[Key, list[_ByValue]] = defaultdict(list)
        lists: dict[Key, list[_ByValue]] = defaultdict(list)
        for index, transaction in self.facts.committed.items():
            wrote: dict[Key, int] = defaultdict(int)
            appended: dict[Key, list[Any]] = defaultdict(list)
            values: dict[Key, set[Any]] = defaultdict(set)
            for number, op in enumerate(transaction.ops):
                if op.kind in ("w", "append"):
                    wrote[op.key] += 1
                if op.kind == "append":
                    appended[op.key].append(op.value)
                    values[op.key].add(op.value)
                elif _shown(transaction, op):
                    own = wrote[op.key]
                    if op.key in self.lists:
                        whole = op.value or ()
                        mine = values[op.key]
                        if own:
                            self.after_own.add((index, number))
                        if len(mine) <= len(whole) and mine <= set(whole):
                            self.whole[index, number] = whole
                        else:
                            self.facts.own_missed.append(Read(index, op.key, index, number))
                        if own <= len(whole) and whole[len(whole) - own :] == tuple(appended[op.key][: len(whole) + 1]):
                            whole = whole[: len(whole) - own]
                        else:
                            whole = tuple(value for value in whole if value not in mine)
                        lists[op.key].append((index, number, whole))
                    elif not own:
                        registers[op.key].append((index, number, op.value))
                    elif not self._ambiguous(op.key, op.value):
                        writer = INIT if op.value is None else self._committed_writer(op.key, op.value)
                        if writer not in (None, index):
                            self.facts.own_missed.append(Read(index, op.key, writer, number))
                        if writer != INIT:
                            self.after_write[op.key].append((index, number, op.value))
        return registers, lists

    # -- registers ----------------------------------------------------------------------------------------------------

    def _register(self, key: Key, shown: list[_ByValue]) -> None:
        facts, writers = self.facts, self.facts.writers.get(key, [])
        reads = self._named(key, shown)
        initial = self._initial(key, reads)
        if self.decided is None and all(v is not None and (key, v) in self.written for _, _, v in shown):
            strange = {value for value in self.perhaps[key] if (key, value) not in self.written}
            initial = strange.pop() if len(strange) == 1 else None
        if initial is not None:
            facts.initial[key] = initial
        first: dict[int, int] = {}
        from_nowhere: dict[Any, list[int]] = defaultdict(list)
        for reader, ordinal, value in reads:
            writer = self._writer(key, value, reader, initial)
            if (key, value) not in self.written and value is not None and reader in writers:
                from_nowhere[value] = list(dict.fromkeys((*from_nowhere[value], reader)))
            if writer is not None and writer != reader:
                facts.reads.append(Read(reader, key, writer, ordinal))
                first.setdefault(reader, writer)
        for reader, _, value in self.after_write.get(key, []):
            if value != initial:
                self._writer(key, value, reader, initial)
        given = (self._committed_writer(key, v) for v in self.orders.get(key, self.orders.get(str(key), ())))
        chain = list(dict.fromkeys(w for w in given if w is not None))
        facts.ww.update((earlier, later, key) for earlier, later in pairwise(chain))
        updates: dict[int, list[int]] = defaultdict(list)
        for writer in writers:
            if writer in first:
                updates[first[writer]].append(writer)
                if first[writer] != INIT:
                    facts.ww.add((first[writer], writer, key))
        if len(writers) > 1 and not set(writers) <= set(chain):
            facts.free[key] = writers
        for version, updaters in updates.items():
            what = "the initial version" if version == INIT else f"T{version}'s version"
            self._lost_update(updaters, f"all read {what} of {key!r}, and then write it")
        for value, updaters in from_nowhere.items():
            if value != initial:
                self._lost_update(updaters, f"all read {value!r} at {key!r}, and then write it")

    def _lost_update(self, updaters: list[int], what: str) -> None:
        if len(updaters) > 1:
            self.facts.report("lost-update", updaters, f"{' and '.join(f'T{t}' for t in updaters[:4])} {what}")

    def _initial(self, key: Key, reads: list[_ByValue]) -> Any:
        """The value nobody wrote that can be this key's initial one; None: that is null."""
        if self.decided is not None:
            return self.decided.get(key)
        unknown = {value for _, _, value in reads if value is not None and (key, value) not in self.written}
        if len(unknown) != 1 or any(value is None for _, _, value in reads):
            return None
        (value,) = unknown
        for reader, _, read in reads:
            for writer in self.facts.writers.get(key, []) if read == value else ():
                if writer != reader and _before(self.history[writer], self.history[reader]):
                    return None
        return value

    def _writer(self, key: Key, value: Any, reader: int, initial: Any) -> int | None:
        """Whose version this is; None if it is nobody's, or an aborted one's (which is reported)."""
        if value is None or value == initial:
            return INIT
        facts, writers = self.facts, self.written.get((key, value), [])
        if not writers:
            facts.report("garbage-read", [reader], f"T{reader} reads {key!r} = {value!r}, which nobody wrote")
            return None
        writer = self._committed_writer(key, value)
        if writer is None:
            self._aborted_read(key, value, reader, writers[0])
        elif self.last[writer, key] != value and writer != reader:
            after = self.last[writer, key]
            text = f"T{reader} reads {key!r} = {value!r} of T{writer}, which then wrote {after!r} there"
            facts.report("G1b", [reader, writer], text)
        return writer

    def _aborted_read(self, key: Key, value: Any, reader: int, writer: int) -> None:
        text = f"T{reader} reads {value!r} at {key!r}, written by T{writer}, which was aborted"
        self.facts.report("G1a", [reader, writer], text)

    def _committed_writer(self, key: Key, value: Any) -> int | None:
        return next((w for w in self.written.get((key, value), ()) if w in self.facts.committed), None)

    # -- lists --------------------------------------------------------------------------------------------------------

    def _list(self, key: Key, reads: list[_ByValue]) -> None:
        """The order of a list's versions, and what each read says of it."""
        facts = self.facts
        elements, wholes = self._elements(key, reads)
        facts.initial[key] = beginning = self._beginning(key, elements, reads)
        order = [self._appender(key, value, elements, wholes) if at >= len(beginning) else INIT
                 for at, value in enumerate(elements)]  # fmt: skip
        place = {value: i for i, value in enumerate(elements)}
        self._program_order(key, elements, wholes)
        if key in facts.contradictory:
            for reader, ordinal, value in reads:
                self._out_of_order(key, place, reader, self._whole(reader, ordinal, value))
        unseen = self._order_of_appenders(key, order, place)
        self._reads_of_list(key, reads, order, place, unseen)

    def _elements(self, key: Key, reads: list[_ByValue]) -> tuple[list[Any], list[tuple[int, tuple[Any, ...]]]]:
        """The list as far as it is undisputed, and per read who read and what it shows. The longest read shows the
        order, and every other must be a prefix of it. The elements that a reader has itself appended show their place
        too, unless other reads contradict that: then it was the reader's own view."""
        facts = self.facts
        wholes = [(reader, self._whole(reader, ordinal, value)) for reader, ordinal, value in reads]
        for reader, value in wholes:
            if len(set(value)) < len(value):
                twice = next(v for v in value if value.count(v) > 1)
                facts.contradictory.add(key)
                facts.report("duplicate-elements", [reader], f"T{reader} reads {twice!r} twice in {key!r}")
        longest = max((value for _, value in wholes), key=len, default=())
        if any(value != longest[: len(value)] for _, value in wholes):
            wholes = [(reader, value) for reader, _, value in reads]
            longest = max((value for _, value in wholes), key=len, default=())
        for reader, value in wholes:
            if value != longest[: len(value)]:
                text = f"T{reader} reads {key!r} = {listed(value)}; another reads {listed(longest)}"
                facts.contradictory.add(key)
                facts.report("incompatible-order", [reader], text)
        for rival in [value for _, value in wholes if len(value) == len(longest) and value != longest]:
            longest = tuple(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(longest, rival, strict=False)))
        return list(dict.fromkeys(longest)), wholes

    def _order_of_appenders(self, key: Key, order: list[int | None], place: Mapping[Any, int]) -> list[int]:
        """Who follows whom as far as reads show it; returns who has appended what no read shows, and so comes last.
        order: whose each element is; place: where it stands."""
        facts = self.facts
        unseen = [w for w in facts.writers.get(key, []) if any(v not in place for v in self._appended(w, key))]
        known = [w for w in order if w is not None and w != INIT]
        facts.ww.update((a, b, key) for a, b in pairwise(known) if a != b)
        last = {writer: i for i, writer in enumerate(known)}
        facts.places[key] = {writer: i for i, writer in enumerate(sorted(last, key=last.__getitem__))}
        if known:
            facts.ww.update((known[-1], w, key) for w in unseen if w != known[-1])
        if len(unseen) > 1:
            facts.free[key] = unseen
        return unseen

    def _reads_of_list(
        self, key: Key, reads: list[_ByValue], order: list[int | None], place: Mapping[Any, int], unseen: list[int]
    ) -> None:
        """Whose version each read saw, and who overwrote it. The rest: see `_order_of_appenders`."""
        facts = self.facts
        followers = [unseen]  # By place, of whoever comes next from there on; built from the end.
        for writer in reversed(order):
            followers.append(followers[-1] if writer is None or writer == INIT else [writer])
        followers.reverse()
        updates: dict[int, list[int]] = defaultdict(list)
        writers = set(facts.writers.get(key, ()))
        for reader, ordinal, value in reads:
            self._intermediate(key, reader, value)
            if value and value[-1] not in place:
                self._out_of_place(key, reader, ordinal, value)
                continue
            at = place[value[-1]] if value else -1
            writer = order[at] if at >= 0 else INIT
            blind = (reader, ordinal) in self.after_own
            if writer is not None and writer != reader:
                facts.reads.append(Read(reader, key, writer, ordinal))
                if not blind and reader in writers and reader not in updates[at]:
                    updates[at].append(reader)
            next_ones = followers[at + 1]
            overwritten = facts.rw_own if blind else facts.rw
            overwritten.update((reader, other, key) for other in next_ones if other != reader)
        for at, updaters in updates.items():
            self._lost_update(updaters, f"all read the first {at + 1} elements of {key!r}, and then append to it")

    def _beginning(self, key: Key, elements: list[Any], reads: list[_ByValue]) -> tuple[Any, ...]:
        """The elements that nobody appended and that can have been there from the beginning: all reads show them."""
        shortest = min((len(value) for _, _, value in reads), default=0)
        most = len(elements) if key in self.assigned else shortest
        return tuple(takewhile(lambda value: (key, value) not in self.written, elements[:most]))

    def _nobodys_beginning(self, key: Key, reads: list[_ByValue]) -> tuple[Any, ...]:
        """Of a list whose values repeat: the longest beginning of a read of which nobody wrote any element. If it was
        not there at first, nothing explains that read."""
        known = {v for k, value in self.written if k == key for v in _listed(value)}
        for wholes in ((self._whole(*read) for read in reads), self.perhaps[key]):
            shown = (tuple(takewhile(lambda v: v not in known, _listed(whole))) for whole in wholes)
            if longest := max(shown, key=len, default=()):
                return longest
        return ()

    def _out_of_order(self, key: Key, elements: Collection[Any], reader: int, value: tuple[Any, ...]) -> None:
        """Elements of a read that contradicts others, which are not in their order and nobody's."""
        for one in dict.fromkeys(value):
            if one not in elements and (key, one) not in self.written:
                self._nobodys(key, one, reader)

    def _nobodys(self, key: Key, value: Any, reader: int) -> None:
        self.facts.report("garbage-read", [reader], f"T{reader} reads {value!r} in {key!r}, which nobody appended")

    def _program_order(self, key: Key, elements: list[Any], wholes: list[tuple[int, tuple[Any, ...]]]) -> None:
        """Of a transaction's own appends, the list must hold the first ones in their order."""
        shown: dict[int, list[Any]] = defaultdict(list)
        for value in elements:
            if (writer := self._committed_writer(key, value)) is not None:
                shown[writer].append(value)
        for writer, values in shown.items():
            appended = self._appended(writer, key)
            if values != appended[: len(values)]:
                reader = next(r for r, whole in wholes if values[-1] in whole)
                text = f"T{reader} reads {listed(values)} of T{writer} in {key!r}, which appended {listed(appended)}"
                self.facts.contradictory.add(key)
                self.facts.report("incompatible-order", [reader, writer], text)

    def _whole(self, reader: int, ordinal: int, value: Any) -> Any:
        """With the elements that the reader has appended itself."""
        return self.whole.get((reader, ordinal), value)

    def _appended(self, writer: int, key: Key) -> list[Any]:
        return self.appended.get((writer, key), [])

    def _appender(
        self, key: Key, value: Any, elements: list[Any], wholes: list[tuple[int, tuple[Any, ...]]]
    ) -> int | None:
        """Whose element this is, that was not there from the beginning; None if it is nobody's that committed."""
        facts, writers = self.facts, self.written.get((key, value), [])
        if writers and (writer := self._committed_writer(key, value)) is not None:
            return writer
        at = elements.index(value)
        reader = next((r for r, whole in wholes if value in whole), -1)
        if not writers:
            self._nobodys(key, value, reader)
            return None
        self._aborted_read(key, value, reader, writers[0])
        above = next((w for v in elements[at + 1 :] if (w := self._committed_writer(key, v)) is not None), None)
        if above is not None:
            text = f"T{above} appended to {key!r} when it held {value!r} of T{writers[0]}, which was aborted"
            facts.report("dirty-update", [above, writers[0]], text)
        return None

    def _intermediate(self, key: Key, reader: int, value: tuple[Any, ...]) -> None:
        """Reports a read between two appends."""
        writer = self._committed_writer(key, value[-1]) if value else None
        if writer is not None and writer != reader:
            own = self._appended(writer, key)
            if value[-1] != own[-1]:
                text = f"T{reader} reads {key!r} up to {value[-1]!r} of T{writer}, which then appended {own[-1]!r}"
                self.facts.report("G1b", [reader, writer], text)

    def _out_of_place(self, key: Key, reader: int, ordinal: int, value: tuple[Any, ...]) -> None:
        """A read of a list without an order: it shows its writer all the same."""
        writer = self._committed_writer(key, value[-1])
        if writer is not None and writer != reader:
            self.facts.reads.append(Read(reader, key, writer, ordinal))
        for one in value:
            if (key, one) not in self.written:
                self._nobodys(key, one, reader)
            elif self._committed_writer(key, one) is None:
                self._aborted_read(key, one, reader, self.written[key, one][0])


def _shown(transaction: Transaction, op: Op) -> bool:
    """Whether this is a read of which it is known what it returned."""
    return op.kind == "r" and (transaction.type == "ok" or op.value is not None)


def _same(a: Any, b: Any) -> bool:
    """Null and the empty list are the same."""
    return bool(a == b or (a in (None, ()) and b in (None, ())))


def _listed(value: Any) -> tuple[Any, ...]:
    """What is appended to."""
    return () if value is None else _elements(value)


def _elements(value: Any) -> tuple[Any, ...]:
    """What was read, one by one."""
    return value if isinstance(value, tuple) else (value,)


def _before(a: Transaction, b: Transaction) -> bool:
    """In real time, or in their session where there is no real time. Nobody knows when one of unknown outcome took
    effect."""
    if a.type != "ok":
        return False
    if a.complete is not None and b.invoke is not None:
        return a.complete < b.invoke
    return a.invoke is None and b.invoke is None and a.process == b.process and a.index < b.index
