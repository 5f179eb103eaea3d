"""The journal on real files: what a crash leaves is cut, what was promised is never missed silently."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from multicast import records
from multicast.disk import DiskFull
from multicast.journal import READ_BYTES, Gone, Journal
from multicast.recorder import Recorder
from multicast.records import HEADER_BYTES, JournalError, encode_record
from multicast.runtime.disk import OPEN_MAX, DirectoryInUse, FileDisk
from multicast.segments import segment_name, summary_name
from multicast.simulation.disk import SimulatedDisk
from multicast.types import FINAL, AppMessage, Timestamp

CLUSTER = b"c" * 16


def delivered(position: int, payload: bytes = b"p" * 40) -> records.Delivered:
    message = AppMessage(position.to_bytes(16, "big"), (0,), payload, 0)
    return records.Delivered(position, Timestamp(position, 0), FINAL, False, message, 0)


def batch(number: int, *contents: Any) -> bytes:
    return b"".join(map(encode_record, (*contents, records.BatchEnd(number))))


class Directory:
    """A journal's directory, opened and reopened."""

    def __init__(self, path: Path):
        self.path = path
        self.opened: list[Journal] = []
        self.disks: list[FileDisk] = []

    def open(
        self, cluster: bytes = CLUSTER, group: int = 0, process: int = 1, segment_bytes_max: int = 1 << 20
    ) -> Journal:
        """As a new process would, after the death of the one before."""
        self.close()
        disk = FileDisk(self.path)
        self.disks.append(disk)
        return Journal(disk, cluster, group, process, segment_bytes_max)

    def now_and_reopened(self, journal: Journal) -> Iterator[Journal]:
        """This journal, and then what a new process finds."""
        yield journal
        yield self.open(segment_bytes_max=journal.segment_bytes_max)

    def close(self) -> None:
        for disk in self.disks:
            disk.close()
        self.disks.clear()

    def segment(self, number: int = 0) -> Path:
        return self.path / segment_name(number)

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.path.iterdir()}

    def put_back(self, files: dict[str, bytes]) -> None:
        self.close()
        for path in self.path.iterdir():
            path.unlink()
        for name, data in files.items():
            (self.path / name).write_bytes(data)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    directory = Directory(tmp_path / "journal")
    yield directory
    directory.close()


def test_what_was_appended_is_read_back(directory: Directory) -> None:
    journal = directory.open()
    assert (journal.end, journal.cut_bytes, list(journal.tail(0))) == (0, 0, [])
    first, second = batch(1, records.Put(b"k", b"v")), batch(2, delivered(1))
    journal.append(first)
    journal.append(second)
    journal.sync()
    for again in directory.now_and_reopened(journal):
        assert again.end == len(first) + len(second)
        found = list(again.tail(0))
        assert [r for _, r in found] == [
            records.Put(b"k", b"v"),
            records.BatchEnd(1),
            delivered(1),
            records.BatchEnd(2),
        ]
        assert found[1][0] == len(first)
        assert found[-1][0] == again.end
        assert list(again.tail(len(first))) == found[2:]
        assert list(again.tail(again.end)) == []


def test_segments_roll_between_batches_and_join_without_a_seam(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=500)
    for number in range(1, 41):
        journal.append(batch(number, delivered(number)))
        journal.sync()
    reopened = directory.open(segment_bytes_max=500)
    assert len(list(directory.path.glob("*.seg"))) > 5
    assert reopened.end == journal.end
    found = list(reopened.tail(0))
    assert [r.position for _, r in found if isinstance(r, records.Delivered)] == list(range(1, 41))
    for at in (5, 30, 61):
        assert list(reopened.tail(found[at][0])) == found[at + 1 :]
    items, more = reopened.read_deliveries(17, 400)
    assert more and [d.position for d, _ in items] == list(range(17, 17 + len(items)))


