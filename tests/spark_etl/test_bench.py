"""The bench, on a small input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_etl import session
from spark_etl.bench import inputs, measure, rows
from spark_etl.bench.inputs import Shape, generate
from spark_etl.certify.proof import PRECEDENCE, READS
from spark_etl.ingest.tables import check_tables
from tests.spark_etl import certified


@pytest.mark.timeout(600)
def test_its_input_is_correct_and_fails_the_certificate_of_real_time(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def shared(*args: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(session, "spark_session", shared)
    shape = Shape(400, shards=2, replicas=2, hot=0.3)
    result = measure.run(shape, tmp_path, "local[2]", "1g", lambda text: None)
    assert result.verdict == "valid" and measure.exit_code(result) == 0
    assert result.late > 100 and result.rows["submitted"] == 400 and result.stages[0].name == "generating"
    names = [stage.name for stage in result.stages]
    java, python, together = (result.memory[name] for name in ("java", "python", "together"))
    assert 0 < max(java, python) < together <= java + python + 1
    assert "certifying" in names and names[-3:] == [measure.ALL, measure.WARM, measure.SCAN]
    assert not any("searching for cycles" in name for name in names)
    assert result.stages[-3].seconds >= max(stage.seconds for stage in result.stages[1:-3])


SMALL = Shape(3 * inputs.EPOCH + 10, shards=3, replicas=2)


def test_its_input_is_proved_right_but_for_a_stale_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inputs, "CHUNK", inputs.EPOCH)
    monkeypatch.setattr(inputs, "KEYS", 1_000)
    right = certified.of_tables(tmp_path / "right", generate(SMALL, tmp_path / "right"))
    assert {READS, PRECEDENCE} <= right.proved and not right.why and right.late > SMALL.transactions // 2
    stale = msgspec.structs.replace(SMALL, stale=True)
    wrong = certified.of_tables(tmp_path / "wrong", generate(stale, tmp_path / "wrong"))
    assert set(wrong.why) == {READS} and right.proved - wrong.proved >= {READS, PRECEDENCE}


def test_an_input_is_made_once_and_another_one_takes_its_place(tmp_path: Path):
    shape = Shape(100, shards=2, replicas=1)
    files = {path: (tmp_path / path).stat().st_mtime_ns for path in generate(shape, tmp_path).files()}
    assert files == {path: (tmp_path / path).stat().st_mtime_ns for path in generate(shape, tmp_path).files()}
    generate(Shape(50, shards=1, replicas=1), tmp_path)
    assert check_tables(tmp_path).rows()["submitted"] == 50


class Command:
    """Instead of a process: what it would write, but for rows that break."""

    def __init__(self, *breaking: str):
        self.breaking = breaking
        self.called: list[str] = []

    def __call__(self, *arguments: str) -> None:
        self.called.append(arguments[0])
        if any(word in arguments for word in self.breaking):
            raise OSError("status -9")
        if "--json" in arguments:
            stages = [measure.Stage(name, 2.0, 3.0, 500) for name in (measure.ALL, measure.WARM, measure.SCAN)]
            found = measure.Result(1000, 1, 1, {}, "valid", 0, stages, {"together": 7}, {}, {"of": "a test"})
            Path(arguments[arguments.index("--json") + 1]).write_bytes(msgspec.json.encode(found))


def test_the_table_goes_on_from_what_it_has_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def told(best_of: int, command: Command, stop: int = -1) -> rows.Rows:
        def keep(found: rows.Rows) -> None:
            file.write_bytes(msgspec.json.encode(found))
            if len(command.called) == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(rows, "_command", command)
        return rows.measure(rows.wanted(1000, 2000, tmp_path), best_of, tmp_path, said.append, keep, rows.read(file))

    said: list[str] = []
    file = tmp_path / "table.json"
    first, second, third = Command(), Command("--hot"), Command()
    with pytest.raises(KeyboardInterrupt):
        told(2, first, stop=3)
    assert [len(row.turns) for row in rows.read(file).rows] == [2, 1, 0, 0, 0, 0]
    found = {row.name: row for row in told(2, second).rows}
    assert first.called == ["audit", "audit", "bench"] and second.called[0] == "bench"
    hot = found.pop("one key with 30 % of all operations")
    assert (hot.failed, len(hot.turns)) == ("status -9", 1) and not any(row.failed for row in found.values())
    assert found["many"].per_second == 1000 and found["many"].best("memory") == 7 and "status -9" in "".join(said)
    told(2, third)
    assert third.called == ["bench", "bench"] and not any(row.failed for row in rows.read(file).rows)
