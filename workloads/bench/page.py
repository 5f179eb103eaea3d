"""The page of published results, `BENCHMARKS.md`: tables between marks, written from what benchmarks wrote as JSON.

The page is written by hand but for what is between `<!-- NAME: ... -->` and `<!-- end of NAME -->`. Which part a result
belongs to is seen from what it holds: `section`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from workloads.bench import against, compare, kinds, results

PAGE = Path(__file__).resolve().parents[1] / "BENCHMARKS.md"


class BadPage(ValueError):
    """A page without the mark that it should have, or a result that is none; one line."""


def update(page: Path, files: Iterable[Path]) -> list[str]:
    """Write the results in these files into the page; the names of its parts that were written. BadPage or OSError if
    it cannot be."""
    text, written = page.read_text(encoding="utf-8"), []
    for file in files:
        try:
            name, body = section(msgspec.json.decode(file.read_bytes()))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise BadPage(f"{file}: not a result of a benchmark as -o json writes it ({error!r})") from None
        text = replace(text, name, body)
        written.append(name)
    page.write_text(text, encoding="utf-8")
    return written


def replace(text: str, name: str, body: str) -> str:
    """The page with this part."""
    pattern = re.compile(rf"(<!-- {re.escape(name)}:[^\n]*-->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise BadPage(f"the page has not exactly one place for {name!r}")
    return pattern.sub(lambda match: f"{match[1]}\n{body.strip()}\n\n{match[2]}", text)


def section(result: dict[str, Any]) -> tuple[str, str]:
    """(name, Markdown). Beside etcd: "etcd", or what else was asked for: "wrk", "ycsb", "open". One cluster: "cluster".
    "protocols". The multicast layer alone: "multicast"."""
    if "rounds" in result:
        run = msgspec.convert(result, against.Against)
        settings = run.settings
        name = "wrk" if settings["load"] == "wrk" else "open" if settings["open_loop"] else "etcd"
        if any(kind in kinds.YCSB for kind in settings["kinds"]):
            name = "ycsb"
        told = [*against.heading(run), *(f"not measured: {why}" for why in run.failed)]
        return name, _part([*told, _when(result)], against.HEADINGS, against.cells(run.rows), against.EXPLAINED)
    if "baseline" in result:
        comparison = msgspec.convert(result, compare.Comparison)
        headings, rows = compare.cells(comparison)
        told = [*compare.heading(comparison), *(f"{p} was not measured: {w}" for p, w in comparison.failed.items())]
        return "protocols", _part([*told, _when(result)], headings, rows)
    if "lines" in result:
        report = msgspec.convert(result, results.Report)
        told = [*results.heading(report), _when(result)]
        return "cluster", _part(told, results.HEADINGS, results.cells(report.lines), results.COSTS_EXPLAINED)
    return "multicast", _part(result["explained"], result["headings"], result["rows"])


def _when(result: dict[str, Any]) -> str:
    return f"Took {result['total_seconds']:g} s, from {result['began']}."


def _part(told: Sequence[str], headings: Sequence[str], rows: Iterable[Sequence[str]], explained: str = "") -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    table = "\n".join(f"| {' | '.join(cell.strip().replace('|', '/') for cell in line)} |" for line in lines)
    notes = "\n".join(f"- {line.strip()}" for line in told)
    return f"{notes}\n\n{table}\n\n{explained}"
