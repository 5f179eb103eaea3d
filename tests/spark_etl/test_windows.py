"""A long run is judged window by window as it is judged at once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_etl.bench import inputs
from spark_etl.bench.inputs import Shape, generate
from spark_etl.certify import precedence, runs, shards, source, windows
from spark_etl.certify.arrays import DOUBTS, Suspect, halves, index_in
from spark_etl.certify.proof import CLIENTS, PRECEDENCE, READS, Proof
from tests.amounts import tries
from tests.spark_etl import certified
from tests.spark_etl.random_runs import KNOWN, correct_run, random_run

RANDOM, MISSING = tries("RANDOM_RUNS", 6, 20), tries("RANDOM_RUNS", 6, 8)
"""Runs of each kind."""
KERNELS = ("shards.certify", "shards.other_keys", "runs.certify", "runs.certify_told")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often what was looked at window by window was proved, and how often it was left to the whole."""
    found: Counter[str] = Counter()
    why: list[str] = []

    def counted(module: Any, name: str) -> None:
        kernel: Callable[..., Any] = getattr(module, name)
        place = f"{module.__name__.rpartition('.')[2]}.{name}"

        def watched(*arguments: Any) -> Any:
            try:
                answer = kernel(*arguments)
            except DOUBTS as doubt:
                found[f"{place} left"] += 1
                why.append(f"{place}: {doubt}")
                raise
            found[f"{place} proved"] += 1
            return answer

        monkeypatch.setattr(module, name, watched)

    counted(shards, "certify")
    counted(shards, "other_keys")
    counted(runs, "certify")
    counted(runs, "certify_told")
    yield found
    print(Counter(why))


def both(prove: Callable[[], Proof], positions: int, batch: int) -> tuple[Proof, Proof]:
    """At once, and window by window."""
    whole = prove()
    with pytest.MonkeyPatch.context() as small:
        small.setattr(windows, "POSITIONS", positions)
        small.setattr(source, "BATCH", batch)
        return whole, prove()


def plain(proof: Proof) -> dict[str, Any]:
    """In which the order of slices says nothing."""
    return msgspec.structs.asdict(msgspec.structs.replace(proof, slices=sorted(proof.slices, key=repr)))


@pytest.mark.parametrize(
    ("positions", "batch"), [(1, 2), *(pytest.param(*sizes, marks=pytest.mark.full) for sizes in ((3, 2), (2, 100)))]
)
def test_random_runs_are_judged_alike(tmp_path: Path, told: Counter[str], positions: int, batch: int) -> None:
    runs = [run for run in KNOWN.values() if not run.lost] + [random_run(Random(seed))[0] for seed in range(RANDOM)]
    differing = []
    for run in runs:
        whole, bit_by_bit = both(certified.written(run, tmp_path), positions, batch)
        if plain(whole) != plain(bit_by_bit):
            differing.append((run, whole, bit_by_bit))
    assert not differing, differing[0]
    assert min(told[f"{name} proved"] for name in KERNELS) > 3 and told["shards.certify left"] > 3, told


def test_correct_runs_are_proved_window_by_window(tmp_path: Path, told: Counter[str]) -> None:
    runs = [run for seed in range(30) if (run := correct_run(Random(seed))).ops]
    for run in runs:
        whole, bit_by_bit = both(certified.written(run, tmp_path), 2, 3)
        assert plain(whole) == plain(bit_by_bit)
    assert min(told[f"{name} proved"] for name in KERNELS) > 1, told


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CHUNK", inputs.EPOCH)
    monkeypatch.setattr(inputs, "KEYS", 1_000)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("stale", [False, True])
def test_a_long_run_is_judged_alike(tmp_path: Path, told: Counter[str], stale: bool) -> None:
    manifest = generate(Shape(3 * inputs.EPOCH + 10, shards=3, replicas=2, stale=stale), tmp_path)
    whole, bit_by_bit = both(lambda: certified.of_tables(tmp_path, manifest), 500, 150)
    assert plain(whole) == plain(bit_by_bit) and whole.slices
    assert not any(name.endswith("left") for name in told), told


