"""The tables of a large, correct run whose versions run against real time, in the extract's schema.

Every shard has a logical clock of its own that counts its transactions, and shards are loaded unevenly: the n-th has
1/n of the first one's transactions. At the end of every epoch one transaction touches all shards, and sets all clocks
to the greatest. In between, a version on a shard with little load is small however late it is, so most operations on
busy shards ended before the invocation of one that precedes them: the cheap certificate of real time fails for them.
Every message is a bundle of one transaction. The run is strictly serializable all the same: transactions take effect
one after another, in the order of their numbers, each within its interval, and every version order is that order.

Made with NumPy, some epochs at a time, so that a run of any length needs the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvstore.core.audit import APPLIED
from multicast.types import FINAL
from spark_etl import schemas
from spark_etl.certify.time import first_versions
from spark_etl.ingest import parquet, tables
from spark_etl.ingest.journals import arrow_schema
from spark_etl.ingest.tables import Manifest, SourceState, load_manifest, save_manifest

EPOCH = 2_000
"""Transactions between two that touch all shards."""
CHUNK = 100 * EPOCH
"""Transactions that are made at a time: a row group of each file."""
KEYS = 50_000
"""Of each shard."""
READS = WRITES = 2
"""Keys per shard that a transaction touches; it may draw the same one twice."""
GAP_US = 200
PROCESSES = 128
LATENCY_US_MAX = GAP_US * PROCESSES // 2 - GAP_US
"""Half of it before, half after the effect: a process invokes nothing before it was answered."""
BEGAN_US = 1_700_000_000_000_000
DIGEST_EVERY = 64
PAYLOAD_BYTES = 64
RECORD_BYTES = 1_000
"""Of journal offsets, between two positions."""
HISTORY = "history/bench.jsonl"

_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # splitmix64's


class Shape(msgspec.Struct, frozen=True):
    """How large. hot: the share of all operations that are on one key. stale: one transaction read the version before
    the one that the order says, and told its client so."""

    transactions: int
    shards: int = 8
    replicas: int = 3
    seed: int = 1
    hot: float = 0.0
    stale: bool = False


# -- columns ----------------------------------------------------------------------------------------------------------


def _binary(rows: np.ndarray) -> pa.Array:
    """16 bytes each, from pairs of 64-bit numbers."""
    data = np.ascontiguousarray(rows).astype(">u8")
    return pa.Array.from_buffers(pa.binary(16), len(rows), [None, pa.py_buffer(data)])


def _mixed(*numbers: Any) -> np.ndarray:
    """Pairs of 64-bit numbers that look random: equal for equal arguments."""
    with np.errstate(over="ignore"):
        out = np.zeros(np.broadcast_shapes(*(np.shape(n) for n in numbers)), np.uint64)
        halves = []
        for _ in range(2):
            for number in numbers:
                out = (out + np.asarray(number).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(_MIX[0])
                out = (out ^ (out >> np.uint64(27))) * np.uint64(_MIX[1])
                out ^= out >> np.uint64(31)
            halves.append(out)
    return np.column_stack(halves)


def _table(schema: pa.Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
    """Single values stand for every row; what is not given is null."""
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if not isinstance(value, (pa.Array, np.ndarray)):
            value = pa.nulls(rows, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), rows)
        arrays.append(pa.array(value, field.type) if isinstance(value, np.ndarray) else value.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


# -- the run ----------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """Some epochs at one shard; a row per transaction. number; everywhere: it touches all shards; gts: of its message.
    of_read, key_read, seen: row, key and version of every read; of_write, key_written: of every write."""

    shard: int
    number: np.ndarray
    everywhere: np.ndarray
    gts: np.ndarray
    version: np.ndarray
    position: np.ndarray
    of_read: np.ndarray
    key_read: np.ndarray
    seen: np.ndarray
    of_write: np.ndarray
    key_written: np.ndarray


class _Run:
    """What is carried from one chunk to the next: the clock, how far each shard is, and of each key the last version
    and the one before it (zeros: none)."""

    def __init__(self, shape: Shape):
        self._shape = shape
        self._rng = np.random.default_rng(shape.seed)
        self._clock = 0
        self.done = [0] * shape.shards
        self._last = np.zeros((shape.shards, KEYS, 2), np.uint64)
        self._older = np.zeros((shape.shards, KEYS, 2), np.uint64)
        self._stale = shape.stale

    def chunk(self, begin: int, end: int) -> list[_Part]:
        """The transactions with these numbers, shard by shard. begin: where an epoch does."""
        shape = self._shape
        number = np.arange(begin, end)
        everywhere = number % EPOCH == EPOCH - 1
        weights = 1 / np.arange(1, shape.shards + 1)
        shard = self._rng.choice(shape.shards, len(number), p=weights / weights.sum())
        epoch = (number - begin) // EPOCH
        mine = [(shard == n) | everywhere for n in range(shape.shards)]
        counts = np.array([np.bincount(epoch[here], minlength=int(epoch[-1]) + 1) for here in mine])
        most = counts.max(axis=0)
        clock = self._clock + np.concatenate(([0], np.cumsum(most)))
        self._clock = int(clock[-1])
        parts = []
        for n, here in enumerate(mine):
            first = np.concatenate(([0], np.cumsum(counts[n])))
            at = epoch[here]
            rank = np.arange(len(at)) - first[at] + 1
            total = everywhere[here]
            time = clock[at] + np.where(total, most[at], rank)
            owner = np.where(total, shape.shards, n)
            gts = np.column_stack([time + 1, owner + 1]).astype(np.uint64)
            position = self.done[n] + np.arange(1, len(at) + 1)
            self.done[n] += len(at)
            parts.append(self._accesses(n, number[here], total, gts, position))
        return parts

    def _keys(self, shard: int, rows: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Row and key of each access: `count` per row, without those drawn twice."""
        keys = self._rng.integers(0, KEYS, (rows, count))
        if shard == 0 and self._shape.hot:
            busiest = 1 / sum(1 / n for n in range(1, self._shape.shards + 1))  # this shard's share of all
            keys[self._rng.random((rows, count)) < self._shape.hot / busiest] = 0
        keys.sort(axis=1)
        new = np.ones(keys.shape, bool)
        new[:, 1:] = keys[:, 1:] != keys[:, :-1]
        return np.nonzero(new)[0], keys[new]

    def _accesses(
        self, shard: int, number: np.ndarray, everywhere: np.ndarray, gts: np.ndarray, position: np.ndarray
    ) -> _Part:
        version, rows = first_versions(gts), len(number)
        of_read, key_read = self._keys(shard, rows, READS)
        of_write, key_written = self._keys(shard, rows, WRITES)
        order = np.lexsort((of_write, key_written))
        key, wrote = key_written[order], version[of_write[order]]
        latest = np.searchsorted(key * rows + of_write[order], key_read * rows + of_read) - 1
        here = (latest >= 0) & (key[latest] == key_read)
        seen = np.where(here[:, None], wrote[latest], self._last[shard, key_read])
        follows = np.concatenate(([False], key[1:] == key[:-1]))
        before = np.where(follows[:, None], np.roll(wrote, 1, axis=0), self._last[shard, key])
        middle = (number[of_read] >= self._shape.transactions // 2) & ~everywhere[of_read] & seen.any(axis=1)
        if self._stale and middle.any():
            one = int(np.argmax(middle))
            seen[one] = before[latest[one]] if here[one] else self._older[shard, key_read[one]]
            self._stale = False
        ends = np.append(~follows[1:], True)
        self._older[shard, key[ends]] = before[ends]
        self._last[shard, key[ends]] = wrote[ends]
        return _Part(shard, number, everywhere, gts, version, position, of_read, key_read, seen, of_write, key_written)


# -- the tables -------------------------------------------------------------------------------------------------------


def _effect_us(number: np.ndarray) -> np.ndarray:
    return BEGAN_US + number * GAP_US


def _ids(number: np.ndarray, shape: Shape) -> np.ndarray:
    return np.column_stack([np.full(len(number), shape.seed, np.uint64), number.astype(np.uint64)])


def _destinations(part: _Part, shape: Shape) -> tuple[pa.Array, np.ndarray]:
    """And the first one of each."""
    sizes = np.where(part.everywhere, shape.shards, 1)
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    values = np.full(offsets[-1], part.shard, np.int32)
    inside = np.repeat(part.everywhere, sizes)
    values[inside] = np.tile(np.arange(shape.shards), int(part.everywhere.sum()))
    found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    return found, np.where(part.everywhere, 0, part.shard)


def _journals(part: _Part, shape: Shape, names: pa.Array) -> Iterator[tuple[str, int, dict[str, Any], int]]:
    """Table, replica, columns and rows of a shard's journals. names: of its keys."""
    destinations, first = _destinations(part, shape)
    ids, gts, version = _binary(_ids(part.number, shape)), _binary(part.gts), _binary(part.version)
    common = {
        "shard": part.shard, "segment": 0, "offset": part.position * RECORD_BYTES, "position": part.position, "id": ids,
    }  # fmt: skip
    rows, origin = len(part.number), first * shape.replicas
    kept = pa.array(part.position % DIGEST_EVERY == 0)
    digest = _binary(_mixed(part.shard, part.position))
    outcome = common | {
        "gts": version, "index": 0, "timestamp": gts, "status": APPLIED, "succeeded": True, "truths": b"",
        "effect": True,
        "content": _binary(_mixed(part.number, part.shard + 1)), "bundle": _binary(_mixed(part.number)),
        "state_digest": _if(kept, digest), "reason": "",
    }  # fmt: skip
    delivery = common | {
        "gts": gts, "stage": FINAL, "expired": False, "destinations": destinations, "origin": origin,
        "payload_bytes": PAYLOAD_BYTES, "single": False,
        "payload_crc": (_mixed(part.number)[:, 0] >> np.uint64(32)).astype(np.int64),
    }  # fmt: skip

    def of(row: np.ndarray, key: np.ndarray) -> dict[str, Any]:
        position = part.position[row]
        return common | {
            "position": position, "offset": position * RECORD_BYTES, "id": ids.take(pa.array(row)),
            "gts": version.take(pa.array(row)), "key": names.take(pa.array(key)),
        }  # fmt: skip

    read = of(part.of_read, part.key_read) | {"version": _binary(part.seen)}
    value = pa.array(part.number.astype(">u8").view("S8")).cast(pa.binary())
    written = of(part.of_write, part.key_written) | {
        "value": value.take(pa.array(part.of_write)), "deleted": False, "digested": False,
    }  # fmt: skip
    for replica in range(part.shard * shape.replicas, (part.shard + 1) * shape.replicas):
        lag = _mixed(part.number, replica + 1)[:, 0] % np.uint64(LATENCY_US_MAX // 2)
        when = {"replica": replica, "at": _effect_us(part.number) + lag.astype(np.int64)}
        yield "deliveries", replica, delivery | when, rows
        yield "outcomes", replica, outcome | when, rows
        yield "reads", replica, read | when, len(part.of_read)
        yield "writes", replica, written | when, len(part.of_write)
    mine = np.flatnonzero(first == part.shard)
    sent = {
        "replica": part.shard * shape.replicas, "shard": part.shard, "segment": 0, "id": ids.take(pa.array(mine)),
        "offset": part.position[mine] * RECORD_BYTES - 1, "destinations": destinations.take(pa.array(mine)),
        "at": _effect_us(part.number[mine]) - LATENCY_US_MAX // 4,
    }  # fmt: skip
    yield "submitted", part.shard * shape.replicas, sent, len(mine)


def _if(condition: pa.Array, values: pa.Array) -> pa.Array:
    """Null elsewhere."""
    at = np.where(np.asarray(condition), np.arange(len(values)), -1)
    return values.take(pa.array(at, mask=at < 0))


def _history(begin: int, end: int, parts: list[_Part], shape: Shape, names: list[pa.Array]) -> dict[str, Any]:
    """What the clients would have written down: two lines per transaction, of the numbers from `begin` up to `end`."""
    number = np.arange(begin, end)
    version = np.zeros((len(number), 2), np.uint64)
    for part in reversed(parts):
        version[part.number - begin] = part.version
    row = np.concatenate([part.number[part.of_read] - begin for part in parts])
    order = np.argsort(row, kind="stable")
    keys = pa.concat_arrays([names[p.shard].take(pa.array(p.key_read)) for p in parts]).cast(pa.string())
    seen = _binary(np.concatenate([part.seen for part in parts])[order])
    ends = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=len(number)))))
    told = pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys.take(pa.array(order)), seen)
    twice, answer = np.repeat(np.arange(len(number)), 2), np.tile([False, True], len(number))
    lag = _mixed(number, shape.seed) % np.uint64(LATENCY_US_MAX // 2)
    before, after = (half.astype(np.int64) for half in lag.T)
    at = np.column_stack([_effect_us(number) - before, _effect_us(number) + after]).reshape(-1)
    said = pa.array(np.where(answer, twice, 0), mask=~answer)
    return {
        "file": HISTORY, "line": 2 * begin + 1 + np.arange(2 * len(number)), "process": number[twice] % PROCESSES,
        "type": pa.array(["invoke", "ok"]).take(pa.array(answer.astype(np.int8))), "at_us": at,
        "id": _binary(_ids(number[twice], shape)), "f": "txn", "version": _binary(version).take(said),
        "succeeded": pa.array(answer, mask=~answer), "reads": told.take(said),
        "position": 0,
    }  # fmt: skip


def _small(done: list[int], shape: Shape) -> dict[str, list[dict[str, Any]]]:
    """Rows of the small tables. done: deliveries of each shard."""
    members = {str(s): [s * shape.replicas + n for n in range(shape.replicas)] for s in range(shape.shards)}
    end = BEGAN_US + shape.transactions * GAP_US + LATENCY_US_MAX
    lives, segments = [], []
    for shard, top in enumerate(done):
        for replica in members[str(shard)]:
            place = {"replica": replica, "shard": shard, "segment": 0}
            lives.append({
                **place, "offset": 0, "at": BEGAN_US, "event": "started", "incarnation": str(replica),
                "protocol": "bench", "durability": "none", "members": msgspec.json.encode(members).decode(),
            })  # fmt: skip
            stop = {"offset": (top + 1) * RECORD_BYTES, "at": end, "event": "stopped"}
            lives.append({**place, **stop, "delivered": top, "completed": top})
            name = f"replicas/{replica}/journal/journal-00000000.seg"
            segments.append({
                **place, "offset": 0, "file": name, "end": (top + 1) * RECORD_BYTES, "records": 2 * top + 2,
                "cluster": "bench",
            })  # fmt: skip
    return {"lives": lives, "segments": segments}


class _Files:
    """Parquet files, and how many rows each has, by table."""

    def __init__(self, out: Path):
        self._out = out
        self._open: dict[str, pq.ParquetWriter] = {}
        self.states: dict[str, SourceState] = {}

    def add(self, table: str, stem: str, rows: pa.Table) -> None:
        name = f"{tables.place(table)}/{stem}.parquet"
        if name not in self._open:
            self._open[name] = parquet.writer(self._out / name, rows.schema)
            self.states[name] = SourceState(table, (0, 0, 0, 0))
        self._open[name].write_table(rows)
        counts = self.states[name].rows
        self.states[name].rows = {table: counts.get(table, 0) + rows.num_rows}

    def close(self) -> None:
        for name, writer in self._open.items():
            writer.close()
            self.states[name].files = {name: parquet.seal(self._out / name)}


def generate(shape: Shape, out: Path) -> Manifest:
    """Write all tables to `out`, as an extraction would; if they are there, they stay."""
    name = f"bench {msgspec.json.encode(shape).decode()}"
    if (known := load_manifest(out)) is not None and known.run == name:
        return known
    out.mkdir(parents=True, exist_ok=True)
    tables.clear(out)
    tables.write_empty(out)
    run, files = _Run(shape), _Files(out)
    kinds = {table: arrow_schema(schemas.table_schema(table)) for table in schemas.TABLES}
    history = arrow_schema(schemas.HISTORY)
    keys = [pa.array([f"s{shard}/{key}".encode() for key in range(KEYS)]) for shard in range(shape.shards)]

    def write(one: tuple[str, int, dict[str, Any], int]) -> None:
        table, replica, columns, rows = one
        files.add(table, f"r{replica}-s00000000-b0", _table(kinds[table], columns, rows))

    with ThreadPoolExecutor() as aside:
        for begin in range(0, shape.transactions, CHUNK):
            end = min(begin + CHUNK, shape.transactions)
            parts = run.chunk(begin, end)
            for part in parts:
                list(aside.map(write, _journals(part, shape, keys[part.shard])))
            told = _history(begin, end, parts, shape, keys)
            files.add("history", "h0-b0", _table(history, told, 2 * (end - begin)))
    for table, rows in _small(run.done, shape).items():
        files.add(table, "bench", pa.Table.from_pylist(rows, schema=kinds[table]))
    files.close()
    marks: dict[int, int | None] = dict.fromkeys(range(shape.shards * shape.replicas))
    journals = {key: state for key, state in files.states.items() if state.name != "history"}
    histories = {key: state for key, state in files.states.items() if state.name == "history"}
    manifest = Manifest(schemas.SCHEMA_VERSION, name, marks, journals, histories)
    save_manifest(out, manifest)
    return manifest
