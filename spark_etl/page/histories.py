"""The report on histories of any database as one page: of one, or of a directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_etl.blackbox.compare import DISAGREE
from spark_etl.blackbox.facts import Anomaly, show
from spark_etl.blackbox.history import BadHistory, parse_line
from spark_etl.blackbox.report import SHOWN, HistoriesReport, HistoryReport
from spark_etl.blackbox.solver import HOLDS
from spark_etl.names import ANOMALIES, VIOLATIONS, meaning
from spark_etl.page.parts import KINDS, SIGNS, document, esc, models, pill, spoken, violation
from spark_etl.report import UNDETERMINED, VIOLATED, Edge, Evidence, Operation, Violation

SECTIONS_MAX = 100
"""Histories of a directory that have a section of their own; the index has all."""

Lines = Mapping[int, str]
"""Number of a line, from 0 -> its text."""

_MEANINGS = VIOLATIONS | ANOMALIES

_VERDICTS = {0: HOLDS, 1: VIOLATED, 2: UNDETERMINED}
_COMPARED = {0: "as expected", 1: "not as expected", 2: "not all readable"}
"""Of a directory with verdict files."""


def page(report: HistoriesReport, files: Mapping[str, Path]) -> str:
    """The whole page. files: history -> its file, from which the lines that prove an anomaly are read again."""
    verdict = _VERDICTS[report.exit_code]
    word = _COMPARED[report.exit_code] if report.directory and report.compared else verdict
    if not report.directory and len(report.histories) == 1:
        (one,) = report.histories
        body = [_header(verdict, word, report.input, _said(one))]
        body += [f"<section><h2>{title}</h2>{part}</section>" for title, part in _parts(one, files).items() if part]
        return document(f"{word}: {report.input}", body)
    counts = ", ".join(f"{count:,} {name}" for name, count in report.summary.items() if count)
    body = [_header(verdict, word, report.input, [f"<p>{esc(counts)}</p>"]), _index(report)]
    shown = [(n, one) for n, one in enumerate(report.histories) if _wanted(one)]
    for number, one in shown[:SECTIONS_MAX]:
        parts = [*_said(one), *_parts(one, files).values()]
        body.append(f'<section id="h{number}" class="violated"><h2>{esc(one.history)}</h2>{"".join(parts)}</section>')
    if len(shown) > SECTIONS_MAX:
        body.append(f"<p>And {len(shown) - SECTIONS_MAX:,} more that do not hold; see the list above.</p>")
    return document(f"{word}: {report.input}", body)


def _wanted(one: HistoryReport) -> bool:
    """Whether it has a section: something is violated, or another verdict was expected."""
    unexpected = one.comparison is not None and one.comparison.result == DISAGREE
    return not one.error and (one.verdict == VIOLATED or bool(one.anomalies) or unexpected)


def _header(verdict: str, word: str, name: str, said: Sequence[str]) -> str:
    return (
        f'<header class="{KINDS[verdict]}"><p class="run">{esc(name)}</p>'
        f"<h1>{SIGNS[verdict]} {esc(word)}</h1>{''.join(said)}</header>"
    )


def _said(one: HistoryReport) -> list[str]:
    """What it all comes to."""
    if one.error:
        return [f"<p>It could not be read: {esc(one.error)}</p>"]
    names = dict.fromkeys(anomaly.name for anomaly in one.anomalies)
    parts = [
        f"<p>{one.transactions:,} transactions</p>",
        f"<p>Asked for: {esc(spoken(one.asked))} {pill(one.verdict)}</p>",
        f"<p>Strongest that holds: <b>{esc(', '.join(map(spoken, one.strongest)) or 'none')}</b></p>",
    ]
    if names:
        parts.append(f"<p>Anomalies: {', '.join(f'<code>{esc(name)}</code>' for name in names)}</p>")
    if one.comparison:
        details = "".join(f"<li>{esc(detail)}</li>" for detail in one.comparison.details)
        parts.append(f"<p>The verdict file: {esc(one.comparison.result)}</p>" + (f"<ul>{details}</ul>" * bool(details)))
    return parts


def _index(report: HistoriesReport) -> str:
    shown = [n for n, one in enumerate(report.histories) if _wanted(one)][:SECTIONS_MAX]
    linked = set(shown)
    rows = "".join(_row(n, one, n in linked) for n, one in enumerate(report.histories))
    head = "".join(
        f'<th scope="col">{title}</th>'
        for title in ("history", "transactions", "asked for", "verdict", "strongest that holds", "anomalies")
    )
    return (
        f'<section><h2>Histories</h2><div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(number: int, one: HistoryReport, linked: bool) -> str:
    name = f'<a href="#h{number}">{esc(one.history)}</a>' if linked else esc(one.history)
    if one.error:
        return f'<tr><td>{name}</td><td></td><td colspan="4">not readable: {esc(one.error)}</td></tr>'
    anomalies = ", ".join(dict.fromkeys(anomaly.name for anomaly in one.anomalies))
    strongest = ", ".join(map(spoken, one.strongest)) or "none"
    return (
        f"<tr><td>{name}</td><td>{one.transactions:,}</td><td>{esc(spoken(one.asked))}</td><td>{pill(one.verdict)}</td>"
        f"<td>{esc(strongest)}</td><td>{esc(anomalies)}</td></tr>"
    )


def _parts(one: HistoryReport, files: Mapping[str, Path]) -> dict[str, str]:
    """Title -> what stands under it."""
    if one.error:
        return {}
    verdicts = {name: (verdict.verdict, verdict.why) for name, verdict in one.models.items()}
    table = models(verdicts, "linearizable", ("by itself", "with sessions", "with real time"))
    several = [one.anomalies, *(guarantee.violations for guarantee in one.sessions.values())]
    wanted = {index for anomalies in several for anomaly in anomalies[:SHOWN] for index in anomaly.transactions}
    lines = _lines(files[one.history], wanted) if wanted and one.history in files else {}
    sessions = "".join(
        f"<p>{pill(guarantee.verdict)} {esc(name)}{esc(': ' + guarantee.why if guarantee.why else '')}</p>"
        + _shown(guarantee.violations, one.history, lines)
        for name, guarantee in one.sessions.items()
    )
    return {
        "Consistency models": table, "Anomalies": _shown(one.anomalies, one.history, lines),
        "Session guarantees": sessions,
    }  # fmt: skip


def _shown(anomalies: Sequence[Anomaly], history: str, lines: Lines) -> str:
    found = "".join(
        violation(_violation(anomaly, history, lines), meaning(anomaly.name, _MEANINGS))
        for anomaly in anomalies[:SHOWN]
    )
    more = len(anomalies) - SHOWN
    return found + (f"<p>And {more:,} more that are not shown.</p>" if more > 0 else "")


def _lines(path: Path, wanted: set[int]) -> Lines:
    with path.open("rb") as file:
        return {n: line.decode(errors="replace").rstrip("\n") for n, line in enumerate(file) if n in wanted}


def _violation(anomaly: Anomaly, history: str, lines: Lines) -> Violation:
    """As an audit would say it. Transaction Tn is on line n + 1."""
    places = {index: n for n, index in enumerate(dict.fromkeys(edge.source for edge in anomaly.edges))}
    edges = [
        Edge(places[edge.source], places[edge.target], edge.kind, "" if edge.key is None else str(edge.key), step)
        for edge, step in zip(anomaly.edges, anomaly.steps, strict=False)
    ]
    proof = [
        Evidence(history, f"T{index}: {lines[index]}", line=index + 1)
        for index in dict.fromkeys(anomaly.transactions)
        if index in lines
    ]
    return Violation(
        anomaly.name, anomaly.text, steps=list(anomaly.steps), edges=edges, evidence=proof,
        operations=[Operation(f"T{index}", _did(lines.get(index, ""))) for index in places],
    )  # fmt: skip


def _did(line: str) -> str:
    """The operations of a transaction, to stand in its box."""
    try:
        return ", ".join(show(op) for op in parse_line(line, 0).ops)
    except BadHistory:
        return ""
