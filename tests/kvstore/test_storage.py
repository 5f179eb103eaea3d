"""The store: layers over a backend, in memory and in LMDB, against a plain dict."""

from __future__ import annotations

import errno
import os
import random
import resource
import struct
import threading
import timeit
from itertools import product
from unittest.mock import Mock, patch

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvstore.api.model import VALUE_BYTES_MAX, KeyValue
from kvstore.core.rows import encode_row
from kvstore.storage.backend import DATA, IDS, META, TABLES, Changes, MemoryBackend, NoSpace, StorageError
from kvstore.storage.layers import SortedKeys
from kvstore.storage.lmdb_backend import LmdbBackend
from kvstore.storage.store import FORMAT_VERSION, Store, row_digest
from multicast.types import Timestamp

KEYS = [b"a", b"a1", b"a2", b"ab", b"b", b"b\xff", b"c"]
LEASES = [b"%016d" % n for n in range(7, 9)]
IDS_OF_PARTS = [b"%016d" % n for n in range(3)]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(KEYS), st.sampled_from([None, b"", b"1", b"22"])),
        st.tuples(st.just("attach"), st.sampled_from(KEYS), st.sampled_from(LEASES)),
        st.tuples(st.just("scan"), st.sampled_from([b"", b"x", *KEYS]), st.sampled_from([b"", *KEYS])),
        st.tuples(st.just("part"), st.sampled_from(IDS_OF_PARTS), st.sampled_from([None, b"", b"votes"])),
        st.tuples(st.sampled_from(["freeze", "commit", "thaw", "reopen"]), st.none(), st.none()),
    ),
    max_size=40,
)


def encoded(row: KeyValue) -> bytes:
    return encode_row(row.version.encode(), row.create_version.encode(), row.lease, row.value)


class Oracle:
    """Plain dicts: the rows and parts that are there, and those that were committed."""

    def __init__(self) -> None:
        self.rows: dict[bytes, KeyValue] = {}
        self.parts: dict[bytes, bytes] = {}
        self.frozen: tuple[dict[bytes, KeyValue], dict[bytes, bytes]] | None = None
        self.committed = self.copy()
        self.ready = False

    def copy(self) -> tuple[dict[bytes, KeyValue], dict[bytes, bytes]]:
        return dict(self.rows), dict(self.parts)

    def scan(self, first: bytes, end: bytes, limit: int, reverse: bool, keys_only: bool):
        keys = sorted([k for k in self.rows if first <= k and (not end or k < end)], reverse=reverse)
        found = [replace(self.rows[k], value=b"") if keys_only else self.rows[k] for k in keys]
        return found[:limit], len(found) > limit

    def digest(self) -> bytes:
        total = sum(row_digest(k, encoded(row)) for k, row in self.rows.items())
        return (total % 2**128).to_bytes(16, "big")


@patch("kvstore.storage.store.WRITTEN_MAX", 3)
def play(make_backend, plan) -> None:
    backend = make_backend()
    store, oracle, time = Store.open(backend), Oracle(), 0
    for what, one, two in plan:
        if what in ("write", "attach"):
            time += 1
            at, value, lease = Timestamp(time, 0), two, b""
            if what == "attach":
                value, lease = b"attached", two
            store.write(one, value, at, lease=lease)
            before = oracle.rows.pop(one, None)
            if value is not None:
                oracle.rows[one] = KeyValue(one, value, at, before.create_version if before else at, lease)
        elif what == "part":
            if two is None:
                store.drop_part(one)
                oracle.parts.pop(one, None)
            else:
                store.keep_part(one, two)
                oracle.parts[one] = two
        elif what == "scan":
            for limit, reverse in product((1, 2, 9), (False, True)):
                assert store.scan(one, two, limit, reverse, limit == 2) == oracle.scan(
                    one, two, limit, reverse, limit == 2
                )
        elif what == "freeze":
            assert store.freeze(time) == (oracle.frozen is None)
            if oracle.frozen is None:
                oracle.frozen = oracle.copy()
                oracle.ready = False
        elif what == "commit" and oracle.frozen is not None:
            store.commit()
            oracle.committed, oracle.ready = oracle.frozen, True
        elif what == "thaw" and oracle.ready:
            store.thawed()
            oracle.frozen, oracle.ready = None, False
        elif what == "reopen":
            store.close()
            backend = make_backend()
            store = Store.open(backend)
            (oracle.rows, oracle.parts), oracle.frozen, oracle.ready = oracle.committed, None, False
            oracle.committed = oracle.copy()
        assert [store.get(k) for k in KEYS] == [oracle.rows.get(k) for k in KEYS]
        for lease in LEASES:
            assert store.attached(lease) == sorted(k for k, row in oracle.rows.items() if row.lease == lease)
        assert [store.part(i) for i in IDS_OF_PARTS] == [oracle.parts.get(i) for i in IDS_OF_PARTS]
        assert dict(store.parts()) == oracle.parts
        assert store.state_digest() == oracle.digest()
    store.close()


