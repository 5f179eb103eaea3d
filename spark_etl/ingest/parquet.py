"""How the tables are written as Parquet: so that they are small, and quick to read.

A dictionary is for what repeats: texts, keys, small numbers. Ids, versions and digests differ in every row, and have 16
bytes each: Arrow reads them several times faster if it knows that. Most of their bytes are those of the row before, so
that byte after byte of all rows (BYTE_STREAM_SPLIT) they are small. Long numbers rise: their differences are kept.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_etl.ingest.sources import status

Seal = tuple[int, int]
"""Of a file as it was written: its bytes, and their CRC-32. Parquet's own checksums are of pages; the end of the file,
which says where pages are and what stands in them, has none."""

_COMPRESSION = "lz4"  # as small as Snappy makes these columns, and read in half of the time
_CHUNK = 1024 * 1024


def writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Of a file with these columns."""
    return pq.ParquetWriter(path, schema, **_options(schema))


def write(rows: pa.Table, path: Path) -> None:
    """All of a file."""
    pq.write_table(rows, path, **_options(rows.schema))


def seal(path: Path) -> Seal:
    """Of a file as it is now. OSError."""
    status(path)
    size, crc = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return size, crc


def _options(schema: pa.Schema) -> dict[str, Any]:
    repeating, encodings = [], {}
    for column in schema:
        for name, kind in _leaves(column):
            if pa.types.is_fixed_size_binary(kind):
                encodings[name] = "BYTE_STREAM_SPLIT"
            elif pa.types.is_int64(kind):
                encodings[name] = "DELTA_BINARY_PACKED"
            else:
                repeating.append(name)
    return {"compression": _COMPRESSION, "use_dictionary": repeating, "column_encoding": encodings}


def _leaves(column: pa.Field) -> list[tuple[str, pa.DataType]]:
    """The columns of Parquet that one of Arrow becomes."""
    name, kind = column.name, column.type
    if pa.types.is_map(kind):
        return [(f"{name}.key_value.key", kind.key_type), (f"{name}.key_value.value", kind.item_type)]
    if pa.types.is_list(kind):
        return [(f"{name}.list.element", kind.value_type)]
    return [(name, kind)]
