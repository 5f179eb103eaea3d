"""What an archive of journals holds, and how it is made smaller. By default it keeps everything.

What goes is what an audit cannot read any more: it says of which deliveries nothing is determined. A segment that is
still in its replica's journal stays, for the replica would copy it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kvstore.config import NO_ARCHIVE, ConfigError, load, replica_directory
from multicast.records import HEADER_BYTES, JournalError, SegmentHeader
from multicast.segments import SEGMENT_NAME

DAY_SECONDS = 86_400.0


def prune(
    directory: Path, keep_bytes: int | None, keep_days: float | None, dry: bool, say: Callable[[str], None]
) -> int:
    """Remove the oldest archived segments of a cluster until they take no more than `keep_bytes` and none is older than
    `keep_days`; None: any number. Those of another cluster with the same archive do not count. dry: only say which.
    Returns how many go. ConfigError: there is no archive."""
    config = load(directory)
    if not config.archive or config.archive == NO_ARCHIVE:
        raise ConfigError(f"{directory}: the cluster has no archive")
    segments = (directory / config.archive).glob("replicas/*/journal-*/*.seg")
    found: list[tuple[float, Path, int]] = []
    for path in segments:
        with suppress(FileNotFoundError):  # the same command on another machine was faster, here and below
            if path.parent.parent.name.isdigit() and _is_of(path, config.cluster):
                kept = path.stat()
                found.append((kept.st_mtime, path, kept.st_size))
    left = sum(size for _, _, size in found)
    oldest = time.time() - keep_days * DAY_SECONDS if keep_days is not None else 0.0
    count = 0
    for touched, path, size in sorted(found):
        if not touched < oldest and (keep_bytes is None or left <= keep_bytes):  # of no number of days all stays
            break
        if not SEGMENT_NAME.fullmatch(path.name) or _is_held(directory, path):
            continue
        say(f"{path}: {size} bytes")
        left -= size
        count += 1
        if not dry:
            path.unlink(missing_ok=True)
    return count


def _is_of(archived: Path, cluster: bytes) -> bool:
    """False: it is of a journal of another cluster, which has the same archive, as one that was restored by the
    configuration of the first may have. What cannot be read is nobody else's."""
    try:
        with archived.open("rb") as file:
            return SegmentHeader.decode(file.read(HEADER_BYTES), archived.name).cluster == cluster
    except JournalError:
        return True


def _is_held(directory: Path, archived: Path) -> bool:
    """Whether the journal of its replica has it, too."""
    replica = int(archived.parent.parent.name)
    return (replica_directory(directory, replica) / "journal" / archived.name).exists()
