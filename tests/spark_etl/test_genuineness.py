"""Genuineness from traces: who is accused of what, on which line; real runs of planted and of correct protocols."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation import runner
from multicast.simulation.runner import Settings
from multicast.simulation.trace import FrameTrace
from spark_etl.audit.runner import Audit
from spark_etl.audit.traced import check_genuineness
from spark_etl.checks import genuineness
from spark_etl.ingest.extraction import extract
from spark_etl.ingest.tables import Tables
from spark_etl.ingest.traces import parse_trace
from spark_etl.report import Property, Report
from tests.planted.skeen import TellsEverybody
from tests.spark_etl.runs import MEMBERS, Run, message_id

HEADER = {"trace": 1, "protocol": "white_box", "genuine": True, "epoch_us": 1000}


def write_trace(run: Path, lines: list[dict[str, Any]]) -> None:
    (run / "trace").mkdir()
    (run / "trace" / "frames.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def submit(number: int, process: int, groups: list[int], **more: Any) -> dict[str, Any]:
    name, hexadecimal = f"m{number}", message_id(number).hex()
    return {"t": 1, "event": "submit", "process": process, "message": name, "id": hexadecimal, "groups": groups, **more}


def leave(process: int, to: list[int], *about: str, **more: Any) -> dict[str, Any]:
    return {"t": 2, "event": "leave", "process": process, "to": to, "type": "Vote", "about": list(about), **more}


class OfTrace(Audit):
    """Nothing but what traces show."""

    def _check_delivery(self) -> None:
        check_genuineness(self)


def audited(spark: Any, directory: Path, audit: type[Audit] = OfTrace) -> tuple[Report, Property]:
    report = audit(spark, directory / "run", directory / "out", parts=("delivery",)).run()
    return report, next(p for p in report.properties if p.name == "genuineness")


def library_run(protocol: type[MulticastProtocol], seed: int, settings: Settings, out: Path) -> None:
    (out / "trace").mkdir(parents=True)
    with (out / "trace" / "frames.jsonl").open("w") as file:
        trace = FrameTrace(file.write, protocol.specification.name, seed, settings, "")
        assert runner.run_seed(protocol, seed, settings, [trace]).digest
        trace.finish()
    trace.dump_journals(out)


def test_who_takes_part_and_who_does_not(spark: Any, tmp_path: Path):
    run = Run()
    run.transaction(writes={"a": 1}, f="put")  # message 0: multicast by 0 to shard 0, of replicas 0 to 2
    directory = run.write(tmp_path / "run")
    innocent = [
        leave(0, [1, 2], "m0"),
        leave(4, [5]),  # inside a shard
        leave(4, [0], housekeeping=True),
        leave(4, [0], "m0", channel="application"),
        leave(4, [0, 1], "m1"),  # 4 multicasts m1 to shard 0
        leave(4, [1]),
    ]
    guilty = [
        leave(0, [1, 3], "m0"),
        leave(3, [1], "m0"),
        leave(0, [5], "m0", housekeeping=True),
        leave(4, [1, 5], "m0", "m1"),
        leave(5, [1]),
        leave(3, [1]),  # its m2 was refused
    ]
    early = leave(4, [2])
    submits = [submit(0, 0, [0, 1]), early, submit(1, 4, [0]), submit(2, 3, [0], refused="Overloaded")]
    write_trace(directory, [HEADER, *submits, *innocent, *guilty, {"t": 3, "event": "end"}])
    tables = Tables(spark, tmp_path / "out", extract(directory, tmp_path / "out").manifest)
    members = spark.createDataFrame([(g, p) for g, ps in MEMBERS.items() for p in ps], "shard int, process int")
    messages = spark.createDataFrame([(message_id(0), [0])], "id binary, destinations array<int>")  # not [0, 1]
    trace = tables.frame("frames")
    part = genuineness.participants(trace, messages, tables.frame("submitted"), members)
    found = genuineness.foreign(trace, part, members).collect()
    first = 2 + len(submits) + len(innocent)
    expected = {
        (3, 4, 2, None), (first, 0, 3, 3), (first + 1, 3, 1, 3), (first + 2, 0, 5, 5), (first + 3, 4, 1, 4),
        (first + 3, 4, 5, 5), (first + 4, 5, 1, None), (first + 5, 3, 1, None),
    }  # fmt: skip
    assert {(r.line, r.sender, r.receiver, r.stranger) for r in found} == expected and len(found) == len(expected)
    row = genuineness.summary(trace, genuineness.foreign(trace, part, members)).first()
    assert row is not None and row.genuine and row.whole and not row.damaged
    assert (row.sent, row.strange, row.accused, row.kinds) == (14, 7, 8, 1)


def test_who_is_asked_by_one_of_its_group_to_pass_a_message_on_takes_part_in_it_from_then_on(
    spark: Any, tmp_path: Path
):
    run = Run()
    run.transaction(writes={"a": 1}, f="put")
    directory = run.write(tmp_path / "run")
    lines = [
        HEADER, submit(1, 4, [0]), leave(3, [1]), leave(3, [1], "m1"), leave(4, [3], "m1", type="Relay"),
        leave(3, [1], "m1"),
        leave(3, [2]), leave(0, [3], "m1"),
        leave(0, [5], "m1", type="Relay"),  # of another shard
        leave(4, [3], "m0", type="Relay"),  # of which 4 knows nothing
        leave(3, [5], "m1"), {"t": 3, "event": "end"},
    ]  # fmt: skip
    write_trace(directory, [HEADER, submit(0, 0, [0]), *lines[1:]])
    tables = Tables(spark, tmp_path / "out", extract(directory, tmp_path / "out").manifest)
    members = spark.createDataFrame([(g, p) for g, ps in MEMBERS.items() for p in ps], "shard int, process int")
    messages = spark.createDataFrame([(message_id(0), [0])], "id binary, destinations array<int>")
    trace = tables.frame("frames")
    part = genuineness.participants(trace, messages, tables.frame("submitted"), members)
    found = {(r.line, r.sender, r.receiver) for r in genuineness.foreign(trace, part, members).collect()}
    assert found == {(4, 3, 1), (5, 3, 1), (10, 0, 5), (11, 4, 3), (12, 3, 5)}


def test_a_trace_without_its_end_or_with_damage_decides_nothing(spark: Any, tmp_path: Path):
    run = Run()
    run.transaction(writes={"a": 1})
    directory = run.write(tmp_path / "run")
    write_trace(directory, [HEADER, submit(0, 0, [0]), leave(0, [1], "m0"), leave(0, [1], "m7")])
    report, prop = audited(spark, tmp_path)
    assert prop.verdict == "not determined" and report.exit_code == 2
    assert report.problems == ["trace/frames.jsonl, line 4: a frame about m7, which no line has submitted"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"event": "leave"}, "not that of a trace"),
        ({"trace": 2, "genuine": True}, "newer than this program's 1"),
        ({"trace": 1}, "an older program's"),
    ],
)
def test_a_first_line_that_cannot_be_used(line: dict[str, Any], why: str):
    (batch,) = parse_trace("trace/x.jsonl", json.dumps(line).encode() + b"\n{")
    (row,) = batch.to_pylist()
    assert (row["file"], row["line"]) == ("trace/x.jsonl", 1) and why in row["damage"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (leave(0, [1]) | {"t": 1 << 63}, "out of range"),
        (leave(0, [1]) | {"t": (1 << 63) - 1}, "out of range"),
        (leave(1 << 40, [1]), "out of range"),
        (leave(0, [1 << 40]), "out of range"),
        (submit(0, 0, [1 << 40]), "out of range"),
        (leave(0, [1]) | {"about": 1 << 70}, "array"),
    ],
)
def test_a_number_that_is_no_columns_is_damage_of_its_line(line: dict[str, Any], why: str):
    lines = [HEADER, line, submit(1, 0, [0])]
    (batch,) = parse_trace("trace/x.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in lines))
    damage = [row["damage"] for row in batch.to_pylist()]
    assert damage[0] is damage[2] is None and why in damage[1]


def test_a_line_that_is_nested_too_deeply_is_damage():
    deep = json.dumps(HEADER).encode() + b'\n{"event":"leave","message":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    (batch,) = parse_trace("trace/x.jsonl", deep)
    assert [bool(row["damage"]) for row in batch.to_pylist()] == [False, True]


def test_a_protocol_that_tells_everybody_is_found_and_the_line_of_the_trace_shows_it(spark: Any, tmp_path: Path):
    library_run(TellsEverybody, 3, Settings(groups=3, messages=20), tmp_path / "run")
    report, prop = audited(spark, tmp_path)
    assert report.verdict == prop.verdict == "violated" and prop.violations > len(prop.examples) > 0
    for violation in prop.examples:
        assert violation.name == "foreign-frame"
        sender, receiver = violation.replicas
        evidence = violation.evidence[0]
        assert evidence.line is not None
        line = json.loads((tmp_path / "run" / evidence.file).read_text().splitlines()[evidence.line - 1])
        assert line["event"] == "leave" and line["process"] == sender and receiver in line["to"]


@pytest.mark.parametrize(
    ("name", "audit", "verdict", "note"),
    [
        ("primcast", OfTrace, "valid", "between participants only"),
        pytest.param("primcast", Audit, "valid", "between participants only", marks=pytest.mark.full),
        ("sequencer", OfTrace, "not applicable", "does not claim it: "),
    ],
)
def test_a_correct_protocol_is_not_accused_and_one_that_claims_nothing_gets_a_number(
    spark: Any, tmp_path: Path, name: str, audit: type[Audit], verdict: str, note: str
):
    library_run(registry.load(name), 4, Settings(groups=3, messages=20), tmp_path / "run")
    report, prop = audited(spark, tmp_path, audit)
    assert (report.exit_code, prop.verdict) == (0, verdict) and note in prop.note
