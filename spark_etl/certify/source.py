"""The tables of a run as kernels read them: some columns, of some replicas."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_OF_REPLICA = re.compile(r"r(\d+)-")
NOBODY = -1


class Source(msgspec.Struct):
    """Parquet files: table -> replica -> paths; NOBODY: of no replica's. A worker must see them under the same names."""

    files: dict[str, dict[int, list[str]]]

    def read(self, table: str, columns: Sequence[str], replicas: Iterable[int] | None = None) -> pa.Table:
        """These columns, in the order of the files' names. replicas: only theirs."""
        found = self.files[table]
        wanted = sorted(found) if replicas is None else [NOBODY, *replicas]
        paths = [path for replica in wanted for path in found.get(replica, ())]
        return pa.concat_tables([pq.ParquetFile(path).read(list(columns)) for path in paths])


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
