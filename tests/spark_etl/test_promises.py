"""Reads of several shards, snapshots and stale reads, as the certificate sees them. The checks: `promised`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from spark_etl.certify.proof import CLIENTS, PROMISES, READS, VALUES
from tests.spark_etl import certified
from tests.spark_etl.promised import WRONG
from tests.spark_etl.runs import Run


@pytest.mark.parametrize("name", WRONG)
def test_a_promise_is_proved_if_it_was_kept(tmp_path: Path, name: str):
    make, found = WRONG[name]
    proof = certified.of_directory(make().write(tmp_path / "run"), tmp_path / "out")
    assert proof.holds(CLIENTS, READS)
    assert proof.holds(VALUES, *([PROMISES] if proof.promises else [])) == (not found), proof.why


@pytest.mark.parametrize("wrong", [False, True])
def test_many_ranges_of_other_bounds_are_proved(tmp_path: Path, wrong: bool):
    """Each counted by itself, at another place; and, planted, one that is wrong."""
    run, numbers = Run(), range(1, 48)
    for number in numbers:
        run.transaction(writes={f"a{number:02}": 1})
    run.stop()
    for first, end in combinations(numbers, 2):
        place = (first * end) % 48
        there = max(0, min(end - 1, place) - first + 1) + (wrong and (first, end) == (20, 31))
        scan = (["count", "", f"a{first:02}", f"a{end:02}"], there)
        run.look({}, (10_000, 10_001), places={0: place}, consistency="snapshot", scan=scan)
    proof = certified.of_directory(run.write(tmp_path / "run"), tmp_path / "out")
    assert proof.holds(PROMISES) == (not wrong), proof.why


def test_what_simulated_clients_were_promised_is_proved(tmp_path: Path):
    settings = Settings(protocol="white_box", size="small", reads=True)
    assert run_seed(settings, 7, tmp_path / "run").violations == []
    proof = certified.of_directory(tmp_path / "run", tmp_path / "out")
    assert proof.holds(PROMISES, VALUES) and proof.compared > 0, proof.why
    assert set(proof.promises) == {"linearizable", "snapshot", "stale"}
