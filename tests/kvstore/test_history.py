"""What was overwritten: the state at every version of the window, against a list of all states."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from unittest.mock import patch

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.api.model import KEY_BYTES_MAX, RANGE_BYTES_MAX, KeyValue, between
from kvstore.core.bundles import last_version, version_of
from kvstore.storage import history
from kvstore.storage.backend import CHANGES, DATA, FORMAT, META, PAST, Changes, MemoryBackend
from kvstore.storage.history import FLOOR, USED, Past
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.snapshot import Sealed, Snapshots
from kvstore.storage.store import Store, owner_of
from multicast.types import ZERO, Timestamp

KEYS = [b"a", b"a\0", b"a" + 7 * b"\0", b"a" + 8 * b"\0", b"ab", b"b" * 8, b"b" * 9, b"b" * 8 + b"\xff", 18 * b"\0"]
BOUNDS = [(b"", b""), (b"a", b"ab"), (b"a\0", b"b"), (b"b" * 8, b"")]

Rows = dict[bytes, KeyValue]

deliveries = st.lists(
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, b"", b"1"])), min_size=1, max_size=3), max_size=3
)
moves = st.sampled_from(["", "all", "all", "freeze", "commit", "thaw", "crash"])
steps = st.lists(st.tuples(deliveries, moves), max_size=12)


def test_the_longest_key_has_a_block_that_lmdb_takes(tmp_path):
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for time in (1, 2):
        committed(store, time, {b"\xff" * KEY_BYTES_MAX: b"%d" % time})
    first = version_of(Timestamp(1, 1), 0)
    assert store.at(first).get(b"\xff" * KEY_BYTES_MAX).value == b"1"
    store.close()


def everything(past: Past, first: bytes, end: bytes, reverse: bool) -> tuple[Rows, list[bytes]]:
    """What it shows from `first` to `end`, and its keys as they came."""
    rows, order, rest = {}, [], (first, end)
    while rest is not None:
        found, rest = past.look(*rest, reverse)
        rows |= {row.key: row for row in found}
        order += [row.key for row in found]
    return rows, order


class Recorded:
    """A store, and all its states."""

    def __init__(self, make_backend, **options) -> None:
        self.make_backend, self.options = make_backend, options
        self.store = Store.open(make_backend(), **options)
        self.states: list[tuple[Timestamp, Rows]] = [(ZERO, {})]
        self.time = self.frozen = self.committed = 0
        self.log: list[list[list[tuple[bytes, bytes | None]]]] = []
        self.ready = False

    def deliver(self, bundle) -> None:
        self.log.append(bundle)
        self.apply(len(self.log))

    def apply(self, position: int) -> None:
        at = Timestamp(position * 10, 1)
        for index, (key, value) in enumerate(self.log[position - 1]):
            version = version_of(at, index)
            self.store.write(key, value, version)
            rows = dict(self.states[-1][1])
            before = rows.pop(key, None)
            if value is not None:
                rows[key] = KeyValue(key, value, version, before.create_version if before else version)
            self.states.append((version, rows))
        self.store.reached(position, at)

    def move_on(self, what: str) -> None:
        if what == "all":
            for step in ("freeze", "commit", "thaw"):
                self.move_on(step)
        if what == "freeze" and self.store.freeze(len(self.log)):
            self.frozen, self.ready = len(self.log), False
        elif what == "commit" and self.frozen and not self.ready:
            self.store.commit()
            self.ready = True
        elif what == "thaw" and self.ready:
            self.store.thawed()
            self.committed, self.frozen, self.ready = self.frozen, 0, False
        elif what == "crash":
            if self.ready:
                self.committed = self.frozen
            self.frozen, self.ready = 0, False
            self.store.close()
            self.store = Store.open(self.make_backend(), **self.options)
            begin = last_version(Timestamp(self.committed * 10, 1)) if self.committed else ZERO
            self.states = [state for state in self.states if state[0] <= begin]
            for position in range(self.committed + 1, len(self.log) + 1):
                self.apply(position)

    def check_changes(self) -> None:
        """Told in portions, from every version on of which everything is known."""
        changes = []
        for (_, before), (version, rows) in pairwise(self.states):
            written = {key: getattr(rows.get(key), "value", None) for key in KEYS if rows.get(key) != before.get(key)}
            changes += [(version, [*written.items()])] if written else []
        for after in [version for version, _ in self.states if version >= self.store.changes_from]:
            for first, end in BOUNDS:
                told, upto, before = [], after, None
                while upto != before:
                    before = upto
                    found, upto = self.store.changes(upto, first, end)
                    told += found
                wanted = [(v, [c for c in some if between(c[0], first, end)]) for v, some in changes if v > after]
                assert upto == max(self.store.complete_to, after)
                assert told == [one for one in wanted if one[1]]

    def check(self) -> None:
        self.check_changes()
        versions = [version for version, _ in self.states]
        asked = {*versions, *(last_version(Timestamp(v.time, 1)) for v in versions if v.time), self.store.complete_to}
        for version in sorted(asked):
            if version >= self.store.floor:
                rows = self.states[bisect_right(versions, version) - 1][1]
                past = self.store.at(version)
                assert {key: past.get(key) for key in KEYS} == {key: rows.get(key) for key in KEYS}
                for first, end in BOUNDS:
                    for reverse in (False, True):
                        shown, order = everything(past, first, end, reverse)
                        assert shown == {key: row for key, row in rows.items() if between(key, first, end)}
                        assert order == sorted(order, reverse=reverse)


def play(plan, make_backend, **options) -> Recorded:
    recorded = Recorded(make_backend, **options)
    for bundles, what in plan:
        for bundle in bundles:
            recorded.deliver(bundle)
        recorded.move_on(what)
    recorded.check()
    return recorded


@settings(max_examples=50, deadline=None)
@patch("kvstore.storage.store.Store.looked_max", 2)
@patch("kvstore.storage.store.Store.portion", 2)
@given(steps, st.sampled_from([1_000_000, 35, 10]), st.sampled_from([1 << 30, 200]), st.sampled_from([1, 60, 3600]))
def test_every_version_of_the_window_is_the_state_that_was(plan, history_us, history_bytes_max, block_bytes):
    backend = MemoryBackend()
    with patch.multiple("kvstore.storage.history", _NOTED_MAX=2, BLOCK_BYTES=block_bytes):
        play(plan, lambda: backend, history_us=history_us, history_bytes_max=history_bytes_max)


@settings(max_examples=10, deadline=None)
@patch("kvstore.storage.store.Store.looked_max", 2)
@patch("kvstore.storage.store.Store.portion", 2)
@given(plan=steps)
def test_on_disk_as_in_memory(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("data")
    play(plan, lambda: LmdbBackend(path, durability="os")).store.close()


def committed(store: Store, time: int, rows: dict[bytes, bytes | None]) -> None:
    """One delivery, and a commit of it."""
    for key, value in rows.items():
        store.write(key, value, version_of(Timestamp(time, 1), 0))
    store.reached(time, Timestamp(time, 1))
    store.freeze(time)
    store.commit()
    store.thawed()


def test_what_the_window_has_passed_is_dropped_in_order_and_takes_no_room():
    backend = MemoryBackend()
    store = Store.open(backend, history_us=100)
    for time in range(1, 50):
        committed(store, time, {b"k": b"%d" % time})
    assert backend.count(PAST) == 48 and store.floor == ZERO
    for time in range(500, 503):
        committed(store, time, {b"other": b"%d" % time})
    assert (backend.count(PAST), backend.count(CHANGES)) == (2, 3)
    assert store.floor == Timestamp(402, 0) and int.from_bytes(backend.get(META, USED), "big") < 300


def test_history_has_a_limit_in_bytes_and_says_from_where_on_it_reaches():
    backend = MemoryBackend()
    store = Store.open(backend, history_bytes_max=10_000)
    for time in range(1, 50):
        committed(store, time, {b"k": bytes(1000)})
    assert int.from_bytes(backend.get(META, USED), "big") <= 10_000
    assert Timestamp(38, 0) < store.floor < Timestamp(42, 0)
    floor = store.floor
    committed(store, 50, {})
    assert store.floor == floor
    assert store.at(store.floor).get(b"k").version == version_of(Timestamp(store.floor.time, 1), 0)


def test_without_a_window_nothing_is_kept_and_the_present_can_be_read():
    backend = MemoryBackend()
    store = Store.open(backend, history_us=0)
    for time in range(1, 5):
        committed(store, time, {b"k": b"%d" % time, b"d": None if time % 2 else b"x"})
    assert backend.count(PAST) == backend.count(CHANGES) == 0
    assert store.floor == store.complete_to
    assert store.at(store.floor).get(b"k").value == b"4"
    again = Store.open(backend)
    committed(again, 6, {b"k": b"6"})
    assert again.floor == last_version(Timestamp(4, 1)) and again.at(again.floor).get(b"k") is not None


@pytest.mark.parametrize("kept", [b"", b"something"])
def test_data_of_an_older_format_has_a_history_from_then_on(kept):
    backend = MemoryBackend()
    store = Store.open(backend)
    committed(store, 3, {b"k": b"old"})
    backend.delete(META, FLOOR)
    store = Store.open(backend)
    assert store.floor == last_version(Timestamp(3, 1))
    committed(store, 5, {b"k": kept})
    store = Store.open(backend)
    assert store.floor == last_version(Timestamp(3, 1))
    assert store.at(store.floor).get(b"k").value == b"old"


def test_what_format_6_kept_is_dropped_and_a_history_begins(tmp_path):
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for time in (1, 3):
        committed(store, time, {b"k": b"%d" % time})
    store._backend.apply(Changes({META: {FORMAT: (6).to_bytes(2, "big"), FLOOR: bytes(16)}}, b""))
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=20) as environment:
        for name in (b"past", b"past-order"):
            with environment.begin(environment.open_db(name), write=True) as transaction:
                transaction.put(b"name", b"kept")
    for _ in range(2):
        store = Store.open(LmdbBackend(tmp_path, durability="os"))
        assert store.floor == store.changes_from == last_version(Timestamp(3, 1))
        store.close()
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    committed(store, 5, {b"k": b"5"})
    assert store.at(store.floor).get(b"k").value == b"3"
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=20) as environment, environment.begin() as transaction:
        assert transaction.get(b"past") is transaction.get(b"past-order") is None


def test_who_was_given_a_snapshot_knows_nothing_older_than_that():
    backend = MemoryBackend()
    store = Store.open(backend)
    for time in (3, 5):
        committed(store, time, {b"k": b"%d" % time})
    assert store.floor == ZERO
    backend.stage({DATA: {b"k": version_of(Timestamp(9, 1), 0).encode() + b"9"}, META: {}}, anew=True)
    Snapshots(backend)._take_over(Sealed(9, Timestamp(9, 1), b"", 1), owner_of(bytes(16), 0))
    again = Store.open(backend)
    assert again.floor == last_version(Timestamp(9, 1)) and again.at(again.floor).get(b"k") is not None
    assert again.changes_from == again.floor
    assert backend.count(PAST) == 0 and int.from_bytes(backend.get(META, USED), "big") == 0


class Counted(MemoryBackend):
    """scanned: how often somebody has looked into what was overwritten."""

    scanned = 0

    def scan(self, table: str, start: bytes, reverse: bool = False):
        self.scanned += table == PAST
        return super().scan(table, start, reverse)


@pytest.mark.parametrize("portion_bytes", [256 * 1024, 1000])
def test_who_asks_late_what_has_changed_goes_once_through_what_was_overwritten_since(portion_bytes: int):
    """Once for each change took six seconds of a thousand of them, ten minutes after."""
    backend, keys, each, commits = Counted(), 300, 30, 40
    store = Store.open(backend)
    committed(store, 1, {b"k%03d" % number: b"" for number in range(keys)})
    written = []
    for commit in range(commits):
        rows = {b"k%03d" % ((commit * each + n) % keys): b"%d" % commit * 20 for n in range(each)}
        committed(store, 2 + commit, rows)
        written += sorted(rows.items())
    told, upto, before, calls = [], last_version(Timestamp(1, 1)), None, 0
    with patch.object(history, "PORTION_BYTES", portion_bytes):
        while upto != before:
            before, calls = upto, calls + 1
            found, upto = store.changes(upto, b"k", b"l")
            told += [change for _, changes in found for change in changes]
    assert sorted(told) == sorted(written) and [value for _, value in told] == [value for _, value in written]
    assert backend.scanned <= 2 * calls * 5 * commits


def test_a_look_reads_no_more_of_large_rows_than_one_range_answers(tmp_path):
    """Else one of 256 rows of 1 MB reads 512 MB, while the replica does nothing else."""
    backend = LmdbBackend(tmp_path / "data", durability="os")
    store, read = Store.open(backend), []
    keys = [b"%03d" % number for number in range(64)]
    committed(store, 1, dict.fromkeys(keys, bytes(500_000)))
    committed(store, 2, dict.fromkeys(keys[::2], bytes(500_000)))
    checked = LmdbBackend.checked

    def counted(self, table: str, key: bytes, stored: bytes) -> bytes:
        read.append(len(stored))
        return checked(self, table, key, stored)

    with patch.object(LmdbBackend, "checked", counted):
        for version in (last_version(Timestamp(time, 1)) for time in (1, 2)):
            for reverse in (False, True):
                found, first, end, rest = [], b"", b"", (b"", b"")
                while rest is not None:
                    first, end = rest
                    read.clear()
                    some, rest = store.at(version).look(first, end, reverse)
                    found += [row.key for row in some]
                    assert sum(read) < 4 * RANGE_BYTES_MAX
                assert found == sorted(keys, reverse=reverse)
    store.close()


@pytest.mark.parametrize("overwritten", [False, True])
def test_who_catches_up_with_large_values_reads_each_of_them_a_few_times_at_most(tmp_path, overwritten: bool):
    """Else a question that is told one value of 1 MB reads 32 of them."""
    backend = LmdbBackend(tmp_path / "data", durability="os")
    store, read = Store.open(backend), []
    for time in range(1, 65):
        store.write(b"%03d" % time, bytes(300_000), version_of(Timestamp(time, 1), 0))
        store.reached(time, Timestamp(time, 1))
    committed(store, 65, {})
    if overwritten:
        committed(store, 66, dict.fromkeys([b"%03d" % time for time in range(1, 65)], b"small"))
    checked = LmdbBackend.checked

    def counted(self, table: str, key: bytes, stored: bytes) -> bytes:
        read.append(len(stored))
        return checked(self, table, key, stored)

    found, upto = [], ZERO
    with patch.object(LmdbBackend, "checked", counted):
        while len(found) < 64:
            some, upto = store.changes(upto, b"", b"")
            found += [key for _, changes in some for key, _ in changes]
    assert found[:64] == [b"%03d" % time for time in range(1, 65)]
    assert sum(read) < 5 * 64 * 300_000
    store.close()