@settings(max_examples=300)
@given(steps)
def test_layers_over_memory_are_one_map(plan):
    backend = MemoryBackend()
    play(lambda: backend, plan)


@settings(max_examples=40)
@given(plan=steps)
def test_layers_over_lmdb_are_one_map(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("data")
    play(lambda: LmdbBackend(path, durability="os"), plan)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.binary(max_size=3), st.booleans()), max_size=80))
def test_sorted_keys(plan):
    known: dict[bytes, bytes] = {}
    keys = SortedKeys(known)
    for key, look in plan:
        known[key] = b""
        if look:
            assert list(keys.begin(key)) == sorted(k for k in known if k >= key)
            assert list(keys.begin(key, True)) == sorted([k for k in known if not key or k < key], reverse=True)


@pytest.fixture(params=["memory", "lmdb"])
def reopen(request, tmp_path):
    """Opens the same data again and again; the store before is closed first."""
    memory, opened = MemoryBackend(), []

    def open_again(**owner) -> Store:
        if opened:
            opened.pop().close()
        backend = memory if request.param == "memory" else LmdbBackend(tmp_path / "data")
        try:
            opened.append(Store.open(backend, **owner))
        except StorageError:
            backend.close()
            raise
        return opened[-1]

    yield open_again
    if opened:
        opened.pop().close()


def commit(store: Store, position: int = 1) -> None:
    assert store.freeze(position)
    store.commit()
    store.thawed()


def test_a_commit_holds_everything_and_nothing_later(reopen):
    store = reopen()
    assert store.position == 0
    store.write(b"k", b"v", Timestamp(7, 1))
    store.remember(b"i" * 16, b"result")
    store.keep_part(b"i" * 16, b"part")
    commit(store, position=12)
    store.write(b"k", b"later", Timestamp(8, 1))
    store.drop_part(b"i" * 16)
    assert store.part(b"i" * 16) is None

    store = reopen()
    assert store.position == 12
    assert store.get(b"k") == KeyValue(b"k", b"v", Timestamp(7, 1), Timestamp(7, 1))
    assert store.remembered(b"i" * 16) == b"result"
    assert store.part(b"i" * 16) == b"part"


def test_a_dropped_part_is_gone_after_the_next_commit(reopen):
    store = reopen()
    store.keep_part(b"1" * 16, b"committed")
    commit(store)
    store.keep_part(b"2" * 16, b"frozen")
    assert store.freeze(2)
    store.drop_part(b"1" * 16)
    store.drop_part(b"2" * 16)
    store.commit()
    store.thawed()
    commit(store)
    store = reopen()
    assert store.part(b"1" * 16) is None and store.part(b"2" * 16) is None


def test_ids_are_forgotten_from_the_left(reopen):
    store = reopen()
    ids = [bytes([i]) * 16 for i in range(10)]
    for message_id in ids[:5]:
        store.remember(message_id, b"r")
    commit(store)
    for message_id in ids[5:]:
        store.remember(message_id, b"r")
    store.forget_before(ids[7])
    store.forget_before(ids[2])
    assert [store.remembered(i) for i in ids] == [None] * 7 + [b"r"] * 3
    commit(store)
    store = reopen()
    assert [store.remembered(i) for i in ids] == [None] * 7 + [b"r"] * 3
    assert [key for key, _ in store._backend.scan(IDS, b"")] == ids[7:]


def test_a_directory_of_another_replica_or_cluster_is_refused(reopen):
    commit(reopen(cluster=b"c" * 16, replica=3))
    with pytest.raises(StorageError, match=r"belongs to replica 3 of cluster 6363.*not to replica 4"):
        reopen(cluster=b"c" * 16, replica=4)
    with pytest.raises(StorageError, match=r"not to replica 3 of cluster 6464"):
        reopen(cluster=b"d" * 16, replica=3)


