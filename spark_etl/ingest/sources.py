"""Which files of a run an audit reads: journals, what of them has gone to an archive, client histories.

The archive of a cluster is where its `cluster.json` says, or `archive` beside that. It has a directory per journal,
named after the journal's first life (`multicast.retention`); one of another life is of a disk that was lost. Archive
and journal are read as one. A segment that is in both must be the same.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from multicast import records, segments
from multicast.records import HEADER_BYTES
from multicast.segments import FLOOR, SEGMENT_NAME, Floor

_BEGINNING_BYTES = 64 * 1024
_CHUNK = 4 * 1024 * 1024
_REPLICAS_MAX = 2**31
_PLACE = re.compile(r"replicas/(\d+)/journal[-\d]*/journal-(\d{8})\.seg$")


class Unreadable(Exception):
    """There is nothing to work on; the text says what is missing, and what to do."""


class SegmentFile(msgspec.Struct, frozen=True):
    """A journal segment to read. mark: the journal offset up to which its replica vouched, None if unknown. twin: where
    the archive has it, too; empty if it does not."""

    path: str
    name: str
    replica: int
    number: int
    last: bool
    mark: int | None
    twin: str = ""

    @property
    def home(self) -> str:
        """Its name as long as it is not archived."""
        return f"replicas/{self.replica}/journal/{segments.segment_name(self.number)}"


def find_segments(run: Path) -> list[SegmentFile]:
    """Every journal segment of a run directory, by replica and number."""
    found: list[SegmentFile] = []
    archive = _archive(run)
    for replica, journal in _journals(run):
        mark = _read_mark(journal / "mark")
        paths, twins = _segments(journal), {}
        if archive is not None and (life := _life(journal)) is not None:
            twins = _segments(archive / "replicas" / str(replica) / f"journal-{life}")
        numbers = sorted({*paths, *twins})
        for number in numbers:
            path = paths.get(number, twins.get(number, journal))
            twin = str(twins[number]) if number in paths and number in twins else ""
            name = str(path.relative_to(run)) if path.is_relative_to(run) else str(path)
            found.append(SegmentFile(str(path), name, replica, number, number == numbers[-1], mark, twin))
    return sorted(found, key=lambda segment: (segment.replica, segment.number))


def find_floors(run: Path) -> dict[int, tuple[int, int, int]]:
    """replica -> (number of its journal's oldest segment, that one's offset, highest delivery before), as its journal
    says; only of journals that have let something go."""
    floors = {replica: _floor(journal) for replica, journal in _journals(run)}
    return {replica: (floor.segment, floor.base, floor.position) for replica, floor in floors.items() if floor.base}


def gone(known: Iterable[str], found: Iterable[SegmentFile], floors: dict[int, tuple[int, int, int]]) -> list[str]:
    """Which segments that were known by these names are no longer there, because their journals have let them go."""
    there = {(segment.replica, segment.number) for segment in found}
    names = []
    for name in known:
        if match := _PLACE.search(name):
            replica, number = int(match[1]), int(match[2])
            if (replica, number) not in there and number < floors.get(replica, (0, 0, 0))[0]:
                names.append(name)
    return names


def same(one: Path, other: Path) -> bool:
    """Whether these files have the same content."""
    with one.open("rb") as first, other.open("rb") as second:
        while chunk := first.read(_CHUNK):
            if chunk != second.read(_CHUNK):
                return False
        return not second.read(1)


def find_histories(run: Path) -> list[Path]:
    """Every client history of a run directory. OSError if nobody can say which there are."""
    return lines_in(run / "history")


def lines_in(directory: Path) -> list[Path]:
    """The files of JSON lines in a directory, if it is there. OSError if it cannot be listed: `glob` would find none.
    """
    found = directory.iterdir() if directory.is_dir() else ()
    return sorted(path for path in found if path.name.endswith(".jsonl"))


def status(path: Path) -> os.stat_result:
    """Of a file. OSError if there is none, or if it is something else: reading might never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a file", str(path))
    return found


def _journals(run: Path) -> list[tuple[int, Path]]:
    found = []
    replicas = run / "replicas"
    if replicas.is_dir():
        os.listdir(replicas)  # OSError if it cannot be listed: `glob` would find none
    for journal in sorted(replicas.glob("*/journal")):
        name = journal.parent.name
        if name.isdecimal() and name == str(int(name)) and int(name) < _REPLICAS_MAX:
            found.append((int(name), journal))
    return found


def _segments(directory: Path) -> dict[int, Path]:
    paths = sorted(path for path in directory.glob("journal-*.seg") if SEGMENT_NAME.fullmatch(path.name))
    return {int(path.name[8:16]): path for path in paths}


def is_archived(run: Path) -> bool:
    """Unless its configuration says that nothing is kept."""
    return _configured(run) != "none"


def _configured(run: Path) -> Any:
    path = run / "cluster.json"
    try:
        status(path)
        return msgspec.json.decode(path.read_bytes())["archive"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):  # msgspec's errors are ValueErrors
        return "archive"


def _archive(run: Path) -> Path | None:
    """None if there is none."""
    configured = _configured(run)
    archive = run / configured if isinstance(configured, str) and configured != "none" else None
    return archive if archive is not None and (archive / "replicas").is_dir() else None


def _life(journal: Path) -> int | None:
    """The incarnation of the process that began this journal (`Journal.life`); None if it does not say."""
    if life := _floor(journal).life:
        return life
    path = journal / segments.segment_name(0)
    try:
        status(path)
        with path.open("rb") as file:
            data = file.read(_BEGINNING_BYTES)
    except OSError:
        return None
    for found in records.scan(data, HEADER_BYTES):
        if not isinstance(found, records.Damage) and found[1] == records.STARTED:
            try:
                return int(records.decode_body(records.STARTED, found[2]).incarnation)
            except records.JournalError:
                return None
    return None


def _floor(journal: Path) -> Floor:
    path = journal / FLOOR
    return segments.decode(path.read_bytes() if path.is_file() else b"", Floor) or Floor()


def _read_mark(path: Path) -> int | None:
    """Up to where syncing had returned (`multicast.journal`): 8 bytes and their CRC. None if unknown."""
    data = path.read_bytes() if path.is_file() else b""
    if len(data) != 12 or zlib.crc32(data[:8]).to_bytes(4, "big") != data[8:]:
        return None
    return int.from_bytes(data[:8], "big")
