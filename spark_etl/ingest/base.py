"""Where an audit begins, if what was before has gone: the run is cut, and what is left is audited as a run of its own.

Without an archive the oldest segments of journals are gone for good. Every message has one timestamp, and all shards
deliver in the order of timestamps. So what every shard delivered up to some timestamp is a consistent beginning, and
what is above it is whole, if it is above all that any journal has let go. The run is cut there, in all shards at once:
nothing below is accused or called valid. Positions count from the cut on, and so do those that clients were told.

What each shard held at the cut is its *base*. It stands for one writer per key, as a backup does with which a cluster
began: a key has the version that is read first above the cut, if that is of below: by a transaction, or by a client
whose read stands in no journal. All who read that key before it is written again must have read just that. Of the
values nothing is known, and they are compared with nothing.

The tables of what is left are written beside the others, in `base/`.
"""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvstore.core.bundles import last_version
from multicast.types import FINAL, Timestamp
from spark_etl import schemas
from spark_etl.ingest import parquet
from spark_etl.ingest.journals import arrow_schema
from spark_etl.ingest.tables import Manifest, SourceState, place, write_empty

DIRECTORY = "base"
_NEVER = (0, 0, 0, 0)
_ABSENT = bytes(16)
_AT_POSITIONS = ("deliveries", "outcomes", "reads", "writes", "moves", "given")
_OF_CLIENTS = ("history", "watched")


class Base(msgspec.Struct):
    """timestamp: of the last message below the cut. positions: shard -> how many deliveries are below. begins: of the
    replicas whose journals have let something go: where these begin (segment, journal offset)."""

    timestamp: bytes
    positions: dict[int, int]
    begins: dict[int, tuple[int, int]]

    @property
    def version(self) -> bytes:
        """The greatest that is below the cut."""
        return last_version(Timestamp.decode(self.timestamp)).encode()

    def sentences(self) -> list[str]:
        """For people."""
        told = [
            f"shard {shard} is judged from its base on, after delivery {position} and timestamp"
            f" {Timestamp.decode(self.timestamp)}: journals of before have gone, and there is no archive"
            for shard, position in sorted(self.positions.items())
        ]
        return [*told, "positions are counted from there"]


def above(out: Path, manifest: Manifest) -> tuple[Path, Manifest, Base | None]:
    """Where the tables are that are to be judged, what is there, and their base: those of `out`, without one, if
    nothing has gone."""
    base = _find(out, manifest)
    return (*_cut(out, manifest, base), base) if base else (out, manifest, None)


def _find(out: Path, manifest: Manifest) -> Base | None:
    """None if nothing is missing, or if nothing is known of what follows on it. Only of a cluster without an archive:
    what one should have can be put back."""
    if manifest.archived or not manifest.floors:
        return None
    there: dict[int, set[int]] = defaultdict(set)
    for row in (row for path in _paths(out, manifest, "segments") for row in pq.ParquetFile(path).read().to_pylist()):
        there[row["replica"]].add(row["segment"])
    floors = {r: floor for r, floor in manifest.floors.items() if not there[r].issuperset(range(floor[0]))}
    if not floors:
        return None
    firsts: dict[int, tuple[int, bytes]] = {}
    for path in _paths(out, manifest, "deliveries"):
        found = _final(path)
        for replica, (_, _, position) in floors.items():
            mine = found.filter(pc.and_(pc.equal(found["replica"], replica), pc.greater(found["position"], position)))
            if mine.num_rows:
                row = mine.slice(int(pc.index(mine["position"], pc.min(mine["position"])).as_py()), 1).to_pylist()[0]
                firsts[replica] = min(firsts.get(replica, (row["position"], row["gts"])), (row["position"], row["gts"]))
    if firsts.keys() != floors.keys():
        return None
    timestamp = max(gts for _, gts in firsts.values())
    positions: dict[int, int] = {}
    left = False
    for path in _paths(out, manifest, "deliveries"):
        found = _final(path)
        positions |= {shard: positions.get(shard, 0) for shard in pc.unique(found["shard"]).to_pylist()}
        below = found.filter(pc.less_equal(found["gts"], timestamp))
        left |= below.num_rows < found.num_rows
        for row in below.group_by("shard").aggregate([("position", "max")]).to_pylist():
            positions[row["shard"]] = max(positions[row["shard"]], row["position_max"])
    return Base(timestamp, positions, {r: floor[:2] for r, floor in floors.items()}) if left else None


