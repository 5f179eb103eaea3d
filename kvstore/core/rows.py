"""A row as bytes, as stores and backups keep it: version, create version, lease, value. Pure.

The version takes 16 bytes. Its two highest bits, which no time needs, say what follows: the version that created the
key, 16 bytes, unless it is this one; and the lease that the key is attached to, 16 bytes, if there is one. The rest is
the value. Rows from before create versions were kept have neither: they read as created by what wrote them last.
"""

from __future__ import annotations

import struct

from kvstore.api.model import NO_LEASE, KeyValue
from multicast.types import Timestamp

VERSION_BYTES = 16
LEASE_BYTES = 16
_CREATED, _LEASED = 0x80, 0x40
_TIME = 0x3F
_ONE_VERSION, _TWO_VERSIONS = struct.Struct(">QQ"), struct.Struct(">QQQQ")
_TIMES = (1 << 62) - 1


def encode_row(version: bytes, create_version: bytes, lease: bytes, value: bytes) -> bytes:
    """The bytes of a row; both versions are given encoded."""
    if create_version == version and not lease:
        return version + value
    flags, more = version[0], b""
    if create_version != version:
        flags, more = flags | _CREATED, create_version
        if not lease:
            return b"%c%b%b%b" % (flags, version[1:], create_version, value)
    if lease:
        flags |= _LEASED
    return b"".join((bytes((flags,)), version[1:], more, lease, value))


def version_bytes(row: bytes) -> bytes:
    """The row's version, encoded; empty of an empty row, which says that there is none."""
    if not row or row[0] <= _TIME:
        return row[:VERSION_BYTES]
    return bytes((row[0] & _TIME,)) + row[1:VERSION_BYTES]


def origin_of(row: bytes) -> tuple[bytes, bytes]:
    """The row's create version, encoded, and its lease."""
    if row[0] <= _TIME:
        return row[:VERSION_BYTES], NO_LEASE
    created, lease, _ = _parts(row)
    return created, lease


def decode_row(key: bytes, row: bytes) -> KeyValue:
    """The inverse of `encode_row`."""
    flags = row[0]
    if flags <= _TIME:
        version = Timestamp(*_ONE_VERSION.unpack_from(row))
        return KeyValue(key, row[VERSION_BYTES:], version, version)
    if flags & _CREATED and not flags & _LEASED:
        time, tiebreak, created_time, created_tiebreak = _TWO_VERSIONS.unpack_from(row)
        version, create_version = Timestamp(time & _TIMES, tiebreak), Timestamp(created_time, created_tiebreak)
        return KeyValue(key, row[2 * VERSION_BYTES :], version, create_version)
    created, lease, value = _parts(row)
    return KeyValue(key, value, Timestamp.decode(version_bytes(row)), Timestamp.decode(created), lease)


def _parts(row: bytes) -> tuple[bytes, bytes, bytes]:
    """Create version, lease, value."""
    flags, at = row[0], VERSION_BYTES
    created, lease = version_bytes(row), NO_LEASE
    if flags & _CREATED:
        created, at = row[at : at + VERSION_BYTES], at + VERSION_BYTES
    if flags & _LEASED:
        lease, at = row[at : at + LEASE_BYTES], at + LEASE_BYTES
    return created, lease, row[at:]