def test_a_newer_format_is_refused_in_one_sentence(reopen):
    store = reopen()
    commit(store)
    store._backend.apply(Changes({META: {b"format": (FORMAT_VERSION + 1).to_bytes(2, "big")}}, b""))
    with pytest.raises(StorageError, match=f"{FORMAT_VERSION + 1} is newer than this program's {FORMAT_VERSION}; use"):
        reopen()


def test_rows_of_a_format_without_checksums_get_them(tmp_path):
    """More than fit the first map."""
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for i in range(2_000):
        store.write(b"k%04d" % i, b"v" * (i % 50), Timestamp(i + 1, 0))
    commit(store, 2_000)
    before = store.scan(b"", b"", 3_000)
    store.close()
    with lmdb.open(str(tmp_path), max_dbs=8, map_size=1 << 24) as environment:  # as programs of format 2 wrote it
        for table in TABLES:
            database = environment.open_db(table.encode())
            with environment.begin(db=database, write=True) as transaction:
                for key, value in list(transaction.cursor()):
                    transaction.put(key, (2).to_bytes(2, "big") if key == b"format" else value[:-4])
    for _ in range(2):
        store = Store.open(LmdbBackend(tmp_path, map_size=256 * 1024, durability="os"))
        assert (store.scan(b"", b"", 3_000), store.position) == (before, 2_000)
        store.close()
    change(tmp_path / "data.mdb", b"v" * 49, b"w" + b"v" * 48)
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    with pytest.raises(StorageError, match="damaged"):
        store.scan(b"", b"", 3_000)
    store.close()


def change(file, old: bytes, new: bytes) -> None:
    """Wherever it stands."""
    data = file.read_bytes()
    assert old in data and len(old) == len(new)
    file.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("old, new", [(b"value-of-b", b"value-of-x"), (b"key-b", b"key-a"), (b"key-b", b"key-d")])
def test_a_row_that_was_changed_on_disk_is_never_served(tmp_path, old, new):
    """Nor does its key seem to be absent."""
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for name in (b"a", b"b", b"c"):
        store.write(b"key-" + name + name, b"value-of-" + name, Timestamp(1, 0))
    commit(store)
    store.close()
    change(tmp_path / "data.mdb", old, new)
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for read in (lambda: store.get(b"key-bb"), lambda: store.scan(b"key", b"", 10)):
        with pytest.raises(StorageError, match=f"{tmp_path}: damaged: a row of data .* move .* away and start again"):
            read()
    store.close()


def test_keys_that_come_beside_large_values_do_not_have_these_read_each_time(tmp_path, monkeypatch):
    """A transaction may write a thousand. But for ever, or in another snapshot, nobody is trusted."""
    checked = []
    check = LmdbBackend.checked

    def count(backend, table, key, stored):
        if len(stored) > VALUE_BYTES_MAX:
            checked.append(key)
        return check(backend, table, key, stored)

    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    store.write(b"a", bytes(VALUE_BYTES_MAX), Timestamp(1, 0))
    store.write(b"z", bytes(VALUE_BYTES_MAX), Timestamp(2, 0))
    commit(store)
    monkeypatch.setattr(LmdbBackend, "checked", count)
    for i in range(1024):
        assert store.get(b"k%d" % i) is None
    assert sorted(checked) == [b"a"] * 4 + [b"z"] * 4
    commit(store, 2)
    assert store.get(b"k") is None and sorted(checked) == [b"a"] * 5 + [b"z"] * 5
    view = store._backend.view()
    assert view.get(DATA, b"k") is None and sorted(checked) == [b"a"] * 6 + [b"z"] * 6
    view.close()
    store.close()


def test_a_page_that_lmdb_finds_damaged_is_told_in_one_sentence(tmp_path):
    """The inner pages of the tree have pointers to where no page is."""
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    for i in range(1_000):
        store.write(b"k%04d" % i, bytes(100), Timestamp(i + 1, 0))
    commit(store)
    store.close()
    mislead(tmp_path / "data.mdb")
    sentence = f"{tmp_path}/data.mdb: damaged: LMDB cannot read it: .*; move {tmp_path} away and start again"
    reads = (
        lambda store: store.get(b"k0500"), lambda store: store.scan(b"k", b"", 10),
        lambda store: store._backend.last(DATA), lambda store: store._backend.view().get(DATA, b"k0500"), commit_one,
    )  # fmt: skip
    for read in reads:
        store = Store.open(LmdbBackend(tmp_path, durability="os"))
        with pytest.raises(StorageError, match=sentence):
            read(store)
        store.close()


