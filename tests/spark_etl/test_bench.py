"""The bench, on a small input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_etl import bench
from spark_etl.bench_input import Shape


@pytest.mark.timeout(600)
def test_its_input_is_correct_and_fails_the_certificate_of_real_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def session(*args: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(bench, "spark_session", session)
    result = bench.run(Shape(400, shards=2, replicas=2), tmp_path, "local[2]", "1g", lambda text: None)
    assert result.verdict == "valid" and bench.exit_code(result) == 0
    assert result.late > 100 and result.rows["submitted"] == 400 and result.stages[0].name == "generating"
    names = [stage.name for stage in result.stages]
    assert "certifying" in names and names[-1] == "all checks"
    assert not any("searching for cycles" in name for name in names)
    assert result.stages[-1].seconds >= max(stage.seconds for stage in result.stages[1:-1])