@pytest.mark.usefixtures("short")
def test_the_last_writes_are_carried_from_window_to_window(
    tmp_path: Path, told: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: they are not."""
    manifest = generate(Shape(inputs.EPOCH, shards=1, replicas=1), tmp_path)
    plainly = shards._plain
    monkeypatch.setattr(shards, "_plain", lambda writes: plainly(writes).slice(0, 0))
    whole, bit_by_bit = both(lambda: certified.of_tables(tmp_path, manifest), 500, 150)
    assert whole.holds(READS) and not bit_by_bit.holds(READS)


@pytest.mark.usefixtures("short")
def test_a_read_that_a_client_was_told_of_and_no_journal_has_is_found_in_its_window(
    tmp_path: Path, told: Counter[str]
) -> None:
    """Then all of it is looked at once more, at once."""
    manifest = generate(Shape(2 * inputs.EPOCH, shards=2, replicas=1), tmp_path)
    path = tmp_path / inputs.HISTORY.replace("bench.jsonl", "h0-b0.parquet")
    lines = pq.read_table(path)
    some = lines["reads"].to_pylist()
    row = next(n for n in range(len(some) - 1, 0, -1) if some[n])
    some[row] = [(key, bytes(15) + b"\1") for key, _ in some[row]]
    where = lines.schema.get_field_index("reads")
    pq.write_table(lines.set_column(where, "reads", pa.array(some, lines.schema.types[where])), path)
    whole, bit_by_bit = both(lambda: certified.of_tables(tmp_path, manifest), 500, 150)
    assert plain(whole) == plain(bit_by_bit) and whole.why[CLIENTS] == "another read"
    assert told["runs.certify_told left"] == told["runs.certify proved"] == 1, told


def test_rows_are_given_once_and_in_their_order(tmp_path: Path) -> None:
    manifest = generate(Shape(100, shards=1, replicas=1), tmp_path)
    of = source.source(tmp_path, manifest.files())
    rows = windows.Rows(of, "writes", ("key", "position"), 0)
    parts = [rows.upto(end)["position"].to_pylist() for end in (10, 10, 50, 1_000)]
    assert [one for part in parts for one in part] == of.read("writes", ["position"], [0])["position"].to_pylist()
    assert max(parts[0]) == 10 and not parts[1] and max(parts[2]) == 50 and rows.over


def test_what_was_multicast_again_later_is_suspect(tmp_path: Path) -> None:
    manifest = generate(Shape(100, shards=1, replicas=1), tmp_path)
    of = source.source(tmp_path, manifest.files())
    (path,) = of.files["submitted"][0]
    ids = halves(of.read("submitted", ["id"])["id"])
    of.files["submitted"][0].append(shutil.copy(path, str(tmp_path / "again")))
    sent = windows.Sent(of)
    assert sent.of(ids)[0].num_rows == 100
    with pytest.raises(Suspect):
        sent.rest([ids])


def one_that_was_answered_early(out: Path) -> Callable[[], Proof]:
    """The first transaction of the second window: before those of the first one were invoked."""
    manifest = generate(Shape(2 * inputs.EPOCH, shards=1, replicas=1), out)
    path = out / inputs.HISTORY.replace("bench.jsonl", "h0-b0.parquet")
    lines = pq.read_table(path)
    at = lines["at_us"].to_numpy().copy()
    first = 2 * (windows.TOGETHER * SHORT + SHORT // windows.MARKS)
    at[first : first + 2] -= 1_000_000
    pq.write_table(lines.set_column(lines.schema.get_field_index("at_us"), "at_us", pa.array(at)), path)
    return lambda: certified.of_tables(out, manifest)


SHORT = 500
"""Positions of a window."""


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("carried", [True, False])
def test_what_precedes_is_carried_from_window_to_window(
    tmp_path: Path, told: Counter[str], monkeypatch: pytest.MonkeyPatch, carried: bool
) -> None:
    """A planted bug: it is not."""
    prove = one_that_was_answered_early(tmp_path)
    if not carried:
        kernel = precedence.certify
        monkeypatch.setattr(runs.precedence, "certify", lambda *arguments: kernel(*arguments[:5]))
    whole, bit_by_bit = both(prove, SHORT, 150)
    assert whole.late and not whole.holds(PRECEDENCE) and told["runs.certify proved"] == (not carried)
    assert carried or bit_by_bit.holds(PRECEDENCE)
    assert not carried or plain(whole) == plain(bit_by_bit)


@pytest.mark.usefixtures("short")
def test_runs_with_missing_lines_are_judged_alike(
    tmp_path: Path, told: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What precedes is carried from shard to shard in a window of which no client has told, too."""
    monkeypatch.setattr(inputs, "EPOCH", 1_000)
    monkeypatch.setattr(inputs, "CHUNK", 1_000)
    manifest = generate(Shape(1_500, shards=2, replicas=1), tmp_path)
    path = tmp_path / inputs.HISTORY.replace("bench.jsonl", "h0-b0.parquet")
    lines = pq.read_table(path)
    column = lines.schema.get_field_index("at_us")
    time = np.repeat(halves(lines["version"].filter(pc.is_valid(lines["version"])))[:, 0].astype(np.int64), 2)
    delivered = source.source(tmp_path, manifest.files()).read("deliveries", ["id"], [0])
    first_shard = index_in(halves(lines["id"]), halves(delivered["id"])) >= 0
    everywhere = int(time[2 * (inputs.EPOCH - 1)])
    seen: Counter[bool] = Counter()
    for seed in range(MISSING):
        rng = Random(seed)
        begin, length = everywhere - rng.randrange(60, 130), rng.choice((80, 150, 200))
        there = (time < begin) | (time >= begin + length)
        late = first_shard & (time >= begin - rng.randrange(20))
        at = lines["at_us"].to_numpy() + late * rng.choice((0, 1_000_000_000))
        pq.write_table(lines.set_column(column, "at_us", pa.array(at)).filter(pa.array(there)), path)
        whole, bit_by_bit = both(lambda: certified.of_tables(tmp_path, manifest), 50, 150)
        assert plain(whole) == plain(bit_by_bit), seed
        seen[whole.holds(PRECEDENCE)] += 1
    assert min(seen[holds] for holds in (True, False)) > 1, seen


def test_of_a_lost_message_only_what_is_near_is_read_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "POSITIONS", 50)
    monkeypatch.setattr(source, "BATCH", 20)
    manifest = generate(Shape(2_000, shards=1, replicas=1), tmp_path)
    of = source.source(tmp_path, manifest.files())
    ids = halves(of.read("submitted", ["id"])["id"])
    lost = np.array([[1 << 60, 7]], np.uint64)
    sent, kept = windows.Sent(of), []
    for at in range(0, 2_000, 100):
        assert sent.of(np.concatenate([lost, ids[at : at + 100]]))[0].num_rows == 100
        kept.append(sent._pool.num_rows)
    assert max(kept) <= windows.AHEAD * 50 + 20
    sent.rest([ids, lost])
    late = windows.Sent(of)
    assert late.of(ids[-1:])[0].num_rows == 0, "it is not looked for so far ahead"
    with pytest.raises(Suspect):
        late.rest([ids])


