"""The statistics of the early-delivery paper: what must hold whatever the numbers are, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from multicast.parts.causal import RULES, phi_range
from multicast.simulation.commands.toto import command
from multicast.simulation.toto import Row, Sweep, draw, least_tail, measure, observe

app = typer.Typer()
app.command()(command)

SMALL = Sweep(processes=(5, 8), widths=(0.0, 1.0, 5.0), lans=(1,), messages=160, dags=1, observers=2)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [row for some in SMALL.rows() for row in some]


def test_every_rule_is_measured_at_every_threshold(rows: list[Row]) -> None:
    expected = {(n, w, r, p) for n in (5, 8) for w in SMALL.widths for r in RULES for p in phi_range(r, n)}
    assert {(r.n, r.width, r.rule, r.phi) for r in rows} == expected
    assert len(rows) == len(expected)


def test_nothing_is_ordered_below_the_least_possible_tail_but_prefixes(rows: list[Row]) -> None:
    for row in rows:
        assert row.tail <= row.n
        if row.rule != "gl_toto":
            assert row.tail >= least_tail(row.n, row.phi, row.rule), row


def test_on_a_bus_every_message_is_ordered_at_the_least_possible_tail(rows: list[Row]) -> None:
    for row in rows:
        if row.width == 0 and row.rule != "gl_toto":
            assert row.tail == least_tail(row.n, row.phi, row.rule)
            assert row.concurrent == 0


def test_wider_graphs_need_more_processes(rows: list[Row]) -> None:
    for n in (5, 8):
        tails = [r.tail for r in rows if r.n == n and r.rule == "s_toto" and r.phi == n // 2]
        widths = [r.concurrent for r in rows if r.n == n and r.rule == "s_toto" and r.phi == n // 2]
        assert tails == sorted(tails) and len(set(tails)) == 3
        assert widths == sorted(widths) and len(set(widths)) == 3


def test_later_rules_are_not_later() -> None:
    """On one DAG: S-ToTo is never behind ToTo, GL-ToTo never behind G-ToTo."""
    dag = draw(8, 3.0, 1, 400, 1, 1)[0]
    for better, worse, phi in (("s_toto", "toto", 4), ("s_toto", "toto", 5), ("gl_toto", "g_toto", 3)):
        after, before = (measure([dag], rule, phi, 1, 3.0, 8) for rule in (better, worse))
        assert after.tail <= before.tail
        assert after.early >= before.early


def test_g_toto_is_s_toto_above_half() -> None:
    dag = draw(7, 2.0, 2, 300, 1, 1)[0]
    for phi in phi_range("s_toto", 7):
        assert observe(dag, 0, "s_toto", phi) == observe(dag, 0, "g_toto", phi)


def test_the_width_for_the_papers_average_is_almost_a_bus() -> None:
    width = SMALL.width_for(5.12)
    assert width is not None
    assert 0 < width < 1
    assert SMALL.width_for(4.9) is None


def test_the_command_prints_and_writes_the_same_for_the_same_seed(tmp_path: Path) -> None:
    words = ["--processes", "8", "--widths", "0,2", "--lans", "1", "--messages", "100", "--dags", "1"]
    results = []
    for name in ("a.json", "b.json"):
        result = CliRunner().invoke(app, [*words, "--json", str(tmp_path / name)])
        assert result.exit_code == 0, result.output
        results.append(json.loads((tmp_path / name).read_text()))
    assert results[0] == results[1]
    assert "gl_toto" in result.output
    assert [line[:14] for line in results[0]["findings"]] == ["N_tail = 5.12 ", '"as much as 10', '"as much as 5%']
    assert len(results[0]["rows"]) == 2 * (2 * len(phi_range("toto", 8)) + 2 * len(phi_range("g_toto", 8)))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--processes", "x"], "--processes is a list of numbers like 4,8, not 'x'"),
        (["--processes", "65"], "--processes: from 1 to 64, not 65"),
        (["--widths", "-1"], "--widths: from 0 to 1000, not -1"),
        (["--messages", "30"], "--messages: at least ten per process, 120, not 30"),
    ],
)
def test_bad_usage_is_one_line(words: list[str], text: str) -> None:
    result = CliRunner().invoke(app, words)
    assert result.exit_code
    assert str(result.exception) == text
