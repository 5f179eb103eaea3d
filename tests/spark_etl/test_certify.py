"""Kernels prove nothing that is not so, and of a correct run everything. RANDOM_RUNS=N judges N random ones."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.core.audit import APPLIED, EXPIRED
from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast.types import ZERO, Timestamp, new_message_id
from spark_etl.certify import arrays, id, key
from spark_etl.certify.arrays import (
    NOTHING,
    Suspect,
    all_differ,
    codes,
    greatest_before,
    in_order,
    index_in,
    names,
    ranks,
    rise,
    sums_below,
    together,
)
from spark_etl.certify.proof import (
    ACCOUNTS,
    CLIENTS,
    COURSE,
    HISTORY,
    LOGS,
    ORDER,
    POSITIONS,
    PRECEDENCE,
    READS,
    SESSIONS,
    TIME,
    VALUES,
)
from spark_etl.certify.source import NOBODY, Source
from tests.spark_etl import brute, brute_history, certified, damages
from tests.spark_etl.brute_run import Run
from tests.spark_etl.forged import FORGERIES, forge
from tests.spark_etl.random_runs import KNOWN, correct_run, random_run, tiny
from tests.spark_etl.runs import SEGMENT, bank_run

RUNS = int(os.environ.get("RANDOM_RUNS", "10"))
RUNS_FULL = 2000

# -- whole runs --------------------------------------------------------------------------------------------------------


def wrongly_proved(run: Run, out: Path) -> list[str]:
    """What brute force refutes, and the numbers that it counts differently."""
    proof, found = certified.of_run(run, out), brute.violations(run)
    bad = [f"{name}: {names}" for name, names in found.items() if names and proof.holds(name)]
    if any(found.values()):
        return bad
    h = brute_history.history(run)
    if proof.holds(TIME):
        against = any(brute_history.before_in_time(a, b) and a.time > b.time for a in h.txns for b in h.txns)
        bad += ["against real time"] if bool(proof.late) != against else []
    if proof.holds(PRECEDENCE):
        bad += [] if brute_history.serializable(h, brute_history.before_in_time) else ["a cycle with real time"]
    if proof.holds(SESSIONS):
        bad += ["two at once"] if brute_history.overlapping(run) else []
        bad += ["sessions"] if (proof.inverted, proof.untimed) != brute_history.turns(h) else []
    if proof.holds(CLIENTS, *ACCOUNTS):
        assert proof.unknown is not None
        bad += ["unknown"] if proof.unknown.counts(brute.settled(run) is None) != brute.unknown(run) else []
    return bad


@pytest.mark.timeout(600 + RUNS_FULL)
@pytest.mark.parametrize("count", [RUNS, pytest.param(RUNS_FULL, marks=pytest.mark.full)])
def test_what_brute_force_refutes_is_not_proved(tmp_path: Path, count: int):
    runs = {name: run for name, run in KNOWN.items() if not run.lost}
    runs |= {str(seed): random_run(Random(seed))[0] for seed in range(count)}
    bad = {name: wrong for name, run in runs.items() if (wrong := wrongly_proved(run, tmp_path))}
    assert not bad, "\n".join(f"{name}: {wrong}\n{runs[name]}" for name, wrong in list(bad.items())[:3])


def test_of_correct_runs_the_journals_are_proved_right(tmp_path: Path):
    names = (*LOGS, *ACCOUNTS, ORDER, HISTORY, COURSE)
    runs = [run for seed in range(20) if (run := correct_run(Random(seed))).ops]
    assert [str(run) for run in runs if not certified.of_run(run, tmp_path).holds(*names)] == []


def test_of_a_simulated_run_with_faults_everything_is_proved(tmp_path: Path):
    settings = Settings(protocol="white_box", shards=2, replicas=3, clients=6, seconds=2.0, reads=True)
    run_seed(settings, 16, tmp_path / "run")
    proof = certified.of_directory(tmp_path / "run", tmp_path / "out")
    assert certified.PROVABLE | {TIME, SESSIONS, COURSE} <= proof.proved, proof.why
    assert proof.at_positions and 0 < proof.compared <= proof.answered


def test_reads_at_positions_are_placed_as_late_as_real_time_asks(tmp_path: Path):
    proof = certified.of_directory(damages.read_at_positions().write(tmp_path / "run"), tmp_path / "out")
    assert proof.holds(POSITIONS, TIME) and (proof.at_positions, proof.late) == (5, 0)


def test_a_leader_that_was_asked_for_a_key_of_another_shard_is_suspect(tmp_path: Path):
    run = bank_run()
    run.read("b1", 0, 1, (2000, 2010), version=ZERO)
    proof = certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out")
    assert proof.holds(*LOGS, CLIENTS) and not proof.holds(READS)


def test_a_leaders_answer_without_a_version_is_suspect(tmp_path: Path):
    run = bank_run()
    run.read("a1", 0, run.positions[0], (2000, 2010))
    assert certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out").holds(HISTORY, CLIENTS, POSITIONS)
    del run.events[-1]["version"]
    proof = certified.of_directory(run.write(tmp_path / "other"), tmp_path / "other-out")
    assert proof.holds(*LOGS) and not proof.proved & {HISTORY, CLIENTS, POSITIONS, TIME}


def test_of_an_operation_in_two_histories_no_values_are_proved(tmp_path: Path):
    history = bank_run().write(tmp_path / "run") / "history"
    shutil.copy(history / "clients.jsonl", history / "more.jsonl")
    proof = certified.of_directory(tmp_path / "run", tmp_path / "out")
    assert proof.holds(CLIENTS, READS) and not proof.holds(VALUES)


@pytest.mark.parametrize(
    ("fourth", "fifth", "right"),
    [
        ({"a": 30, "b": 20}, {"a": 30}, True),
        ({"b": 20, "a": 30}, {}, True),
        ({"b": 20}, {"a": 30}, True),
        ({"a": 10, "b": 20}, {"a": 30}, False),
        ({"a": 20, "b": 30}, {"a": 30}, False),
        ({"c": 30, "b": 20}, {"a": 30}, False),
        ({"a": 30, "b": 20, "c": 20}, {"a": 30}, False),
        ({"a": 30, "b": 20}, {"a": 30, "b": 20}, False),
    ],
)
def test_what_clients_were_told_is_held_against_journals_read_by_read(
    tmp_path: Path, fourth: dict[str, int], fifth: dict[str, int], right: bool
):
    run = tiny("wa | wb | wa | ra=3 rb=2 | ra=3 | rb=2")
    run.ops[3].reads, run.ops[4].reads = fourth, fifth
    assert certified.of_run(run, tmp_path).holds(CLIENTS) == right


@pytest.mark.parametrize("expired", [False, True])
def test_where_a_transaction_was_taken_twice_nothing_is_proved(tmp_path: Path, expired: bool):
    run = tiny("wa | failed 1", lambda run: setattr(run.deliveries(0)[1], "expired", expired))
    assert certified.of_run(run, tmp_path).proved == set()


DAMAGES = sorted(damages.DAMAGES)


@pytest.mark.parametrize(
    "names", [pytest.param(DAMAGES[::8], id="some"), pytest.param(DAMAGES, marks=pytest.mark.full, id="all")]
)
def test_damage_is_suspect(tmp_path: Path, names: list[str]):
    bad = []
    for name in names:
        damage = damages.DAMAGES[name]
        proof = certified.of_directory(damage.run.write(tmp_path / name), tmp_path / f"{name}-out")
        bad += [f"{name}: {one}" for one in wrongly_held(set(damage.found.split()), proof.proved)]
        bad += [f"{name} is right"] if not damage.found and not proof.proved and "format_1" not in name else []
    assert bad == []


def wrongly_held(names: set[str], proved: set[str]) -> set[str]:
    """The violations, all of whose properties are proved."""
    of = certified.properties()
    return {name for name in names if (mine := of[name] & certified.PROVABLE) and mine <= proved}


FORGED = sorted(FORGERIES)
SOMEBODY_READ = 11
"""The seed of a run in which somebody read what each forgery takes away. Where nobody did, that it is missing makes no
read wrong, and reads are proved for good reason."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names", [pytest.param(FORGED[::12], id="some"), pytest.param(FORGED, marks=pytest.mark.full, id="all")]
)
def test_forgeries_are_suspect(tmp_path: Path, names: list[str]):
    settings = Settings(protocol="white_box", profile="calm", shards=2, replicas=3, clients=3, seconds=1.0)
    run_seed(settings, SOMEBODY_READ, tmp_path / "run")
    assert certified.of_directory(tmp_path / "run", tmp_path / "out").holds(*LOGS, ORDER, *ACCOUNTS, CLIENTS, VALUES)
    bad = []
    for name in names:
        kind = FORGERIES[name]
        for replicas, found in (((2,), kind.one), ((0, 1, 2), kind.shard)):
            copy = tmp_path / f"{name}-{len(replicas)}"
            shutil.copytree(tmp_path / "run", copy)
            for replica in replicas:
                path = copy / f"replicas/{replica}/journal" / SEGMENT
                path.write_bytes(forge(path.read_bytes(), kind.forge))
            proof = certified.of_directory(copy, copy / "audit")
            bad += [f"{name}: {one}" for one in wrongly_held(set(found.split()) - {"damage"}, proof.proved)]
    assert bad == []


