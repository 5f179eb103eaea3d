"""Runs in which slots moved: nobody is accused who is right, and a row that a move loses is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

import kvstore.core.replica
from kvstore.core.moves import Moves
from kvstore.simulated.runner import run_seed
from spark_etl.audit.runner import Audit
from tests.planted.moves import CALM, DirtyRowsForgotten


@pytest.mark.parametrize(("kind", "violated"), [(Moves, False), (DirtyRowsForgotten, True)], ids=["right", "lost"])
def test_rows_are_followed_from_shard_to_shard(
    spark: Any, tmp_path: Path, kind: type[Moves], violated: bool
) -> None:
    with mock.patch.object(kvstore.core.replica, "Moves", kind):
        run = run_seed(msgspec.structs.replace(CALM, seconds=0.5), 13, tmp_path / "run")
    assert run.moves and bool(run.violations) == violated
    report = Audit(spark, tmp_path / "run", tmp_path / "out", parts=("delivery", "transactions")).run()
    named = {p.name for p in report.properties if p.verdict == "violated"}
    assert named == ({"reads return what the order says"} if violated else set()), named
    assert report.problems == []