def test_a_tail_torn_at_any_byte_of_the_last_batch_is_cut(directory: Directory) -> None:
    journal = directory.open()
    kept = batch(1, records.Put(b"a", b"1"), delivered(1))
    journal.append(kept)
    journal.sync()
    files = directory.files()
    last = batch(2, records.Put(b"b", b"2"), delivered(2), records.Completed(1, b"r", 0))
    for size in range(len(last)):
        directory.put_back(files)
        with directory.segment().open("ab") as file:
            file.write(last[:size])
        again = directory.open()
        assert (again.end, again.cut_bytes) == (len(kept), size)
        assert directory.segment().read_bytes() == files[segment_name(0)]
        again.append(last)
        again.sync()
        assert directory.open().end == len(kept) + len(last)


def test_a_torn_tail_is_cut_though_it_holds_what_looks_like_the_end_of_a_batch(directory: Directory) -> None:
    """A client has stored a piece of a journal."""
    journal = directory.open()
    kept, looks = batch(1, records.Put(b"a", b"1")), batch(2, records.Put(b"b", b"2"))
    journal.append(kept)
    journal.sync()
    files = directory.files()
    last = batch(2, delivered(1, looks), records.Put(b"c", looks + looks))
    for size in range(len(last)):
        directory.put_back(files)
        with directory.segment().open("ab") as file:
            file.write(last[:size])
        again = directory.open()
        assert (again.end, again.cut_bytes) == (len(kept), size)


def test_of_several_batches_appended_as_one_the_whole_ones_stay(directory: Directory) -> None:
    journal = directory.open()
    first, second = batch(1, delivered(1)), batch(2, delivered(2))
    journal.append(first + second)
    with directory.segment().open("r+b") as file:
        file.truncate(HEADER_BYTES + len(first) + len(second) - 1)
    again = directory.open()
    assert (again.end, again.cut_bytes) == (len(first), len(second) - 1)


def test_deliveries_of_an_unfinished_batch_are_neither_found_nor_in_the_way_of_what_takes_their_place(
    directory: Directory,
) -> None:
    journal = directory.open()
    large = b"x" * (1 << 18)
    journal.append(batch(1, delivered(1)))
    journal.sync()
    journal.append(batch(2, *[delivered(n, large) for n in range(2, 6)])[:-1])
    again = directory.open()
    assert again.read_deliveries(2) == ([], False)
    again.append(batch(2, *[records.Put(b"k", large) for _ in range(8)], delivered(2, b"other")))
    again.sync()
    assert again.offset_before(5) < again.end - 8 * len(large)
    assert [d.message.payload for d, _ in again.read_deliveries(2)[0]] == [b"other"]


def test_what_was_synced_is_on_disk_in_every_segment() -> None:
    disk, rng = SimulatedDisk(), random.Random(1)
    journal = Journal(disk, CLUSTER, 0, 1, 200)
    for number in range(1, 9):
        journal.append(batch(number, delivered(number)))
        if number == 5:
            journal.sync()
    synced = journal.synced
    disk.crash(rng, power=True, keeps=False)
    assert Journal(disk, CLUSTER, 0, 1, 200).end >= synced > 0


