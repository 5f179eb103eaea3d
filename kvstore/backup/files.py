"""A backup on disk: what it consists of, and whether it is whole.

    TARGET/manifest.json    of what it is a backup, and each of its files with size and checksum
    TARGET/shard-N.rows     the rows of a shard in the order of their keys

A file of rows is a sequence of frames: length u32 | crc32 u32 | body, big-endian; a body is a msgpack array of
[key, row: see `kvstore.core.rows`]. What is not as it was written is a `BackupError`: file, byte and reason.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from kvstore.api.shard_map import ShardMap
from kvstore.config import json_text, rename, write_atomically
from kvstore.storage.store import row_digest
from multicast.types import GroupId, Timestamp

FORMAT = 2
"""1 had rows of version and value only (`kvstore.core.rows`): they are read as they are."""
MANIFEST = "manifest.json"

Rows = list[tuple[bytes, bytes]]

_FRAME = struct.Struct(">II")
_FRAME_BYTES_MAX = 64 * 1024 * 1024
_DIGEST_MASK = (1 << 128) - 1
_CHECKSUM_BYTES = 32
_encode_rows = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(Rows).decode


class BackupError(Exception):
    """A backup cannot be taken, read or restored; one line."""


@contextmanager
def made_beside(target: Path) -> Iterator[Path]:
    """Where a directory is to be made that is called `target` when this ends well. What is left of it otherwise goes.
    The place is nobody else's, nor what a process that was killed has left, whatever numbers processes have."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        beside = place / target.name
        yield beside
        try:
            rename(beside, target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise BackupError(f"{target} exists already, since a moment ago; it was not changed") from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


class ShardManifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """position: of the cut among the shard's deliveries. digest: of all these rows (`Store.state_digest`), checksum: of
    the file (BLAKE2b), both hexadecimal."""

    id: GroupId
    position: int
    digest: str
    rows: int
    bytes: int
    checksum: str

    @property
    def file(self) -> str:
        """Its name."""
        return rows_file(self.id)


class Manifest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """version: at which the rows stood, that of the cut or an earlier one; timestamp: of the cut's delivery. Both as
    text. checksum: of the rest."""

    format: int
    cluster_id: str
    protocol: str
    version: str
    timestamp: str
    dedup_window_ms: int
    shard_map: dict[str, Any]
    shards: list[ShardManifest]
    checksum: str = ""

    def sum(self) -> str:
        """What `checksum` should be."""
        return str(_hash(msgspec.json.encode(msgspec.structs.replace(self, checksum=""), order="sorted")).hexdigest())


def _hash(data: bytes = b"") -> Any:
    return blake2b(data, digest_size=_CHECKSUM_BYTES)


def rows_file(shard: GroupId) -> str:
    """Where the rows of a shard are."""
    return f"shard-{shard}.rows"


class RowWriter:
    """Writes the file of one shard, `directory`/shard-N.rows. rows, bytes: so far."""

    def __init__(self, directory: Path, shard: GroupId):
        self.shard = shard
        self.rows = self.bytes = 0
        self._path = directory / rows_file(shard)
        self._file = open(self._path, "xb")  # noqa: SIM115
        self._sum = _hash()
        self._digest = 0

    def add(self, rows: Rows) -> None:
        """The next ones. BackupError: they cannot be written."""
        body = _encode_rows(rows)
        frame = _FRAME.pack(len(body), zlib.crc32(body)) + body
        with self._writing():
            self._file.write(frame)
        self._sum.update(frame)
        self._digest += sum(row_digest(key, row) for key, row in rows)
        self.rows += len(rows)
        self.bytes += len(frame)

    def finish(self, position: int, digest: bytes) -> ShardManifest:
        """All are there, and durable on return. BackupError if that cannot be, or if they are not those of this digest;
        empty: nobody knows it."""
        with self._writing():
            self._file.flush()
            os.fsync(self._file.fileno())
        self.close()
        found = (self._digest & _DIGEST_MASK).to_bytes(16, "big")
        if digest not in (found, b""):
            raise BackupError(f"shard {self.shard}: what was fetched is not what the replica's digest says")
        return ShardManifest(
            id=self.shard, position=position, digest=found.hex(), rows=self.rows, bytes=self.bytes,
            checksum=self._sum.hexdigest(),
        )  # fmt: skip

    def close(self) -> None:
        """Also of one that is not finished."""
        with suppress(OSError):  # of what could not be written before
            self._file.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk, say, is no failure of whoever has sent the rows."""
        try:
            yield
        except OSError as error:
            raise BackupError(f"{self._path}: {error.strerror}") from None


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """The last file of a backup. Durable on return."""
    manifest.checksum = manifest.sum()
    write_atomically(directory / MANIFEST, json_text(manifest))


def read_manifest(directory: Path) -> Manifest:
    """BackupError if it is missing, damaged or of a format that is not known."""
    path = directory / MANIFEST
    try:
        raw = msgspec.json.decode(path.read_bytes())
        if isinstance(raw, dict) and raw.get("format") not in (1, FORMAT):
            raise BackupError(f"{path}: format {raw.get('format')!r} is not known; this program reads 1 to {FORMAT}")
        manifest = msgspec.convert(raw, Manifest)
        ShardMap.from_json(manifest.shard_map), Timestamp.parse(manifest.timestamp)
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}: this is no backup, or not a whole one") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BackupError(f"{path}: damaged: {error}") from None
    if manifest.sum() != manifest.checksum:
        raise BackupError(f"{path}: damaged: its checksum does not match")
    return manifest


def read_rows(directory: Path, shard: ShardManifest) -> Iterator[Rows]:
    """Frame by frame. BackupError, at the latest behind the last one, if the file is not as the manifest says."""
    path = directory / shard.file
    at, whole = 0, _hash()

    def damaged(why: str) -> BackupError:
        return BackupError(f"{path}, byte {at}: {why}")

    try:
        with open(path, "rb") as file:
            while head := file.read(_FRAME.size):
                length, crc = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, 0)
                if not 0 < length <= _FRAME_BYTES_MAX:
                    raise damaged("no frame begins here")
                body = file.read(length)
                if zlib.crc32(body) != crc:
                    raise damaged("a frame's checksum does not match" if len(body) == length else "it is cut short")
                whole.update(head)
                whole.update(body)
                try:
                    rows = _decode_rows(body)
                except msgspec.MsgspecError as error:
                    raise damaged(f"a frame is malformed: {error}") from None
                yield rows
                at += _FRAME.size + length
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}") from None
    if (at, whole.hexdigest()) != (shard.bytes, shard.checksum):
        raise BackupError(f"{path}: it is not the file of which {MANIFEST} has the size and the checksum")


def verify(directory: Path, progress: Callable[[str], None]) -> Manifest:
    """Read all of it. BackupError for whatever is wrong."""
    manifest = read_manifest(directory)
    shard_map = ShardMap.from_json(manifest.shard_map)
    for shard in manifest.shards:
        _verify_shard(directory, shard, shard_map)
        progress(f"{shard.file}: {shard.rows} rows, {shard.bytes} bytes: whole")
    if missing := set(shard_map.shards) - {shard.id for shard in manifest.shards}:
        raise BackupError(f"{directory / MANIFEST}: shard {min(missing)} has slots and no file")
    return manifest


def _verify_shard(directory: Path, shard: ShardManifest, shard_map: ShardMap) -> None:
    path = directory / shard.file
    count, digest, last = 0, 0, b""
    for rows in read_rows(directory, shard):
        for key, row in rows:
            if key <= last or len(row) < 16:
                raise BackupError(f"{path}: row {count} is out of order, or has no version")
            if shard_map.shard_of(key) != shard.id:
                raise BackupError(f"{path}: row {count} belongs to shard {shard_map.shard_of(key)} by its key")
            digest += row_digest(key, row)
            count, last = count + 1, key
    if count != shard.rows or digest & _DIGEST_MASK != int(shard.digest, 16):
        raise BackupError(f"{path}: its rows are not those of which {MANIFEST} has the number and the digest")
