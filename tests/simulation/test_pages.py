"""The protocols' pages fit the code: every protocol has one, every reference leads somewhere, tables are up to date."""

from __future__ import annotations

import ast
import csv
import json
import pkgutil
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from multicast import registry
from multicast.simulation import commands, pages
from multicast.simulation.latency.published import table, variants

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(pages.DOCS.glob("*.md"))
COMPARISON = (pages.DOCS / pages.COMPARISON).read_text()
T_CONS = 2.0


def _rows(text: str) -> list[list[str]]:
    """Cells of a markdown table's rows, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines[2:]]


@cache
def _names(path: Path) -> frozenset[str]:
    """`Class`, `function` and `Class.method` of a file."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            names |= {f"{node.name}.{m.name}" for m in getattr(node, "body", ()) if isinstance(m, ast.FunctionDef)}
    return frozenset(names)


@pytest.mark.parametrize("name", registry.names())
def test_every_protocol_has_a_page(name: str) -> None:
    text = (pages.DOCS / f"{name}.md").read_text()
    for word in ("**Assumes**", "**Costs**", "**Pick it**", "\n## Errata", "\n## Figures", f"`protocols/{name}.py`"):
        assert word in text, f"{name}.md says nothing under {word!r}"
    for part in ("latency", "messages"):
        assert pages.part(text, part), f"{name}.md: {part} was never measured"
    rows = [row for row in _rows(pages.part(COMPARISON, "latency")) if row[0] == f"`{name}`"]
    assert rows == _rows(pages.part(text, "latency")), f"{name}.md and COMPARISON.md are of different measurements"


def test_there_is_no_page_without_a_protocol() -> None:
    others = {Path(pages.COMPARISON).stem, "clocks", "overload", "visual"}
    assert {page.stem for page in PAGES} == {*registry.names(), *others}


def test_the_table_of_traits_is_what_the_specifications_say() -> None:
    assert pages.part(COMPARISON, "traits") == pages.traits().strip(), "run compare-page"


@pytest.mark.parametrize("name", registry.names())
def test_every_published_variant_has_a_measured_row(name: str) -> None:
    rows = [row for row in _rows(pages.part(COMPARISON, "latency")) if row[0] == f"`{name}`"]
    published = variants(registry.load(name), {})
    assert sorted(row[8] for row in rows) == sorted(p.source for p in published)
    for one in published:
        figures = [getattr(one, field) for field in pages.FIELDS]
        expected = ["-" if f is None else f"{f[0] + f[1] * T_CONS:.4g}" for f in figures]
        told = [[re.search(r"\((.*?)\)", cell)[1] for cell in row[4:8]] for row in rows if row[8] == one.source]  # type: ignore[index]
        assert expected in told, f"{one.source}: {expected} is not among {told}"


def test_every_paper_figure_is_in_the_comparison() -> None:
    told = {row[8] for row in _rows(pages.part(COMPARISON, "latency"))}
    assert {p.source for p in table()} <= told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_reference_leads_somewhere(page: Path) -> None:
    """Files as `path` or `path:Name`, and pages as links."""
    text = page.read_text()
    found = 0
    for path, name in re.findall(r"`([\w/]+(?:\.py|\.md)|simulation/experiments)(?::([\w.]+))?`", text):
        folder = ROOT if path.startswith(("tests/", "kvstore/")) else ROOT / "multicast"
        assert (folder / path).exists(), f"{page.name}: {path}"
        assert not name or name in _names(folder / path), f"{page.name}: {path}:{name}"
        found += 1
    assert found
    for target in re.findall(r"\]\((\S+?)\)", text):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_exists(page: Path) -> None:
    known = {info.name.replace("_", "-") for info in pkgutil.iter_modules(commands.__path__)}
    text = page.read_text()
    named = re.findall(r"`python -m multicast\.simulation ([\w-]+)", text)
    if page.name == pages.COMPARISON:
        papers = text.partition("# Where it is")[2]
        last = [row[-1] for row in _rows(papers)]
        named += [match[1].split()[0] for cell in last if (match := re.match(r"`([a-z][\w-]*(?: .*)?)`", cell))]
        assert {"latency", "run", "trace", "explore", "experiments"} <= set(named)
    assert set(named) <= known


def test_a_page_is_changed_between_the_marks_only() -> None:
    text = "a\n<!-- x: generated -->\nold\n<!-- end of x -->\nb\n"
    assert pages.replace(text, "x", "new \\1") == "a\n<!-- x: generated -->\n\nnew \\1\n\n<!-- end of x -->\nb\n"
    assert pages.part(pages.replace(text, "x", "new"), "x") == "new"
    with pytest.raises(pages.BadPage, match="place for 'y'"):
        pages.replace(text, "y", "new")


def _compare_page(*arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "multicast.simulation", "compare-page", *arguments]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_measurements_are_written_into_the_pages(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    shutil.copytree(pages.DOCS, docs)
    measured = tmp_path / "latency.json"
    done = subprocess.run(
        [sys.executable, "-m", "multicast.simulation", "latency", "--protocol", "sequencer", "--effort", "0.05",
         "--json", str(measured)],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    claims = tmp_path / "claims.csv"
    with claims.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["figure", "source", "claim", "criterion", "ours", "agrees", "reason"])
        writer.writerow(["lan", "a paper", "faster | slower", "-", "3 ms", "no", "half of it"])
    row: dict[str, Any] = {
        "protocol": "skeen", "replicas": 1, "kind": "txn", "clients": 64, "per_second": 1234.5, "p50_ms": 1.26,
        "p99_ms": 9.0, "ratio": None,
    }  # fmt: skip
    bench = tmp_path / "bench.json"
    bench.write_text(json.dumps({"baseline": "white_box", "rows": [row], "failed": {"toto": "did not start"}}))
    done = _compare_page(
        "--latency", str(measured), "--experiments", str(claims), "--bench", str(bench), "--docs", str(docs)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text = (docs / pages.COMPARISON).read_text()
    assert [line[0] for line in _rows(pages.part(text, "latency"))] == ["`sequencer`"]
    assert _rows(pages.part(text, "experiments")) == [["lan", "a paper", "faster / slower", "3 ms", "no: half of it"]]
    assert [line[:5] for line in _rows(pages.part(text, "bench"))] == [
        ["`skeen`", "1", "txn", "64", "1234"], ["`toto`", "-", "not measured: did not start", "-", "-"]
    ]  # fmt: skip
    assert (docs / "skeen.md").read_text() == (pages.DOCS / "skeen.md").read_text()


@pytest.mark.parametrize(
    ("content", "text"), [("{", "this is not JSON"), ('[{"protocol": 1}]', "a measurement is not what the command")]
)
def test_what_is_no_measurement_is_refused_in_one_line(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    before = COMPARISON
    done = _compare_page("--latency", str(path))
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (pages.DOCS / pages.COMPARISON).read_text() == before
