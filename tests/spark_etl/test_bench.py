"""The bench, on a small input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_etl.bench import measure
from spark_etl.bench.inputs import Shape


@pytest.mark.timeout(600)
def test_its_input_is_correct_and_fails_the_certificate_of_real_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def session(*args: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(measure, "spark_session", session)
    shape = Shape(400, shards=2, replicas=2, hot=0.3)
    result = measure.run(shape, tmp_path, "local[2]", "1g", lambda text: None)
    assert result.verdict == "valid" and measure.exit_code(result) == 0
    assert result.late > 100 and result.rows["submitted"] == 400 and result.stages[0].name == "generating"
    names = [stage.name for stage in result.stages]
    assert "certifying" in names and names[-3:] == [measure.ALL, measure.WARM, measure.SCAN]
    assert not any("searching for cycles" in name for name in names)
    assert result.stages[-3].seconds >= max(stage.seconds for stage in result.stages[1:-3])
