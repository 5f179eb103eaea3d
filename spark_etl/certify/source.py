"""The tables of a run as kernels read them: some columns, of some replicas."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_OF_REPLICA = re.compile(r"r(\d+)-")
NOBODY = -1
BATCH = 1 << 16
"""Rows of a table that are read at a time, where not all of it is wanted at once. A dictionary of keys is made anew for
each."""


class Source(msgspec.Struct):
    """Parquet files: table -> replica -> paths; NOBODY: of none, or several. Workers see them under the same names."""

    files: dict[str, dict[int, list[str]]]

    def read(
        self, table: str, columns: Sequence[str], replicas: Iterable[int] | None = None, coded: Sequence[str] = ()
    ) -> pa.Table:
        """These columns, in the order of the files' names. replicas: only theirs. coded: columns of bytes that are
        wanted as dictionaries."""
        found = self.files[table]
        if replicas is None:
            return _together([_columns(path, columns, coded) for path in self._paths(table)])
        mine = list(replicas)
        parts = [_columns(path, columns, coded) for one in mine for path in found.get(one, ())]
        return _together([*parts, *self._of(table, columns, mine, coded)])

    def where(self, table: str, replicas: Sequence[int], column: str, values: pa.Array) -> pa.Table:
        """All columns of these replicas' rows in which one has one of the values. Row groups are left out in which, by
        their statistics, there is none."""
        names, rising = self.columns(table), sorted(values.to_pylist())
        whose = pa.array(replicas, pa.int32())
        parts = [pq.read_schema(self._paths(table)[0]).empty_table()]
        for path in (path for one in [*replicas, NOBODY] for path in self.files[table].get(one, ())):
            file = pq.ParquetFile(path, memory_map=True)
            groups = [n for n in range(file.num_row_groups) if _may_have(file.metadata.row_group(n), column, rising)]
            for group in groups:
                rows = file.read_row_group(group, names, use_threads=False)
                parts.append(rows.filter(pc.and_(
                    pc.is_in(rows[column], value_set=values), pc.is_in(rows["replica"], value_set=whose)
                )))  # fmt: skip
        return _together(parts)

    def rows(self, table: str, places: np.ndarray, threads: bool = False) -> pa.Table:
        """All columns of some rows, by their places in `read`, which rise. threads: no other task is at work."""
        parts, first = [pq.read_schema(self._paths(table)[0]).empty_table()], 0
        for path in self._paths(table):
            file = pq.ParquetFile(path, memory_map=True)
            for group in range(file.num_row_groups):
                end = first + file.metadata.row_group(group).num_rows
                mine = places[np.searchsorted(places, first) : np.searchsorted(places, end)] - first
                if len(mine):
                    parts.append(file.read_row_group(group, use_threads=threads).take(pa.array(mine)))
                first = end
        return _together(parts)

    def batches(
        self, table: str, columns: Sequence[str], replica: int | None = None, coded: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """`read` of one replica, or of all that there is, some rows at a time."""
        found, every = self.files[table], self._paths(table)
        mixed = found.get(NOBODY, []) if replica not in (None, NOBODY) else []
        for path in every if replica is None else dict.fromkeys([*found.get(replica, ()), *found.get(NOBODY, ())]):
            file = pq.ParquetFile(path, read_dictionary=list(coded))
            wanted = list(dict.fromkeys([*columns, "replica"] if path in mixed else columns))
            for group in range(file.num_row_groups):  # a reader of several holds what it needs for all of them
                for batch in file.iter_batches(BATCH, row_groups=[group], columns=wanted, use_threads=False):
                    rows = pa.Table.from_batches([batch])
                    yield rows.filter(pc.equal(rows["replica"], replica)).select(columns) if path in mixed else rows

    def some(
        self, table: str, columns: Sequence[str], replica: int, wanted: tuple[str, pa.Array] | None
    ) -> pa.Table:
        """`read` of one replica. wanted: only rows in which this column has one of these values."""
        if wanted is None:
            return self.read(table, columns, [replica])
        name, values = wanted
        parts = (rows.filter(pc.is_in(rows[name], value_set=values)) for rows in self.batches(table, columns, replica))
        return _together([self.read(table, columns, []), *parts])

    def within(self, table: str, columns: Sequence[str], replica: int, positions: tuple[int, int]) -> pa.Table:
        """`read` of one replica, of the positions behind the first one, as far as the second."""
        low, high = positions
        wanted, parts = list(dict.fromkeys([*columns, "position", "replica"])), [self.read(table, columns, [])]
        found = self.files[table]
        for path in [*found.get(replica, ()), *(found.get(NOBODY, ()) if replica != NOBODY else ())]:
            file = pq.ParquetFile(path, memory_map=True)
            for group in range(file.num_row_groups):
                if _may_have(file.metadata.row_group(group), "position", range(low + 1, high + 1)):
                    rows = file.read_row_group(group, wanted, use_threads=False)
                    there = pc.and_(pc.greater(rows["position"], low), pc.less_equal(rows["position"], high))
                    parts.append(rows.filter(pc.and_(there, pc.equal(rows["replica"], replica))).select(columns))
        return _together(parts)

    def size(self, table: str, replicas: Iterable[int]) -> int:
        """How many rows there are, at most."""
        found = self.files[table]
        paths = [path for one in {*replicas, NOBODY} for path in found.get(one, ())]
        return sum(pq.read_metadata(path).num_rows for path in paths)

    def _paths(self, table: str) -> list[str]:
        found = self.files[table]
        return [path for whose in sorted(found) for path in found[whose]]

    def tells(self, table: str, columns: Sequence[str]) -> bool:
        """Whether any of these columns may have a value that is not null."""
        for path in self._paths(table):
            metadata = pq.ParquetFile(path).metadata
            for group in map(metadata.row_group, range(metadata.num_row_groups)):
                for leaf in map(group.column, range(group.num_columns)):
                    if not group.num_rows or leaf.path_in_schema.split(".")[0] not in columns:
                        continue
                    known = leaf.statistics
                    if known is None or not known.has_null_count or known.null_count < leaf.num_values:
                        return True
        return False

    def _of(
        self, table: str, columns: Sequence[str], replicas: Sequence[int], coded: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Theirs, in files of several."""
        for path in self.files[table].get(NOBODY, ()):
            mixed = _columns(path, dict.fromkeys([*columns, "replica"]), coded)
            yield mixed.filter(pc.is_in(mixed["replica"], value_set=pa.array(replicas, pa.int32()))).select(columns)

    def distinct(self, table: str, column: str, replicas: Sequence[int]) -> pa.Array:
        """The values of a column of bytes, once each, of these replicas."""
        parts = [pa.array([], pa.binary())]
        for mixed in self._of(table, [column], replicas):
            parts += mixed[column].chunks
        for path in (path for one in {*replicas} for path in self.files[table].get(one, ())):
            coded = pq.ParquetFile(path, read_dictionary=[column]).read([column], use_threads=False)[column]
            parts += [chunk.dictionary.cast(pa.binary()) for chunk in coded.chunks]
        return pc.unique(pa.concat_arrays(parts))

    def columns(self, table: str) -> list[str]:
        """All that there are."""
        return list(pq.read_schema(self._paths(table)[0]).names)


