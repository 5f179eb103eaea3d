"""The measured parts of the protocols' pages (multicast/docs): tables between marks, written from measurements.

A page is written by hand but for what is between `<!-- NAME: ... -->` and `<!-- end of NAME -->`. `traits` comes from
the code alone; the others from what `latency --json`, `experiments` and `kvstore bench --protocols` have written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from multicast import registry

DOCS = Path(__file__).resolve().parents[1] / "docs"
COMPARISON = "COMPARISON.md"
_LATENCY = "latency"


class BadPage(ValueError):
    """A page without the marks that it should have, or a measurement that is none; one line."""


def replace(text: str, name: str, body: str) -> str:
    """The page with this generated part."""
    pattern = re.compile(rf"(<!-- {re.escape(name)}:[^\n]*-->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise BadPage(f"there is not exactly one place for {name!r}")
    return pattern.sub(lambda match: f"{match[1]}\n{body.strip()}\n\n{match[2]}", text)


def part(text: str, name: str) -> str:
    """A generated part of a page."""
    match = re.search(rf"<!-- {re.escape(name)}:[^\n]*-->\n(.*?)<!-- end of {re.escape(name)} -->", text, re.DOTALL)
    if match is None:
        raise BadPage(f"there is no place for {name!r}")
    return match[1].strip()


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines) + "\n"


# -- from the code -----------------------------------------------------------------------------------------------------


def traits() -> str:
    """What the specifications say."""
    rows = []
    for name in registry.names():
        spec = registry.load(name).specification
        strict = "any number" if spec.strict_groups_max is None else str(spec.strict_groups_max)
        latency = f"{spec.latency[0]}, {spec.latency[1]}" if spec.latency else "-"
        survives = "a minority of each group" if spec.fault_tolerant else "restarts only"
        if spec.survives_lost_disk:
            survives += ", a lost disk"
        rows.append([
            f"[`{name}`]({name}.md)", spec.paper, survives, _yes(spec.genuine), _yes(spec.fifo), strict, latency,
        ])  # fmt: skip
    headings = ("protocol", "from", "survives", "genuine", "FIFO", "strictly serializable with so many groups",
                "δ alone: first, every replica")  # fmt: skip
    return table(headings, rows)


# -- from measurements -------------------------------------------------------------------------------------------------


def latency(rows: Sequence[Mapping[str, Any]], protocol: str | None = None) -> str:
    """Latencies in δ, measured (published); of one protocol or all."""
    lines = []
    for row in rows:
        if protocol in (None, row["protocol"]):
            at_leader = " L" if row["first_at"] == "leader" else ""
            figures = [_pair(row[field], row["paper"].get(field)) for field in FIELDS]
            figures[0] += at_leader
            figures[2] += at_leader
            lines.append([
                f"`{row['protocol']}`", options_text(row), str(row["destinations"]), str(row["replicas"]), *figures,
                row["source"], "yes" if row["match"] else "**no**",
            ])  # fmt: skip
    headings = ("protocol", "options", "k", "n", "alone: first", "every replica", "worst: first", "every replica",
                "published in", "agrees")  # fmt: skip
    return table(headings, lines) + _averages(rows, protocol)


FIELDS = ("collision_free_first", "collision_free_all", "failure_free_first", "failure_free_all")


def _averages(rows: Sequence[Mapping[str, Any]], protocol: str | None) -> str:
    lines = []
    for row in rows:
        if protocol in (None, row["protocol"]):
            name = " ".join(filter(None, (f"`{row['protocol']}`", options_text(row))))
            for mean in row["averages"]:
                ours = _figure(mean["measured"])
                lines.append(
                    f"- {name}: {ours} ({_figure(mean['paper'])}) on average, {mean['blockers']} blockers, always busy"
                )
            if row["early"] is not None:
                lines.append(f"- {name}: optimistic delivery at {_pair(row['early'], row['early_paper'])}")
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def messages(rows: Sequence[Mapping[str, Any]], protocol: str | None = None) -> str:
    """Messages per multicast, beside the formulas."""
    lines: list[list[str]] = []
    for row in rows:
        if protocol in (None, row["protocol"]) and row["counts"]:
            for replicas in sorted({count["replicas"] for count in row["counts"]}):
                counts = [c for c in row["counts"] if c["replicas"] == replicas]
                cells = [f"{c['messages']} ({_range(c['least'], c['most'])})" for c in counts]
                line = [f"`{row['protocol']}`", options_text(row, skew=False), row["formula"], str(replicas), *cells]
                if not any(known[0] == line[0] and known[2:] == line[2:] for known in lines):
                    lines.append(line)
    if not lines:
        return "Nothing is published about its number of messages.\n"
    ks = sorted({count["destinations"] for row in rows for count in row["counts"]})
    return table(("protocol", "options", "formula", "n", *(f"k = {k}" for k in ks)), lines)


def options_text(row: Mapping[str, Any], skew: bool = True) -> str:
    """Options that are not at their defaults, as on the command line."""
    usual: dict[str, Any] = {}
    if row["protocol"] in registry.names():
        usual = msgspec.to_builtins(registry.load(row["protocol"]).specification.options())
    words = [f"{key}={str(value).lower()}" for key, value in row["options"].items() if usual.get(key) != value]
    if skew and row["skew"]:
        words.append(f"(skew {row['skew']:g} δ)")
    return " ".join(words)


def claims(judged: Sequence[Mapping[str, Any]]) -> str:
    """The experiments' verdicts on the papers' claims."""
    lines = []
    for c in judged:
        verdict = f"{c['agrees']}: {c['reason']}" if c["reason"] else c["agrees"]
        lines.append([c["figure"], c["source"], c["claim"], c["ours"] or "-", verdict])
    return table(("figure", "paper", "claim", "ours", "agrees"), lines)


def bench(comparison: Mapping[str, Any]) -> str:
    """What `kvstore bench --protocols` measured."""
    lines = [
        [
            f"`{row['protocol']}`", str(row["replicas"]), row["kind"], str(row["clients"]), f"{row['per_second']:.0f}",
            f"{row['p50_ms']:.1f}", f"{row['p99_ms']:.1f}", "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ]
        for row in comparison["rows"]
    ]  # fmt: skip
    lines += [[f"`{name}`", "-", f"not measured: {why}", *["-"] * 5] for name, why in comparison["failed"].items()]
    headings = ("protocol", "replicas", "load", "clients", "per second", "p50 ms", "p99 ms",
                f"throughput / {comparison['baseline']}")  # fmt: skip
    return table(headings, lines)


def update(
    docs: Path,
    latencies: Sequence[Mapping[str, Any]] | None,
    judged: Sequence[Mapping[str, Any]] | None,
    comparison: Mapping[str, Any] | None,
) -> list[Path]:
    """Write the generated parts of all pages for which there is something. Returns the pages that changed. BadPage,
    OSError."""
    parts: dict[str, dict[str, str]] = {COMPARISON: {"traits": traits()}}
    try:
        if latencies is not None:
            known = {row["protocol"] for row in latencies}
            parts[COMPARISON] |= {_LATENCY: latency(latencies), "messages": messages(latencies)}
            for name in registry.names():
                if name in known:
                    parts[f"{name}.md"] = {
                        _LATENCY: latency(latencies, name), "messages": messages(latencies, name),
                    }  # fmt: skip
        if judged is not None:
            parts[COMPARISON]["experiments"] = claims(judged)
        if comparison is not None:
            parts[COMPARISON]["bench"] = bench(comparison)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadPage(f"a measurement is not what the command writes: {type(error).__name__} {error}") from None
    changed = []
    for page, bodies in parts.items():
        before = text = (docs / page).read_text()
        for name, body in bodies.items():
            try:
                text = replace(text, name, body)
            except BadPage as error:
                raise BadPage(f"{docs / page}: {error}") from None
        if text != before:
            (docs / page).write_text(text)
            changed.append(docs / page)
    return changed


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}..{most}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _pair(value: float | None, paper: float | None) -> str:
    return f"{_figure(value)} ({_figure(paper)})"