# -- kernels by themselves ---------------------------------------------------------------------------------------------


def version(number: int) -> bytes:
    return Timestamp(number, 0).encode() if number else bytes(16)


accesses = st.lists(
    st.tuples(st.sampled_from(["x", "y"]), st.sampled_from("rrwdp"), st.integers(1, 5), st.integers(0, 5)), max_size=12
)
"""Key; r: read, w: write, d: deletion, p: read at a position; by which version; version that was seen."""


def naive_reads(found: list[tuple[str, str, int, int]]) -> bool:
    """Whether every read saw the last version before its own; at a position: up to it."""
    written = {(k, own): kind for k, kind, own, _ in found if kind in "wd"}
    if len(written) < sum(kind in "wd" for _, kind, _, _ in found):
        return False
    for k, kind, own, seen in found:
        earlier = [v for (key_, v) in written if key_ == k and (v < own or (kind == "p" and v == own))]
        last = max(earlier, default=0)
        right = 0 if not last or written[k, last] == "d" else last
        if kind in "rp" and seen != right:
            return False
    return True


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(-3, 3)), max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 20)), max_size=5),
)
def test_sums_of_what_is_less_among_the_first(rows: list[tuple[int, int]], asked: list[tuple[int, int]]):
    asked = [(min(first, len(rows)), bound) for first, bound in asked]
    columns = [np.array([row[n] for row in table], np.int64) for table in (rows, asked) for n in (0, 1)]
    expected = [sum(weight for value, weight in rows[:first] if value < bound) for first, bound in asked]
    assert sums_below(*columns).tolist() == expected