@given(st.lists(st.tuples(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40))), max_size=12))
def test_last_writes_are_there_until_they_are_taken(steps: list[tuple[set[int], set[int]]]) -> None:
    """Keys that are asked for, and of which some are put back."""
    known, expected = windows.LastWrites(), dict[bytes, int]()
    for number, (asked, put) in enumerate(steps):
        keys = [b"%d" % one for one in sorted(asked | put)]
        taken = [row for part in known.take(pa.array(keys, pa.binary())) for row in part.to_pylist()]
        assert {row["key"]: row["n"] for row in taken} == {key: expected.pop(key) for key in keys if key in expected}
        back = {b"%d" % one: number for one in put}
        known.put(pa.table({"key": pa.array(back, pa.binary()), "n": pa.array(back.values(), pa.int64())}))
        expected |= back


def test_last_writes_of_keys_that_nobody_asks_for_are_moved_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    moved, made = [], windows._Level
    monkeypatch.setattr(windows, "_Level", lambda rows, hashes: (moved.append(len(hashes)), made(rows, hashes))[1])
    known = windows.LastWrites()
    for number in range(512):
        keys = pa.array([b"%d-%d" % (number, n) for n in range(10)], pa.binary())
        assert not any(part.num_rows for part in known.take(keys))
        known.put(pa.table({"key": keys}))
    assert sum(moved) <= 10 * 5_120


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=12), st.integers(0, 12))
def test_what_a_process_knew_is_carried_on(ops: list[tuple[int, int, int]], cut: int) -> None:
    """Process, version, and how long before its answer it was invoked, of operations one after another."""
    process, version, early = (np.array(column, np.int64) for column in (zip(*ops, strict=True) if ops else ((),) * 3))
    line = 2 * np.arange(len(ops))
    versions = np.column_stack([version, version]).astype(np.uint64)
    columns = (process, line, line + 1, line - early, line, versions)
    known = runs._Sessions()
    for mine in (slice(cut), slice(cut, None)):
        known.add(*(column[mine] for column in columns))
    before = [[m for m in range(n) if process[m] == process[n]] for n in range(len(ops))]
    each = list(enumerate(before))
    assert known.inverted == sum(any(version[m] > version[n] for m in mine) for n, mine in each)
    assert known.untimed == sum(any(line[m] >= line[n] - early[n] for m in mine) for n, mine in each)


def test_an_id_that_comes_again_is_suspect() -> None:
    ids = np.arange(20, dtype=np.uint64).reshape(-1, 2)
    differ = windows.Differ()
    differ.add(ids[:5])
    differ.add(ids[5:])
    differ.certify()
    differ.add(ids)
    differ.add(ids[3:4])
    with pytest.raises(Suspect):
        differ.certify()