def commit_one(store: Store) -> None:
    store._backend.apply(Changes({DATA: {b"k0500": b"v"}}, b""))


def mislead(file) -> None:
    data, size = bytearray(file.read_bytes()), 4096
    branches = [page for page in range(2 * size, len(data), size) if struct.unpack_from("<H", data, page + 10)[0] == 1]
    assert branches
    for page in branches:
        (lower,) = struct.unpack_from("<H", data, page + 12)
        for node in struct.unpack_from(f"<{(lower - 16) // 2}H", data, page + 16):
            struct.pack_into("<HH", data, page + node, 0xFFFF, 0xFF)
    file.write_bytes(data)


def test_a_file_that_was_cut_short_is_refused_before_it_is_mapped(tmp_path):
    store = Store.open(LmdbBackend(tmp_path, durability="os"))
    store.write(b"k", bytes(100_000), Timestamp(1, 0))
    commit(store)
    store.close()
    file = tmp_path / "data.mdb"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StorageError, match=r"data\.mdb: cut short, .* move .* away and start again"):
        LmdbBackend(tmp_path)


def test_a_full_map_grows_and_nothing_is_lost(tmp_path):
    store = Store.open(LmdbBackend(tmp_path, map_size=64 * 1024, durability="os"))
    for i in range(200):
        store.write(b"k%03d" % i, bytes(10_000), Timestamp(i + 1, 0))
        if i % 50 == 0:
            commit(store, i)
    commit(store, 200)
    assert store.scan(b"", b"", 1000)[0][-1].key == b"k199"
    store.close()
    store = Store.open(LmdbBackend(tmp_path, map_size=64 * 1024, durability="os"))
    assert len(store.scan(b"k", b"", 1000)[0]) == 200
    store.close()


@pytest.mark.parametrize("error", [lmdb.DiskError("No space left on device"), lmdb.Error(os.strerror(errno.EDQUOT))])
def test_a_failed_commit_can_be_repeated(tmp_path, monkeypatch, error):
    backend = LmdbBackend(tmp_path, durability="os")
    store = Store.open(backend)
    store.write(b"k", b"v", Timestamp(1, 0))
    assert store.freeze(1)

    def full(changes):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_apply", full)
        with pytest.raises(NoSpace, match=str(error)):
            store.commit()
    assert store.get(b"k").value == b"v" and not store.freeze(2)
    store.commit()
    store.thawed()
    assert store.get(b"k").value == b"v" and store.position == 1
    store.close()


