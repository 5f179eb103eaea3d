"""The tables of a run as kernels read them: some columns, of some replicas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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
        for path in found.get(NOBODY, ()):
            mixed = _columns(path, dict.fromkeys([*columns, "replica"]))
            parts.append(mixed.filter(pc.is_in(mixed["replica"], value_set=pa.array(mine, pa.int32()))).select(columns))
        return _together(parts)

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