def _may_have(group: Any, column: str, rising: Sequence[Any]) -> bool:
    """Whether a row group may have one of these values."""
    for leaf in map(group.column, range(group.num_columns)):
        if leaf.path_in_schema == column and (known := leaf.statistics) is not None and known.has_min_max:
            return bisect_left(rising, known.min) < bisect_right(rising, known.max)
    return bool(group.num_rows)


def _columns(path: str, columns: Iterable[str], coded: Sequence[str] = ()) -> pa.Table:
    file = pq.ParquetFile(path, read_dictionary=list(coded), memory_map=True)
    return file.read(list(columns), use_threads=False)  # a task has one core


def _together(parts: Sequence[pa.Table]) -> pa.Table:
    """Some writers say of columns that they hold no nulls."""
    return pa.concat_tables(parts, promote_options="default")


def source(out: Path, names: Iterable[str]) -> Source:
    """Of the Parquet files of an extraction, by their names relative to `out`. Each table has one without rows."""
    files: dict[str, dict[int, list[str]]] = {}
    for name in sorted(names):
        path = Path(name)
        whose = _OF_REPLICA.match(path.name)
        replica = int(whose[1]) if whose else NOBODY
        table = path.parent.name.removeprefix("table=")
        files.setdefault(table, {}).setdefault(replica, []).append(str((out / name).absolute()))
    return Source(files)