def test_a_torn_tail_that_was_promised_is_refused_and_left_alone(directory: Directory) -> None:
    journal = directory.open()
    first, second = batch(1, delivered(1)), batch(2, delivered(2))
    journal.append(first)
    journal.append(second)
    journal.sync()
    files = directory.files()
    for size in (0, len(first) // 2, len(first), len(first) + 1, len(first) + len(second) - 1):
        cut = {**files, segment_name(0): files[segment_name(0)][: HEADER_BYTES + size]}
        directory.put_back(cut)
        with pytest.raises(JournalError, match=r"seg, byte \d+: the journal ends \d+ bytes before what"):
            directory.open()
        assert directory.files() == cut


@pytest.mark.parametrize("mark", ["kept", "lost"])
def test_damage_before_the_end_is_refused_wherever_it_is(directory: Directory, mark: str) -> None:
    journal = directory.open()
    journal.append(batch(1, records.Put(b"a", b"1"), delivered(1)))
    journal.append(batch(2, delivered(2)))
    journal.sync()
    files = directory.files()
    if mark == "lost":
        del files["mark"]
    whole = files[segment_name(0)]
    for at in range(HEADER_BYTES, HEADER_BYTES + len(batch(1, records.Put(b"a", b"1"), delivered(1)))):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        directory.put_back({**files, segment_name(0): bytes(damaged)})
        with pytest.raises(JournalError, match=r"journal-00000000\.seg, byte \d+: .*move this replica's directory"):
            directory.open()
        assert directory.segment().read_bytes() == bytes(damaged)


def test_a_cut_in_an_earlier_segment_is_refused(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=300)
    for number in range(1, 21):
        journal.append(batch(number, delivered(number)))
        journal.sync()
    with directory.segment(1).open("r+b") as file:
        file.truncate(directory.segment(1).stat().st_size - 1)
    with pytest.raises(JournalError, match=r"journal-00000001\.seg, byte \d+: .*more of the journal follows"):
        directory.open(segment_bytes_max=300)


def test_a_missing_segment_is_refused(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=300)
    for number in range(1, 21):
        journal.append(batch(number, delivered(number)))
        journal.sync()
    files = directory.files()
    names = sorted(n for n in files if n.endswith(".seg"))
    for missing in (names[0], names[2], names[-1]):
        directory.put_back({n: d for n, d in files.items() if n != missing})
        with pytest.raises(JournalError, match=r"missing|before what this replica has promised"):
            directory.open(segment_bytes_max=300)
    directory.put_back({"mark": files["mark"]})
    with pytest.raises(JournalError, match="before what this replica has promised"):
        directory.open()


@pytest.mark.parametrize("header", [b"", b"AMCJ", bytes(HEADER_BYTES), b"AMCJRNL\n\0\4".ljust(HEADER_BYTES + 9, b"\0")])
def test_a_segment_that_was_being_created_is_begun_again(directory: Directory, header: bytes) -> None:
    journal = directory.open(segment_bytes_max=100)
    journal.append(batch(1, delivered(1)))
    journal.sync()
    directory.segment(1).write_bytes(header)
    again = directory.open(segment_bytes_max=100)
    assert (again.end, again.cut_bytes) == (journal.end, len(header))
    again.append(batch(2, delivered(2)))
    again.sync()
    assert [r.position for _, r in directory.open().tail(0) if isinstance(r, records.Delivered)] == [1, 2]


def test_another_cluster_another_process_and_a_newer_format_are_refused(directory: Directory) -> None:
    journal = directory.open()
    journal.append(batch(1, delivered(1)))
    journal.sync()
    with pytest.raises(JournalError, match=r"journal-00000000\.seg belongs to cluster 6363.*, not to 6464"):
        directory.open(cluster=b"d" * 16)
    with pytest.raises(JournalError, match="belongs to process 1 of group 0, not to process 2 of group 0"):
        directory.open(process=2)
    data = bytearray(directory.segment().read_bytes())
    data[9] += 1
    directory.segment().write_bytes(bytes(data))
    with pytest.raises(JournalError) as refused:
        directory.open()
    assert str(refused.value) == (
        "journal-00000000.seg: journal format 5 is newer than this program's 4; use a newer release"
    )


def test_a_mark_that_was_being_written_protects_nothing_and_hinders_nothing(directory: Directory) -> None:
    journal = directory.open()
    journal.append(batch(1, delivered(1)))
    journal.sync()
    for mark in (b"", b"\0" * 12, b"\xff" * 12, b"\xff" * 40):
        directory.close()
        (directory.path / "mark").write_bytes(mark)
        assert directory.open().end == journal.end


def test_what_a_killed_process_had_appended_but_not_synced_is_synced_before_it_counts(directory: Directory) -> None:
    journal = directory.open()
    journal.append(batch(1, delivered(1)))
    again = directory.open()
    assert again.end == journal.end > 0
    with directory.segment().open("r+b") as file:
        file.truncate(HEADER_BYTES)
    with pytest.raises(JournalError, match="before what this replica has promised"):
        directory.open()


def test_deliveries_are_read_with_their_outcomes(directory: Directory) -> None:
    journal = directory.open()
    for number in range(1, 301):
        early = records.Completed(number - 2, b"r%d" % (number - 2), 0) if number > 2 else records.Put(b"k", b"v")
        optimistic = delivered(number)
        optimistic.position, optimistic.stage = 0, 1
        journal.append(batch(number, optimistic, early, delivered(number, b"x" * 900)))
        journal.sync()
    assert len(journal._offsets) > 2, "the index has more than one entry"
    for source in directory.now_and_reopened(journal):
        for position in (1, 2, 77, 298, 300):
            items, more = source.read_deliveries(position)
            assert [(d.position, d.message.id) for d, _ in items] == [
                (p, p.to_bytes(16, "big")) for p in range(position, 301)
            ]
            assert [o for _, o in items] == [b"r%d" % p if p <= 298 else None for p in range(position, 301)]
            assert not more
        items, more = source.read_deliveries(100, bytes_max=5000)
        assert [d.position for d, _ in items] == [100, 101, 102, 103, 104, 105]
        assert more and all(o for _, o in items)
        assert source.read_deliveries(301) == ([], False)


@pytest.mark.parametrize("behind", [0, 5], ids=["at once", "later"])
def test_outcomes_are_found_no_more_than_can_be_told_at_a_time(directory: Directory, behind: int) -> None:
    """A delivery that counts the keys of a shard is small, and what it has seen is not."""
    journal = directory.open(segment_bytes_max=1 << 24)
    for number in range(1, 21):
        outcome = (records.Completed(number - behind, bytes(READ_BYTES // 3), 0),) if number > behind else ()
        journal.append(batch(number, delivered(number), *outcome))
    journal.sync()
    position, found = 1, []
    while position <= 20:
        items, _ = journal.read_deliveries(position)
        found += [d.position for d, _ in items]
        assert sum(len(o) for _, o in items if o) <= 2 * READ_BYTES
        position += len(items)
    assert found == list(range(1, 21))


def test_a_record_larger_than_what_is_read_at_a_time_is_read(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=8 << 20)
    payload = bytes(3 << 20)
    journal.append(batch(1, delivered(1, payload), delivered(2), delivered(3, payload)))
    journal.sync()
    again = directory.open(segment_bytes_max=8 << 20)
    assert [d.message.payload for d, _ in again.read_deliveries(1, 1 << 30)[0]] == [payload, b"p" * 40, payload]


def test_damage_that_happens_later_is_noticed_when_read(directory: Directory) -> None:
    journal = directory.open()
    journal.append(batch(1, delivered(1)) + batch(2, delivered(2)))
    journal.sync()
    data = bytearray(directory.segment().read_bytes())
    data[HEADER_BYTES + 30] ^= 1
    directory.segment().write_bytes(bytes(data))
    with pytest.raises(JournalError, match=rf"journal-00000000\.seg, byte {HEADER_BYTES}: a record's checksum"):
        journal.read_deliveries(1)
    os.truncate(directory.segment(), HEADER_BYTES)
    with pytest.raises(JournalError, match=rf"journal-00000000\.seg, byte {HEADER_BYTES}: the file ends"):
        journal.read_deliveries(1)


def test_reading_while_another_thread_appends_sees_a_prefix(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=3000)

    def write() -> None:
        for number in range(1, 401):
            journal.append(batch(number, delivered(number)))
            journal.sync()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while seen < 400:
        there = positions(journal, 1)
        assert there == list(range(1, len(there) + 1))
        assert len(there) >= seen
        seen = len(there)
    writer.join()
    assert journal.end == directory.open(segment_bytes_max=3000).end


def test_after_a_failed_write_nothing_is_written_any_more(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = directory.open()
    journal.append(batch(1, delivered(1)))
    journal.sync()

    def fail(name: str) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal.disk, "sync", fail)
    journal.append(batch(2, delivered(2)))
    with pytest.raises(OSError, match="Input/output error"):
        journal.sync()
    monkeypatch.undo()
    assert positions(journal, 1) == [1]
    with pytest.raises(JournalError, match="the journal failed before"):
        journal.append(batch(3, delivered(3)))
    with pytest.raises(JournalError, match="the journal failed before"):
        journal.sync()


def test_a_directory_belongs_to_one_process(directory: Directory) -> None:
    directory.open()
    with pytest.raises(DirectoryInUse, match="is in use by another process"):
        FileDisk(directory.path)
    directory.close()
    FileDisk(directory.path).close()


def test_a_mark_has_at_most_sixteen_bytes(directory: Directory) -> None:
    journal = directory.open()
    with pytest.raises(ValueError, match="at most 16 bytes, not 17"):
        journal.disk.write_small("mark", bytes(17))


def test_files_that_were_written_and_synced_do_not_stay_open(tmp_path: Path) -> None:
    """But what is not synced does, and the next sync is of it."""
    with closing(FileDisk(tmp_path)) as disk:
        before = len(os.listdir("/proc/self/fd"))
        disk.append("unsynced", b"1")
        for number in range(20):
            disk.append(f"{number}", b"1")
            disk.sync(f"{number}")
            disk.write_small("mark", b"%016d" % number)
        assert "unsynced" in disk._open
        assert len(os.listdir("/proc/self/fd")) <= before + OPEN_MAX
        disk.append("0", b"2")
        disk.sync("0")
        disk.remove("1")
        assert disk.read("0") == b"12" and disk.read("mark") == b"%016d" % 19


def test_no_file_is_closed_that_another_thread_has_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One makes a checkpoint while the other begins a segment: with one number for both it would cut the segment."""
    truncate = os.ftruncate

    def in_between(descriptor: int, size: int) -> None:
        other = threading.Thread(target=disk.append, args=("new", b"new"))
        other.start()
        other.join()
        truncate(descriptor, size)

    with closing(FileDisk(tmp_path)) as disk:
        for number in range(OPEN_MAX):
            disk.append(f"{number}", b"1")
            disk.sync(f"{number}")
        monkeypatch.setattr(os, "ftruncate", in_between)
        disk.truncate("0", 0)
        assert (disk.read("0"), disk.read("new")) == (b"", b"new")


def test_who_lists_the_files_does_not_read_on_from_where_another_thread_is(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path)
    try:
        disk.append("a", b"a")
        with os.scandir(disk._directory) as other:
            next(other)
            assert disk.list() == ["a"]
    finally:
        disk.close()


class SmallDisk(FileDisk):
    """room: bytes that can be appended; of what does not fit a part is written."""

    room = 1 << 30

    def append(self, name: str, data: bytes) -> None:
        fits = data[: self.room]
        super().append(name, fits)
        self.room -= len(fits)
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, "no room")


def test_a_file_that_finds_no_room_to_be_replaced_takes_none(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(1000)
        raise OSError(errno.ENOSPC, "no room")

    with closing(FileDisk(tmp_path)) as disk:
        disk.replace("floor", (b"old",))
        with pytest.raises(OSError, match="no room"):
            disk.replace("floor", pieces())
        assert (disk.list(), disk.read("floor")) == (["floor"], b"old")


@pytest.mark.parametrize("room", [0, 7, records.HEADER_BYTES + 7])
@pytest.mark.parametrize("segment_bytes_max", [1, 1 << 20], ids=["new segment", "same segment"])
def test_an_append_without_room_is_taken_back_and_may_be_tried_again(
    tmp_path: Path, room: int, segment_bytes_max: int
) -> None:
    disk = SmallDisk(tmp_path)
    journal = Journal(disk, CLUSTER, 0, 1, segment_bytes_max)
    journal.append(batch(1, delivered(1)))
    journal.sync()
    disk.room = room
    for _ in range(2):
        with pytest.raises(DiskFull):
            journal.append(batch(2, delivered(2)))
        disk.room = room
    assert journal.synced == journal.end
    disk.room = 1 << 30
    journal.append(batch(2, delivered(2)))
    journal.sync()
    end = journal.end
    disk.close()
    with closing(FileDisk(tmp_path)) as again:
        found = Journal(again, CLUSTER, 0, 1, segment_bytes_max)
        assert (found.end, found.cut_bytes) == (end, 0)
        assert [d.position for d, _ in found.read_deliveries(1)[0]] == [1, 2]


def written(directory: Directory, batches: int = 20) -> Journal:
    """A journal of so many deliveries, two or three of them in each segment."""
    journal = directory.open(segment_bytes_max=300)
    for number in range(1, batches + 1):
        started = [records.Started(77, 1, 0, {0: (1,)}, "p", "fsync", 0)] if number == 1 else []
        journal.append(batch(number, *started, delivered(number)))
        journal.sync()
    return journal


def positions(journal: Journal, first: int) -> list[int]:
    return [d.position for d, _ in journal.read_deliveries(first)[0]]


def test_closed_segments_with_a_summary_are_not_read_by_opening(directory: Directory) -> None:
    journal = written(directory)
    journal.seal()
    closed = sorted(directory.path.glob("*.seg"))[:-1]
    for path in closed:
        data = path.read_bytes()
        path.write_bytes(data[:HEADER_BYTES] + bytes(len(data) - HEADER_BYTES))
    again = directory.open(segment_bytes_max=300)
    assert (again.end, again.synced) == (journal.end, journal.synced)
    with pytest.raises(JournalError, match=r"journal-00000000\.seg, byte"):
        positions(again, 1)


def test_a_summary_that_is_missing_damaged_or_does_not_fit_is_not_believed(directory: Directory) -> None:
    journal = written(directory)
    journal.seal()
    path = directory.path / summary_name(1)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:8] + b"\x77" + whole[9:], (directory.path / summary_name(2)).read_bytes()):
        path.write_bytes(damaged)
        assert positions(directory.open(segment_bytes_max=300), 1) == list(range(1, 21))
    path.unlink()
    again = directory.open(segment_bytes_max=300)
    assert positions(again, 1) == list(range(1, 21))
    again.seal()
    assert path.read_bytes() == whole


def test_a_closed_segment_is_not_longer_or_shorter_than_its_summary_says(directory: Directory) -> None:
    journal = written(directory)
    journal.seal()
    with directory.segment(1).open("r+b") as file:
        file.truncate(directory.segment(1).stat().st_size - 1)
    with pytest.raises(JournalError, match=r"journal-00000001\.seg, byte \d+: .*more of the journal follows"):
        directory.open(segment_bytes_max=300)


def test_what_was_dropped_is_gone_and_the_rest_is_there(directory: Directory) -> None:
    journal = written(directory)
    assert journal.drop(20, journal.end) == 0, "nothing goes without a summary"
    journal.seal()
    assert journal.drop(9, journal.end) > 0
    for again in directory.now_and_reopened(journal):
        assert 7 <= again.floor <= 9 and again.begin > 0 and again.life() == 77
        assert not directory.segment(0).exists() and not (directory.path / summary_name(0)).exists()
        for first in (1, again.floor):
            with pytest.raises(Gone, match=f"after {again.floor}"):
                again.read_deliveries(first)
        assert positions(again, again.floor + 1) == list(range(again.floor + 1, 21))
        assert next(again.tail(again.begin))[1] == delivered(again.floor + 1)
        with pytest.raises(JournalError, match="the journal begins at offset"):
            next(again.tail(0))
        again.append(batch(21 + again.end, records.Put(b"k", b"v")))
        again.sync()
    last = directory.open(segment_bytes_max=300)
    last.seal()
    last.drop(20, last.end)
    assert last.floor >= 19
    last.append(batch(99, delivered(21)))
    last.sync()
    assert positions(directory.open(segment_bytes_max=300), last.floor + 1)[-1] == 21


def test_nothing_goes_that_ends_later_than_asked_or_holds_a_later_delivery(directory: Directory) -> None:
    journal = written(directory)
    journal.seal()
    middle = journal.offset_before(1) + (journal.end - journal.begin) // 2
    journal.drop(20, middle)
    assert 0 < journal.begin <= middle
    begin = journal.begin
    journal.drop(journal.floor, journal.end)
    assert journal.begin == begin


def test_a_delivery_goes_with_what_it_refers_to(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=300)
    recorder = Recorder(reach=300)
    far = AppMessage((900).to_bytes(16, "big"), (0,), b"kept" * 20, 0)
    recorder.record(records.Started(77, 1, 0, {0: (1,)}, "p", "fsync", 0))
    for number in range(1, 20):
        if number == 5:
            recorder.change([(b"key", far.payload, (far,))])
        recorder.deliver(delivered(number) if number != 7 else msgspec.structs.replace(delivered(7), message=far))
        journal.append(recorder.take(number))
        journal.sync()
    journal.seal()
    begins = set()
    for position in range(4, 20):
        journal.drop(position, journal.end)
        assert journal.floor <= position
        begins.add(journal.begin)
        found = {d.position: d.message.payload for d, _ in journal.read_deliveries(journal.floor + 1)[0]}
        assert list(found) == list(range(journal.floor + 1, 20))
        assert found.get(7, far.payload) == far.payload
    assert len(begins) > 3


def test_what_a_put_refers_to_stays_until_a_checkpoint_stands_for_the_put(directory: Directory) -> None:
    journal = directory.open(segment_bytes_max=300)
    recorder = Recorder(reach=300)
    twice = AppMessage((900).to_bytes(16, "big"), (0,), b"kept" * 20, 0)
    recorder.record(records.Started(77, 1, 0, {0: (1,)}, "p", "fsync", 0))
    ends = {}
    for number in range(1, 12):
        if number in (3, 5):
            recorder.change([(b"key %d" % number, twice.payload, (twice,))])
            ends[number] = recorder.offset
        recorder.deliver(delivered(number))
        journal.append(recorder.take(number))
        journal.sync()
    journal.seal()
    base = next(end for _, end in journal.closed() if end > ends[3])
    assert base < ends[5], "the second one stands in another segment"
    journal.drop(11, ends[5] - 1)
    assert records.Put(b"key 5", twice.payload) in [record for _, record in journal.tail(journal.begin)]
    journal.drop(11, journal.end)
    assert journal.begin >= base


def test_a_missing_segment_is_damage_unless_the_floor_says_that_it_was_dropped(directory: Directory) -> None:
    journal = written(directory)
    journal.seal()
    journal.drop(9, journal.end)
    files = directory.files()
    oldest = min(name for name in files if name.endswith(".seg"))
    second = sorted(name for name in files if name.endswith(".seg"))[1]
    for missing in (oldest, second):
        directory.put_back({n: d for n, d in files.items() if n != missing})
        with pytest.raises(JournalError, match=f"{missing} is missing; it must not run"):
            directory.open(segment_bytes_max=300)
    directory.put_back({n: d for n, d in files.items() if n != "floor"})
    with pytest.raises(JournalError, match=r"journal-00000000\.seg is missing"):
        directory.open(segment_bytes_max=300)
    directory.put_back({**files, "floor": files["floor"][:-1]})
    with pytest.raises(JournalError, match="floor is damaged: it says where the journal begins; it must not run"):
        directory.open(segment_bytes_max=300)
    directory.put_back({n: d for n, d in files.items() if not n.endswith((".seg", ".sum"))})
    with pytest.raises(JournalError, match=f"{oldest} is missing"):
        directory.open(segment_bytes_max=300)


def test_a_drop_that_a_crash_interrupts_is_finished_by_the_next_start() -> None:
    rng = random.Random(3)
    back = 0
    for _ in range(40):
        disk = SimulatedDisk()
        journal = Journal(disk, CLUSTER, 0, 1, 300)
        for number in range(1, 21):
            journal.append(batch(number, records.Started(77, 1, 0, {}, "p", "fsync", 0), delivered(number)))
            journal.sync()
        journal.seal()
        journal.drop(rng.randrange(5, 20), journal.end)
        disk.crash(rng, power=True)
        back += segment_name(0) in disk.list()
        again = Journal(disk, CLUSTER, 0, 1, 300)
        assert (again.floor, again.begin, again.end) == (journal.floor, journal.begin, journal.end)
        assert segment_name(0) not in disk.list()
        assert positions(again, again.floor + 1) == list(range(again.floor + 1, 21))
    assert back, "power brought a removed file back"