def _cut(out: Path, manifest: Manifest, base: Base) -> tuple[Path, Manifest]:
    into = out / DIRECTORY
    shutil.rmtree(into, ignore_errors=True)
    write_empty(into)
    told = _Told(into)
    below = _answered_below(out, manifest, base)
    rows_of: dict[int, set[tuple[bytes, bytes]]] = defaultdict(set)
    apart: dict[bytes, _Apart] = {}
    for table in (*schemas.TABLES, *_OF_CLIENTS):
        for path in _paths(out, manifest, table):
            whole = pq.ParquetFile(path).read()
            if table in _AT_POSITIONS:
                whole = _above(whole, base)
            elif table == "lives":
                whole = _lives(whole, base)
            elif table == "segments":
                whole = _segments(whole, base)
            elif table == "history":
                whole = _history(whole, base, below)
                _read_apart(whole, base, apart)
            if table == "reads":
                for row in _base_rows(whole, base).to_pylist():
                    rows_of[row["shard"]].add((row["key"], row["version"]))
            told.add(table, path.stem, whole)
    owners = _owners(out, manifest, list(apart))
    for key, one in apart.items():
        shard = owners.get(key, min(one.shards or base.positions))
        rows_of[shard] |= {(key, version) for version in one.versions}
    for shard, replica in sorted({(row["shard"], row["replica"]) for row in told.segments}):
        told.add("writes", f"r{replica}-base", _written(shard, replica, sorted(rows_of[shard])))
    return into, told.manifest(manifest)


class _Apart(msgspec.Struct):
    """A key that was read by clients whose reads stand in no journal. shards: those that can have it."""

    versions: set[bytes]
    shards: set[int]


class _Told:
    """What was written."""

    def __init__(self, into: Path):
        self._into = into
        self._journals, self._histories = SourceState("journals", _NEVER), SourceState("histories", _NEVER)
        self.segments: list[dict[str, Any]] = []

    def add(self, table: str, stem: str, rows: pa.Table) -> None:
        if table == "segments":
            self.segments += rows.to_pylist()
        if not rows.num_rows:
            return
        name = f"{place(table)}/{stem}.parquet"
        state = self._histories if table in _OF_CLIENTS else self._journals
        parquet.write(rows, self._into / name)
        state.files[name] = parquet.seal(self._into / name)
        state.rows = dict(Counter(state.rows) + Counter({table: rows.num_rows}))

    def manifest(self, whole: Manifest) -> Manifest:
        return Manifest(
            whole.version, whole.run, whole.marks, {"": self._journals}, {"": self._histories}, archived=whole.archived
        )


def _paths(out: Path, manifest: Manifest, table: str) -> list[Path]:
    return [out / name for name in sorted(manifest.files()) if Path(name).parent.as_posix() == place(table)]


def _final(path: Path) -> pa.Table:
    found = pq.ParquetFile(path).read(["replica", "shard", "position", "gts", "stage"])
    return found.filter(pc.equal(found["stage"], FINAL))


def _limits(shards: Any, base: Base) -> pa.Array:
    """The position of the cut, row by row; of other shards 0."""
    names = pa.array(list(base.positions), pa.int32())
    places = pa.array(list(base.positions.values()), pa.int64())
    return pc.fill_null(places.take(pc.index_in(shards.cast(pa.int32()), value_set=names)), 0)


def _set(rows: pa.Table, column: str, values: Any) -> pa.Table:
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, rows.schema.field(at), values)


def _above(rows: pa.Table, base: Base) -> pa.Table:
    left = rows.filter(pc.greater(rows["position"], _limits(rows["shard"], base)))
    return _set(left, "position", pc.subtract(left["position"], _limits(left["shard"], base)))


def _lives(rows: pa.Table, base: Base) -> pa.Table:
    """A snapshot of below is the base, and nothing that was installed."""
    old = pc.and_(pc.equal(rows["event"], "installed"), pc.less_equal(rows["delivered"], _limits(rows["shard"], base)))
    left = rows.filter(pc.invert(pc.fill_null(old, False)))
    for column in ("delivered", "completed"):
        left = _set(left, column, pc.max_element_wise(pc.subtract(left[column], _limits(left["shard"], base)),
                                                      pc.if_else(pc.is_valid(left[column]), 0, None)))  # fmt: skip
    return left


def _segments(rows: pa.Table, base: Base) -> pa.Table:
    begins = {replica: segment for replica, (segment, _) in base.begins.items()}
    return rows.filter(
        pa.array([s >= begins.get(r, 0) for r, s in zip(*(rows[c].to_pylist() for c in ("replica", "segment")),
                                                        strict=True)], pa.bool_())
    )  # fmt: skip


