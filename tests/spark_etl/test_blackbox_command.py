"""`check-history` through the command, on the histories beside this file and on those of others."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_etl.blackbox import command, jobs
from spark_etl.blackbox.compare import Expected, read_expected, verdict_file
from spark_etl.blackbox.history import LINE_BYTES_MAX, parse_line
from spark_etl.jobs import app

HISTORIES = Path(__file__).parent / "histories"
FOREIGN = os.environ.get("FOREIGN_HISTORIES", "")

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, with the tests' Spark."""

    @contextmanager
    def shared(*arguments: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr(command, "spark_session", shared)
    return invoke


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["check-history", *map(str, arguments)])
    return result.exit_code, result.output


def line(process: int, *ops: list[object], **more: object) -> str:
    return json.dumps({"process": process, "type": "ok", "invoke": None, "complete": None, "ops": list(ops), **more})


def write(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return path


def test_what_cannot_be_read_is_an_error_of_this_file_alone(tmp_path: Path):
    there = write(tmp_path / "there.jsonl", line(0, ["append", "x", 1]))
    found = [jobs.judge_file(path, jobs.Context()) for path in (there, tmp_path, tmp_path / "gone.jsonl")]
    assert [one["error"] for one in found] == [
        "", "it cannot be read: Is a directory", "it cannot be read: No such file or directory"
    ]  # fmt: skip


def test_every_history_of_our_own_is_judged_as_expected(run: Run, tmp_path: Path):
    code, output = run(HISTORIES, "--quiet", "--json", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    count = len(list(HISTORIES.glob("*.jsonl")))
    wrong = {
        one["history"]: one["comparison"]["details"] for one in report["histories"] if one["comparison"]["details"]
    }
    assert code == 0 and not wrong
    assert report["summary"]["comparisons agree"] == report["summary"]["histories"] == count >= 40
    assert output.count("\n") == count + 1 and "G0.jsonl: agree; strongest none" in output
    for one in report["histories"]:
        assert all(anomaly["text"] for anomaly in one["anomalies"])
        if read_expected(verdict_file(HISTORIES / one["history"])).valid_under[:1] == ["strict-serializable"]:
            assert not one["anomalies"]


@pytest.mark.skipif(not FOREIGN, reason="FOREIGN_HISTORIES, a directory of histories with verdict files, is not set")
@pytest.mark.timeout(900)
def test_the_histories_of_others_are_judged_as_their_sources_do(run: Run, tmp_path: Path):
    code, output = run(FOREIGN, "--json", tmp_path / "out.json")
    report = json.loads((tmp_path / "out.json").read_text())
    bad = [one["history"] for one in report["histories"] if one["error"] or one["comparison"]["result"] == "disagree"]
    assert code == 0 and not bad, output
    undetermined = report["summary"]["comparisons not determined"]
    assert undetermined <= len(report["histories"]) // 20, output


def test_one_history_is_a_table_with_a_sentence_per_edge(run: Run, tmp_path: Path):
    path = write(tmp_path / "h.jsonl", *(HISTORIES / "write-skew.jsonl").read_text().splitlines())
    code, output = run(path, "--json", tmp_path / "out.json", "--html", tmp_path / "out.html", "--quiet")
    page = (tmp_path / "out.html").read_text()
    assert code == 1 and "<code>G2-item</code>" in page and page.count("marker-end") == 2
    rows = {row.split("│")[0].strip(): row for row in output.splitlines() if "│" in row}
    assert "holds" in rows["snapshot isolation"] and "violated" not in rows["snapshot isolation"]
    assert "violated" in rows["serializable"] and "holds" not in rows["serializable"]
    assert "G2-item: T0, T1 precede one another in a circle" in output
    assert "T0 read 'x' as it was before T1 wrote it" in output
    assert "strongest that holds: strong snapshot isolation" in output
    assert "verdict: strict serializable violated" in output
    (one,) = json.loads((tmp_path / "out.json").read_text())["histories"]
    assert one["models"]["strict-serializable"]["verdict"] == one["verdict"] == "violated"


@pytest.mark.parametrize(
    ("name", "model", "code"),
    [("write-skew", "snapshot-isolation", 0), ("stale-read", "strong-session-serializable", 0),
     ("stale-read", "strict serializable", 1), ("read-your-writes", "strict-serializable", 1)],
)  # fmt: skip
def test_the_model_that_was_asked_for_decides(run: Run, tmp_path: Path, name: str, model: str, code: int):
    path = write(tmp_path / "h.jsonl", *(HISTORIES / f"{name}.jsonl").read_text().splitlines())
    assert run(path, "--model", model)[0] == code


def test_what_is_not_determined_is_not_said_to_hold(run: Run, tmp_path: Path):
    lines = [line(i % 5, ["r", "y", None], ["w", "x", i % 3], ["r", "x", i % 3]) for i in range(300)]
    lines += [line(5 + i % 5, ["r", "x", i % 3]) for i in range(300)]
    code, output = run(write(tmp_path / "h.jsonl", *lines))
    assert code == 2 and "│ holds" not in output and "not determined" in output and "values repeat" in output
    assert "strongest that holds: none" in output


def test_an_order_of_versions_is_honoured(run: Run, tmp_path: Path):
    path = write(tmp_path / "h.jsonl", *(HISTORIES / "given-order.jsonl").read_text().splitlines())
    orders = {way: write(tmp_path / f"{way}.json", json.dumps({"x": way})) for way in ((1, 2), (2, 1))}
    model = ("--model", "serializable")
    assert run(path, *model)[0] == 0
    assert run(path, *model, "--version-orders", orders[1, 2])[0] == 1
    assert run(path, *model, "--version-orders", orders[2, 1])[0] == 0
    code, output = run(path, "--version-orders", write(tmp_path / "bad.json", "[1]"))
    assert code == 2 and "not an order of versions" in output


def test_a_directory_without_verdicts_is_as_bad_as_its_worst(run: Run, tmp_path: Path):
    good = (HISTORIES / "valid-lists.jsonl").read_text().splitlines()
    write(tmp_path / "a" / "good one é.jsonl", *good)
    assert run(tmp_path)[0] == 0
    write(tmp_path / "a" / "foreign.jsonl", '{"type": "invoke", "f": "txn", "value": []}')
    code, output = run(tmp_path)
    assert code == 2 and "a/foreign.jsonl: not readable: line 1: not a transaction" in output
    assert "a/good one é.jsonl: strongest strict serializable" in output
    write(tmp_path / "bad.jsonl", *(HISTORIES / "G0.jsonl").read_text().splitlines())
    assert run(tmp_path)[0] == 1


def test_nothing_is_passed_over(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A link to nowhere, what is no file, a directory that cannot be looked into."""
    write(tmp_path / "good.jsonl", line(0, ["w", "x", 1]))
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    code, output = run(tmp_path, "--quiet")
    assert code == 2 and "unreadable 3" in output and "good.jsonl: strongest" in output
    for text in ("gone.jsonl: not readable: it cannot be read: No such file", "pipe.jsonl: not readable: it cannot be",
                 "locked: not readable: it cannot be read: "):  # fmt: skip
        assert text in output
    (tmp_path / "good.verdict.json").symlink_to(tmp_path / "nowhere")
    code, output = run(tmp_path)
    assert code == 2 and "good.verdict.json: not a verdict file" in output


def test_a_verdict_that_disagrees_is_counted(run: Run, tmp_path: Path):
    write(tmp_path / "h.jsonl", *(HISTORIES / "G1a.jsonl").read_text().splitlines())
    expected = {"valid_under": ["serializable"], "anomalies": ["G2-item"], "absent": ["G1a"]}
    write(tmp_path / "h.verdict.json", json.dumps(expected))
    code, output = run(tmp_path)
    assert code == 1 and "comparisons disagree 1" in output
    for text in ("serializable violated", "G2-item is not found", "G1a is found, and should not be"):
        assert text in output


def test_a_wrong_file_is_one_clear_sentence(run: Run, tmp_path: Path):
    contents = {
        "": "no transaction in it",
        "\x00\x01binary\n": "line 1: not JSON",
        "{:type :ok}\n": "line 1: not JSON",
        '{"process":0,"type":"ok","ops":[["cas","x",1]]}\n': "'cas' is none of",
        '{"process":0,"type":"ok","ops":[["r","x",{"a":1}]]}\n': "no value for 'r'",
        '{"process":0,"type":"maybe","ops":[]}\n': "'ok', 'fail' or 'info'",
        '{"process":"a","type":"ok","ops":[]}\n': "Expected `int`, got `str` - at `$.process`",
        '{"process":0,"type":"ok","ops":[["w",true,1]]}\n': "a key is a string or an integer",
        '{"process":0,"type":"ok","ops":[["w","\udcff",1]]}\n': "'utf-8' codec can't decode byte 0xff",
        '{"process":0,"type":"ok","ops":' + "[" * 9999 + "]" * 9999 + "}\n": "nested too deeply",
        line(0, ["append", "x", 1], ["r", "x", 1]) + "\n": "line 1, ops[1]: 'x' holds a scalar, and a list in",
        line(0, ["neq", "x", 1], ["r", "x", []]) + "\n": "line 1, ops[1]: 'x' holds a list, and a scalar in line 1",
        "\x1f\udc8b\x08\n": "line 1: compressed (gzip), not JSON",
        "\udcff\udcfe{\x00\n": "line 1: UTF-16, not UTF-8",
    }
    for number, content in enumerate(contents):
        (tmp_path / f"{number:02}.jsonl").write_bytes(content.encode(errors="surrogateescape"))
    code, output = run(tmp_path, "--quiet")
    *lines, summary = output.splitlines()
    assert code == 2 and f"unreadable {len(contents)}" in summary
    for got, says in zip(lines, contents.values(), strict=True):
        assert "not readable" in got and says in got
    code, output = run(tmp_path / "02.jsonl", "--quiet")
    assert code == 2 and output.count("\n") == 1 and "line 1: not JSON" in output


def test_what_is_no_history_from_its_beginning_on_is_not_told_by_spark(monkeypatch: Any, tmp_path: Path):
    """It takes a while to start."""
    monkeypatch.setattr(command, "spark_session", None)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
    for name, content, says in (
        ("empty", "", "no transaction in it"),
        ("blank", "\n\n", "no transaction in it"),
        ("text", "\n{:type :ok}\n", "line 2: not JSON"),
        ("other", '\ufeff{"process":"a"}\n', "line 1: not a transaction"),
    ):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(content, encoding="utf-8")
        code, output = invoke(path)
        assert code == 2 and says in output and says in jobs.judge_file(path, jobs.Context())["error"]
    code, output = invoke(tmp_path)
    assert code == 2 and "unreadable 5" in output and "it cannot be read: No such file or directory" in output


def test_of_a_line_without_an_end_only_the_beginning_is_held(tmp_path: Path):
    """Preallocated zeros, say: a hundred gigabytes of them are a sentence, too."""
    path = tmp_path / "zeros.jsonl"
    path.touch()
    os.truncate(path, 16 * LINE_BYTES_MAX)
    tracemalloc.start()
    try:
        found = jobs.refusal(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == f"line 1: longer than {LINE_BYTES_MAX} bytes" and most < 4 * LINE_BYTES_MAX
    path.write_bytes(f"{line(0)}\n".encode() + b" " * (2 * LINE_BYTES_MAX) + b"\nx\n")
    assert jobs.judge_file(path, jobs.Context())["error"].startswith("line 3: not JSON")


def test_what_is_still_a_history(run: Run, tmp_path: Path):
    plain = line(0, ["w", "x", 1])
    contents = {
        "windows": f"\ufeff{plain}\r\n\r\n{line(1, ['r', 'x', 1])}\r\n",
        "more-fields": line(0, ["w", "x", 1], sts=[5, 0], cts=[6, 1]) + "\n",
        "fewer-fields": '{"process":0,"type":"ok","ops":[["w","x",123456789012345678901234567890]]}\n',
        "no-operations": line(0) + "\n" + plain,
    }
    for name, content in contents.items():
        (tmp_path / f"{name}.jsonl").write_bytes(content.encode())
    code, output = run(tmp_path, "--quiet")
    assert code == 0 and "unreadable 0" in output and f"holds {len(contents)}" in output


def test_of_the_unknown_only_a_comparison_was_seen():
    one = '{"process":0,"type":"info","ops":[["r","x",1],["w","x",2],["r","y",3],["r","x",2]]}'
    assert [op.value for op in parse_line(one, 0).ops] == [1, 2, None, None]


def lines_judged(*lines: str, **expected: Any) -> dict[str, Any]:
    return jobs.judge_lines([text.encode() for text in lines], jobs.Context(Expected(**expected)))


@pytest.mark.parametrize(
    ("write_", "read"),
    [(["w", "x", 1], True), (["w", "x", [1]], [True]), (["w", "x", False], 0), (["append", "x", 1], [True])],
)
def test_a_truth_value_is_no_number(write_: list[Any], read: Any):
    assert lines_judged(line(0, write_), line(0, ["r", "x", read]))["verdict"] == "violated"


def test_orders_of_versions_of_lists_and_truth_values():
    history = line(0, ["w", "x", [1]]), line(1, ["w", "x", [2]]), line(2, ["w", "y", True]), line(3, ["w", "y", False])
    judged = lines_judged(*history, version_order={"x": [[2], [1]], "y": [True, False]})
    assert (judged["error"], judged["models"]["serializable"]) == ("", "holds")
    assert lines_judged(*history, version_order={"x": [{}]})["error"] == "the order of versions: {} is no value"


def test_what_is_no_history_is_one_clear_sentence(tmp_path: Path):
    write(tmp_path / "with" / "h.jsonl", line(0, ["w", "x", 1]))
    write(tmp_path / "with" / "h.verdict.json", "{")
    for arguments, says in (
        ([tmp_path / "nowhere"], "no such file"),
        ([tmp_path / "with" / "h.verdict.json", "--model", "nonsense"], "is no model"),
        ([tmp_path / "with"], "not a verdict file"),
        ([tmp_path / "with", "--version-orders", tmp_path], "for a single history only"),
    ):
        code, output = invoke(*arguments)
        assert code == 2 and output.count("\n") == 1 and says in output
    (tmp_path / "empty").mkdir()
    code, output = invoke(tmp_path / "empty")
    assert code == 2 and "it holds no history" in output


def test_names_and_values_steer_no_terminal_and_are_cut(run: Run, tmp_path: Path):
    long = "\x1b[2J" + "v" * 50_000
    write(tmp_path / "red\x1b[31m\nverdict: holds.jsonl", line(0, ["r", "x", long]), line(0, ["r", "x", None]))
    write(tmp_path / "b\u202e.jsonl", '{"process":0,"type":"' + long.replace("\x1b", "") + '","ops":[]}')
    code, output = run(tmp_path, "--quiet")
    assert code == 1 and output.count("\n") == 3
    assert "\\u001b[31m\\u000averdict" in output and "b\\u202e.jsonl" in output
    one = run(next(tmp_path.glob("red*")), "--quiet")[1]
    assert "characters)" in one
    for text in (output, one):
        assert all(c.isprintable() or c == "\n" for c in text) and max(map(len, text.splitlines())) < 5_000


def test_as_a_library(spark: Any):
    texts = (HISTORIES / "long-fork.jsonl").read_bytes().splitlines()
    rows = [("a", number, bytearray(text)) for number, text in reversed(list(enumerate(texts)))]
    verdicts = jobs.judge_histories(spark.createDataFrame(rows, jobs.LINES)).collect()
    (row,) = verdicts
    assert (row["history"], row["transactions"], row["verdict"]) == ("a", len(texts), "violated")
    assert set(row["anomalies"]) >= {"long-fork", "G-nonadjacent"} and row["models"]["consistent-view"] == "holds"