def test_a_commit_of_which_a_part_found_room_can_be_repeated(tmp_path, monkeypatch):
    """LMDB calls that an error of the device; where there is room it is one."""
    backend = LmdbBackend(tmp_path, durability="os")
    changes = Changes({DATA: {b"k%03d" % i: bytes(3000) for i in range(100)}}, b"")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with monkeypatch.context() as patch:
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(tmp_path / "data.mdb") + 100_000, limits[1]))
        try:
            with pytest.raises(StorageError, match=os.strerror(errno.EIO)) as raised:
                backend.apply(changes)
            assert not isinstance(raised.value, NoSpace)
            patch.setattr(os, "posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "full")))
            with pytest.raises(NoSpace, match=os.strerror(errno.EIO)):
                backend.apply(changes)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert backend.last(DATA) is None
    backend.apply(changes)
    backend.refresh()
    assert backend.last(DATA) == b"k099"
    backend.close()


def test_an_environment_is_not_closed_under_a_commit(tmp_path):
    backend = LmdbBackend(tmp_path, durability="os")
    entered, gate = threading.Event(), threading.Event()

    def write(tables):
        entered.set()
        assert gate.wait(60)
        tables.put(DATA, b"k", b"v")

    committing = threading.Thread(target=backend.apply, args=(Changes({}, b"", write),))
    closing = threading.Thread(target=backend.close)
    committing.start()
    assert entered.wait(60)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.set()
    committing.join()
    closing.join()
    backend = LmdbBackend(tmp_path, durability="os")
    assert backend.get(DATA, b"k") == b"v"
    backend.close()


def test_two_processes_cannot_share_a_directory(tmp_path):
    first = LmdbBackend(tmp_path)
    with pytest.raises(StorageError, match="in use by another process"):
        LmdbBackend(tmp_path)
    first.close()
    LmdbBackend(tmp_path).close()


def test_reads_and_writes_go_on_while_a_commit_runs(tmp_path):
    """Commits, growing the map over and over, in one thread; the loop reads, scans and writes in the other."""
    store = Store.open(LmdbBackend(tmp_path, map_size=64 * 1024, durability="os"))
    expected: dict[bytes, bytes] = {}
    time = 0
    for round_ in range(20):
        for i in range(40):
            time += 1
            key, value = b"k%02d" % (i * 7 % 50), b"%d" % time * 50
            store.write(key, value, Timestamp(time, 0))
            expected[key] = value
        assert store.freeze(round_)
        thread = threading.Thread(target=store.commit)
        thread.start()
        checks = 0
        while thread.is_alive() or not checks:
            time += 1
            key = b"k%02d" % (time % 50)
            store.write(key, b"%d" % time, Timestamp(time, 0))
            expected[key] = b"%d" % time
            assert {row.key: row.value for row in store.scan(b"k", b"", 100)[0]} == expected
            assert all(store.get(k).value == v for k, v in expected.items())
            checks += 1
        thread.join()
        store.thawed()
        assert {row.key: row.value for row in store.scan(b"k", b"", 100)[0]} == expected
    store.close()


def test_notes_that_went_since_the_last_commit_leave_room_for_others():
    store = Store.open(MemoryBackend())
    for name in (b"n1", b"n2", b"n3"):
        store.set_note(name, b"kept")
    store.freeze(1)
    store.commit()
    store.thawed()
    for name in (b"n1", b"n2"):
        store.set_note(name, None)
    assert store.notes(b"n", 1) == [(b"n3", b"kept")]


@pytest.mark.parametrize("seed", range(20))
def test_notes_are_those_of_a_map_in_whichever_layer_they_are(seed: int):
    rng, store, expected = random.Random(seed), Store.open(MemoryBackend()), dict[bytes, bytes]()
    for position in range(1, 120):
        key = rng.choice((b"a", b"ab", b"b")) + bytes([rng.randrange(6)])
        value = rng.choice((None, b"%d" % position))
        store.set_note(key, value)
        expected.pop(key, None)
        if value is not None:
            expected[key] = value
        store.reached(position, Timestamp(position, 0))
        if rng.random() < 0.1 and store.freeze(position) and rng.random() < 0.5:
            store.commit()
            store.thawed()
        prefix, limit = rng.choice((b"", b"a", b"ab", b"b", b"c")), rng.choice((0, 1, 3))
        below = rng.choice((b"", b"", b"ab", b"b\3"))
        found = sorted((k, v) for k, v in expected.items() if k.startswith(prefix) and (not below or k < below))
        assert store.notes(prefix, limit, below) == (found[:limit] if limit else found)


def test_who_asks_what_is_attached_to_a_lease_does_not_pay_for_all_notes_that_are_not_committed():
    """Each put with a lease asks: with ten thousand of them in the buffer one took two milliseconds."""

    def seconds(many: int) -> float:
        store = Store.open(MemoryBackend())
        for number in range(many):
            store.write(b"key %d" % number, b"v", Timestamp(1, 0), None, b"%016d" % number)
        return min(timeit.repeat(lambda: store.attached(b"%016d" % 7), number=10, repeat=5))

    assert seconds(40_000) < 20 * seconds(200)


def test_the_first_notes_are_found_without_a_look_at_all_of_the_write_buffer():
    """Each step of a move asks for some: with as many as a second of it leaves it took 40 ms, and so did the status."""
    store, looked = Store.open(MemoryBackend()), []
    for number in range(1000):
        store.set_note(b"n%03d" % number, b"committed")
    store.freeze(1)
    for number in range(0, 1000, 2):
        store.set_note(b"n%03d" % number, None if number % 4 else b"new")
    begin = SortedKeys.begin

    def counted(self, start: bytes, reverse: bool = False):
        for key in begin(self, start, reverse):
            looked.append(key)
            yield key

    with patch.object(SortedKeys, "begin", counted):
        found = store.notes(b"n", 4)
    assert found == [(b"n000", b"new"), (b"n001", b"committed"), (b"n003", b"committed"), (b"n004", b"new")]
    assert len(looked) < 20


def test_of_what_is_remembered_anew_the_last_word_is_found_while_the_first_is_being_written():
    store, message_id = Store.open(MemoryBackend()), bytes(15) + b"1"
    store.remember(message_id, b"first")
    assert store.freeze(1)
    store.remember(message_id, b"last")
    assert store.remembered_after(b"", 9) == [(message_id, b"last")]
