"""What leaves a journal: only what stands elsewhere, and where an archive is wanted, only what is in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from multicast import records
from multicast.journal import Journal
from multicast.records import JournalError, encode_record
from multicast.retention import Retention
from multicast.runtime.disk import FileDisk
from multicast.segments import segment_name
from multicast.simulation.disk import SimulatedDisk
from multicast.types import FINAL, AppMessage, Timestamp


def opened(disk: SimulatedDisk) -> Journal:
    return Journal(disk, b"c" * 16, 0, 1, 300)


def written(deliveries: int) -> Journal:
    journal = opened(SimulatedDisk())
    started = records.Started(77, 1, 0, {0: (1,)}, "p", "fsync", 0)
    for number in range(1, deliveries + 1):
        message = AppMessage(number.to_bytes(16, "big"), (0,), b"p" * 40, 0)
        delivery = records.Delivered(number, Timestamp(number, 0), FINAL, False, message, 0)
        first = (started,) if number == 1 else ()
        journal.append(b"".join(map(encode_record, (*first, delivery, records.BatchEnd(number)))))
        journal.sync()
    return journal


class FullDisk(SimulatedDisk):
    """An archive without room, for so long."""

    full = True

    def replace(self, name: str, pieces: Iterable[bytes]) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().replace(name, pieces)


@pytest.mark.parametrize("position, covered, keep", [(0, 1, 0), (1, 0, 0), (1, 1, 1)])
def test_a_segment_stays_for_each_who_needs_it(position: int, covered: int, keep: int) -> None:
    """The application, the protocol, or a member that lags."""
    journal = written(20)
    everything = journal.end
    Retention(journal, keep * everything).advance(position * 20, covered * everything)
    assert (journal.begin, journal.floor) == (0, 0)
    Retention(journal, 0).advance(20, everything)
    assert journal.floor >= 14, "one segment stays, for what is written may refer to it"


def test_archive_and_journal_together_are_all_that_was_written() -> None:
    journal, archive = written(20), SimulatedDisk()
    whole = {name: journal.disk.read(name) for name, _ in journal.closed()}
    retention = Retention(journal, 0, lambda: archive)
    retention.advance(10, journal.end)
    assert {name: archive.read(name) for name in archive.list()} == whole
    assert retention.archived == journal.closed()[-1][1]
    assert 0 < journal.floor <= 10
    assert {name: journal.disk.read(name) for name, _ in journal.closed()}.items() < whole.items()


def test_nothing_goes_that_a_full_archive_does_not_take() -> None:
    journal, archive = written(20), FullDisk()
    retention = Retention(journal, 0, lambda: archive)
    retention.advance(20, journal.end)
    assert retention.trouble.startswith("journal-00000000.seg cannot be copied to the archive: ")
    assert "No space left" in retention.trouble
    assert (journal.floor, retention.archived) == (0, 0)
    archive.full = False
    retention.advance(20, journal.end)
    assert retention.trouble == ""
    assert journal.floor > 0


def test_who_ends_waits_for_one_segment_to_be_archived_and_not_for_all() -> None:
    journal = written(20)

    class Archive(SimulatedDisk):
        def replace(self, name: str, pieces: Iterable[bytes]) -> None:
            super().replace(name, pieces)
            retention.ending = True

    archive, (first, *_) = Archive(), journal.closed()
    retention = Retention(journal, 0, lambda: archive)
    retention.advance(20, journal.end)
    assert [*archive.list(), retention.archived] == [*first] and not retention.trouble


def test_an_archive_that_cannot_be_opened_is_a_trouble_and_not_the_end() -> None:
    journal = written(20)

    def refuse() -> SimulatedDisk:
        raise PermissionError("not yours")

    retention = Retention(journal, 0, refuse)
    retention.advance(20, journal.end)
    assert (retention.trouble, journal.floor) == ("not yours", 0)


def test_an_archive_that_was_away_is_found_again_and_has_everything_that_is_here(tmp_path: Path) -> None:
    """What it had before it went is in the journal still."""
    journal, place = written(20), tmp_path / "archive"
    retention = Retention(journal, 1 << 30, lambda: FileDisk(place))
    retention.advance(20, journal.end)
    shutil.rmtree(place)
    place.mkdir()
    retention.advance(20, journal.end)
    assert "cannot be copied to the archive" in retention.trouble and retention.archived == 0
    retention.advance(20, journal.end)
    retention.close()
    assert retention.trouble == "" and retention.archived == journal.closed()[-1][1]
    assert sorted(path.name for path in place.iterdir()) == [name for name, _ in journal.closed()]


def test_what_another_life_has_archived_is_not_copied_again_and_must_be_the_same() -> None:
    journal, archive = written(20), SimulatedDisk()
    Retention(journal, 1 << 30, lambda: archive).advance(20, journal.end)
    archive.truncate(segment_name(1), 70)
    journal = opened(journal.disk)  # type: ignore[arg-type]
    retention = Retention(journal, 0, lambda: archive)
    retention.advance(20, journal.end)
    assert retention.trouble == "journal-00000001.seg is in the archive, and it is not the same"
    assert 0 < journal.floor < 10, "up to there the archive has it"


def test_a_damaged_segment_is_not_taken_for_one_that_may_go() -> None:
    journal = written(20)
    disk = journal.disk
    assert isinstance(disk, SimulatedDisk)
    disk._files[segment_name(2)].data[80] ^= 1
    with pytest.raises(JournalError, match=r"journal-00000002\.seg, byte \d+: a record's checksum does not match"):
        Retention(journal, 0).advance(20, journal.end)
    assert journal.floor == 0


def test_a_damaged_segment_is_not_archived_as_if_it_were_whole() -> None:
    journal, archive = written(20), SimulatedDisk()
    journal.seal()
    names, first = [name for name, _ in journal.closed()], journal.closed()[0][1]
    whole = journal.disk.read(names[1])
    damaged = bytearray(whole)
    damaged[records.HEADER_BYTES + 30] ^= 1
    journal.disk.replace(names[1], (bytes(damaged),))
    retention = Retention(journal, 0, lambda: archive)
    retention.advance(20, journal.end)
    assert retention.trouble.startswith(f"{names[1]}, byte {records.HEADER_BYTES}: a record's checksum does not match")
    assert archive.list() == names[:1]
    assert journal.begin <= retention.archived == first
    journal.disk.replace(names[1], (whole,))
    retention.advance(20, journal.end)
    assert retention.trouble == "" and sorted(archive.list()) == names
