"""The tables of a run as kernels read them: some columns, of some replicas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_OF_REPLICA = re.compile(r"r(\d+)-")
NOBODY = -1


class Source(msgspec.Struct):
    """Parquet files: table -> replica -> paths; NOBODY: of none, or several. Workers see them under the same names."""

    files: dict[str, dict[int, list[str]]]

    def read(self, table: str, columns: Sequence[str], replicas: Iterable[int] | None = None) -> pa.Table:
        """These columns, in the order of the files' names. replicas: only theirs."""
        found = self.files[table]
        if replicas is None:
            return _together([_columns(path, columns) for whose in sorted(found) for path in found[whose]])
        mine = list(replicas)
        parts = [_columns(path, columns) for one in mine for path in found.get(one, ())]
        return _together([*parts, *self._of(table, columns, mine)])

    def _of(self, table: str, columns: Sequence[str], replicas: Sequence[int]) -> Iterator[pa.Table]:
        """Theirs, in files of several."""
        for path in self.files[table].get(NOBODY, ()):
            mixed = _columns(path, dict.fromkeys([*columns, "replica"]))
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
        return list(pq.read_schema(next(path for paths in self.files[table].values() for path in paths)).names)


def _columns(path: str, columns: Iterable[str]) -> pa.Table:
    return pq.ParquetFile(path).read(list(columns), use_threads=False)  # a task has one core


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