@given(accesses)
def test_reads_are_proved_just_if_each_saw_the_last_version_before_it(found: list[tuple[str, str, int, int]]):
    def table(kinds: str, *names: str) -> pa.Table:
        rows = [(k.encode(), version(own), version(seen)) for k, kind, own, seen in found if kind in kinds]
        columns = zip(*rows, strict=True) if rows else ([],) * 3
        return pa.table([pa.array(column, pa.binary()) for column in columns], names=names)

    writes = table("wd", *key.WRITES[:2], "seen")
    writes = writes.append_column("deleted", pa.array([kind == "d" for _, kind, _, _ in found if kind in "wd"], "bool"))
    try:
        key.certify(table("r", *key.READS), writes, table("p", *key.PLACED))
    except Suspect:
        proved = False
    else:
        proved = True
    assert proved == naive_reads(found)


_VALUES = (NOTHING, -(2**62), -3, -2, 0, 1, 2, 2**40, 2**62)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.sampled_from(_VALUES)), max_size=12))
def test_the_greatest_before(rows: list[tuple[int, int, int]]):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    naive = [max((v for g, t, v in rows if g == group and t < at), default=NOTHING) for group, at, _ in rows]
    assert greatest_before(*columns).tolist() == naive


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), max_size=12), st.integers(0, 12))
def test_ranks_sort_as_the_rows_do(rows: list[tuple[int, int]], cut: int):
    table = np.array(rows, np.uint64).reshape(-1, 2)
    found = np.concatenate(ranks(table[:cut], table[cut:])).tolist()
    assert [(a < b, a == b) for a in found for b in found] == [(a < b, a == b) for a in rows for b in rows]


_PAIRS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2**32, 2**64 - 1])), max_size=12)