def _answered_below(out: Path, manifest: Manifest, base: Base) -> pa.Array:
    """The ids of the operations that were answered with what is below the cut."""
    found = [pa.array([], pa.binary(16))]
    for path in _paths(out, manifest, "history"):
        rows = pq.ParquetFile(path).read(["id", "type", "version", "shard", "position", "places", "seen"])
        placed = pc.fill_null(pc.greater(rows["position"], 0), False)
        low = pc.fill_null(pc.less_equal(rows["version"], base.version), False)
        behind = pc.less_equal(rows["position"], _limits(pc.fill_null(rows["shard"], -1), base))
        places = _entries(rows["places"])
        limits = _limits(places["key"], base)
        lower = pc.and_(pc.greater(limits, 0), pc.less_equal(places["value"], limits))
        number = pa.array(range(rows.num_rows), pa.int64())
        old = pc.is_in(number, value_set=places.filter(lower)["row"])
        seen = pc.and_(pc.fill_null(pc.less_equal(rows["seen"], base.version), False),
                       pc.invert(pc.is_in(number, value_set=places["row"])))  # fmt: skip
        low = pc.or_(pc.or_(low, old), seen)
        gone = pc.and_(pc.equal(rows["type"], "ok"), pc.if_else(placed, pc.fill_null(behind, False), low))
        found.append(pc.unique(rows.filter(pc.fill_null(gone, False))["id"]))
    return pa.concat_arrays(found)


def _history(rows: pa.Table, base: Base, below: pa.Array) -> pa.Table:
    left = rows.filter(pc.invert(pc.is_in(rows["id"], value_set=below)))
    moved = pc.subtract(left["position"], _limits(pc.fill_null(left["shard"], -1), base))
    left = _set(left, "position", pc.if_else(pc.greater(left["position"], 0), moved, left["position"]))
    maps, places = left["places"].combine_chunks(), _entries(left["places"])
    moved = pc.subtract(places["value"], _limits(places["key"], base)).combine_chunks()
    shifted = pa.MapArray.from_arrays(
        maps.offsets, places["key"].combine_chunks(), moved, type=maps.type, mask=maps.is_null()
    )
    return _set(left, "places", shifted)


def _entries(maps: pa.ChunkedArray) -> pa.Table:
    """Of a column of maps: row, key and value of every entry."""
    pair = pa.struct([pa.field("key", maps.type.key_type, False), pa.field("value", maps.type.item_type)])
    lists = maps.combine_chunks().cast(pa.list_(pair))
    flat = pc.list_flatten(lists)
    row = pc.list_parent_indices(lists).cast(pa.int64())
    return pa.table({"row": row, "key": flat.field("key"), "value": flat.field("value")})


def _read_apart(history: pa.Table, base: Base, found: dict[bytes, _Apart]) -> None:
    """Adds what clients read above the cut that was written below it, without a transaction."""
    by_leader = pc.fill_null(pc.greater(history["position"], 0), False)
    apart = history.filter(pc.and_(pc.equal(history["type"], "ok"), pc.or_(by_leader, pc.is_valid(history["seen"]))))
    shards, places = apart["shard"].to_pylist(), apart["places"].to_pylist()
    reads = _entries(apart["reads"])
    old = pc.and_(pc.less_equal(reads["value"], base.version), pc.not_equal(reads["value"], _ABSENT))
    for row in reads.filter(pc.fill_null(old, False)).to_pylist():
        at = row["row"]
        may = {shards[at]} if shards[at] is not None else {shard for shard, _ in places[at]} or {*base.positions}
        one = found.setdefault(row["key"].encode(), _Apart(set(), may))
        one.versions.add(row["value"])
        one.shards &= may


def _owners(out: Path, manifest: Manifest, keys: Sequence[bytes]) -> dict[bytes, int]:
    """Which shard has these keys, as far as journals tell."""
    wanted, found = pa.array(keys, pa.binary()), dict[bytes, int]()
    for path in (path for table in ("reads", "writes") for path in _paths(out, manifest, table) if keys):
        rows = pq.ParquetFile(path).read(["key", "shard"])
        some = rows.filter(pc.is_in(rows["key"], value_set=wanted)).group_by(["key", "shard"]).aggregate([])
        found |= dict(zip(some["key"].to_pylist(), some["shard"].to_pylist(), strict=True))
    return found


def _base_rows(reads: pa.Table, base: Base) -> pa.Table:
    """Of what was read above the cut: shard, key and version of what was written below."""
    old = pc.and_(pc.less_equal(reads["version"], base.version), pc.not_equal(reads["version"], _ABSENT))
    return reads.filter(old).select(["shard", "key", "version"]).group_by(["shard", "key", "version"]).aggregate([])


def _written(shard: int, replica: int, rows: Sequence[tuple[bytes, bytes]]) -> pa.Table:
    """As rows of `writes`: nobody knows which values."""
    same: Mapping[str, Any] = {
        "replica": replica, "shard": shard, "segment": 0, "offset": 0, "position": 0, "value": None, "deleted": False,
        "digested": False,
    }  # fmt: skip
    told = [{**same, "gts": version, "id": version, "key": key, "version": version} for key, version in rows]
    return pa.Table.from_pylist(told, schema=arrow_schema(schemas.table_schema("writes")))
