"""Many small files of one source into one: a run that is followed leaves some every few seconds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_etl.ingest import parquet

FILES_MAX = 32
"""Of one table, not counting the large ones."""
LARGE_BYTES = 8 * 1024 * 1024
_NAME = re.compile(r"(?P<stem>.+?)-b(?P<first>\d+)(-b(?P<last>\d+))?\.parquet")


def merged(out: Path, files: Mapping[str, parquet.Seal]) -> dict[str, parquet.Seal]:
    """The files of a source (by their names relative to `out`), those of a table in one if there are too many. What is
    merged is still there: it goes when nobody names it any more."""
    kept = dict(files)
    small: dict[Path, list[tuple[int, str]]] = defaultdict(list)
    for name, (size, _) in files.items():
        found = _NAME.fullmatch(Path(name).name)
        if found and size < LARGE_BYTES:
            small[Path(name).parent].append((int(found["first"]), name))
    for place, parts in small.items():
        if len(parts) > FILES_MAX:
            name = _merge(out, place, [name for _, name in sorted(parts)])
            for _, part in parts:
                del kept[part]
            kept[name] = parquet.seal(out / name)
    return kept


def _merge(out: Path, place: Path, parts: list[str]) -> str:
    first, last = (_NAME.fullmatch(Path(name).name) for name in (parts[0], parts[-1]))
    assert first and last
    name = f"{place.as_posix()}/{first['stem']}-b{first['first']}-b{last['last'] or last['first']}.parquet"
    whole = pa.concat_tables([pq.ParquetFile(out / part).read() for part in parts])
    parquet.write(whole, out / name)
    return name