def pairs(rows: list[tuple[int, int]]) -> np.ndarray:
    return np.array(rows, np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("mixed", [None, lambda rows: rows[:, 1]], ids=["apart", "colliding"])
@given(mine=_PAIRS, others=_PAIRS)
def test_pairs_are_known_by_one_number_although_it_may_be_of_several(
    mixed: Any, mine: list[tuple[int, int]], others: list[tuple[int, int]]
):
    with pytest.MonkeyPatch.context() as patch:
        if mixed:
            patch.setattr(arrays, "mixed", mixed)
        found = np.concatenate(codes(pairs(mine), pairs(others))).tolist()
        every = mine + others
        assert [a == b for a in found for b in found] == [a == b for a in every for b in every]
        places = [others.index(one) if one in others else -1 for one in mine]
        assert index_in(pairs(mine), pairs(others)).tolist() == places
        assert all_differ(pairs(mine)) == (len(set(mine)) == len(mine))
        assert rise(pairs(mine)).tolist() == [a < b for a, b in itertools.pairwise(mine)]


@pytest.mark.parametrize(("other", "proved"), [(Timestamp(7 << 12, 0).encode(), True), (new_message_id(0, 0), False)])
def test_a_version_in_the_place_of_an_id_does_not_say_when_it_was_made(other: bytes, proved: bool):
    """Whatever its digits are."""
    late, there = Timestamp(5000_000, 0).encode(), Timestamp(9000_000, 0).encode()
    versions, ids = (
        arrays.halves(pa.array(column, pa.binary(16)))
        for column in ((late, there), (new_message_id(4000_000, 1), other))
    )
    try:
        id._in_time(ids, versions, np.array([EXPIRED, APPLIED]), np.ones(2, bool))
    except arrays.Suspect:
        assert not proved
    else:
        assert proved


@given(st.lists(st.integers(0, 3) | st.just(2**40), max_size=12))
def test_groups_stand_together_in_their_order(groups: list[int]):
    assert together(np.array(groups, np.int64)).tolist() == sorted(range(len(groups)), key=lambda row: groups[row])


_TEXTS = st.lists(st.sampled_from([None, "", "a", "b"]), max_size=6)


@given(st.tuples(_TEXTS, _TEXTS, _TEXTS))
def test_names_are_equal_for_equal_texts_however_they_are_kept(columns: tuple[list[str | None], ...]):
    kept = [pa.array(columns[0], pa.string()), pa.array([c and c.encode() for c in columns[1]], pa.binary()),
            pa.chunked_array([pa.array(columns[2], pa.string()).dictionary_encode()] * 2)]  # fmt: skip
    found, every = np.concatenate(names(*kept)).tolist(), [*columns[0], *columns[1], *columns[2], *columns[2]]
    assert [(a == b, a < 0) for a in found for b in found] == [(a == b, a is None) for a in every for b in every]


_ANY = st.one_of(st.integers(0, 3), st.integers(-(2**40), 2**40), st.integers(-(2**62), 2**62))


@given(st.lists(st.tuples(_ANY, _ANY, _ANY), max_size=12))
def test_one_order_of_columns_however_wide_they_are(rows: list[tuple[int, int, int]]):
    columns = np.array(rows, np.int64).reshape(-1, 3).T
    assert [rows[n][::-1] for n in in_order(*columns)] == sorted(row[::-1] for row in rows)


def test_a_table_tells_of_what_is_not_null_in_any_file(tmp_path: Path):
    schema = pa.schema({"told": pa.string(), "value": pa.map_(pa.string(), pa.int64()), "line": pa.int64()})
    columns = {"none": [[], [], []], "null": [[None], [None], [1]], "text": [["x", None], [None, None], [1, 2]],
               "map": [[None], [[("a", 1)]], [1]]}  # fmt: skip
    for name, values in columns.items():
        pq.write_table(pa.table(values, schema=schema), tmp_path / name)
    told = {
        name: [Source({"history": {NOBODY: [str(tmp_path / "none"), str(tmp_path / name)]}}).tells("history", [column])
               for column in schema.names]
        for name in columns
    }  # fmt: skip
    assert told == {"none": [False] * 3, "null": [False, False, True], "text": [True, False, True],
                    "map": [False, True, True]}  # fmt: skip


def test_rows_are_found_in_the_row_groups_that_may_have_them(tmp_path: Path):
    numbers_of, files = [list(range(first, first + 40)) for first in (0, 40, 80)], []
    for replica, column in zip((0, 0, 1), numbers_of, strict=True):
        gts = [b"%03d" % n for n in column]
        rows = {"replica": pa.array([replica] * 40, pa.int32()), "position": column, "gts": gts}
        files.append(str(tmp_path / f"{column[0]}"))
        pq.write_table(pa.table(rows), files[-1], row_group_size=7)
    kept = Source({"writes": {0: files[:2], 1: files[2:]}})
    assert kept.rows("writes", np.array([0, 6, 7, 75, 119]))["position"].to_pylist() == [0, 6, 7, 75, 119]
    some, named = pa.array([6, 50, 90]), pa.array([b"006", b"050", b"090"])
    assert kept.where("writes", [0], "position", some)["position"].to_pylist() == [6, 50]
    assert kept.where("writes", [1, 0], "gts", named)["position"].to_pylist() == [90, 6, 50]
    mixed = Source({"writes": {NOBODY: files}})
    assert mixed.where("writes", [1], "position", some)["position"].to_pylist() == [90]
    assert kept.where("writes", [0], "position", some[:0]).num_rows == 0
