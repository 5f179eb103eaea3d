"""The report on histories: as data (JSON), and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from spark_etl import names
from spark_etl.blackbox.compare import AGREE, DISAGREE, Comparison, internal_name, public_name
from spark_etl.blackbox.facts import Anomaly
from spark_etl.blackbox.judge import EXIT_CODES, LINEARIZABLE
from spark_etl.blackbox.models import BASES, PLAIN, REALTIME, SESSION
from spark_etl.blackbox.sessions import Guarantee
from spark_etl.blackbox.solver import HOLDS, UNDETERMINED, VIOLATED, Verdict
from spark_etl.report import visible

SCHEMA_VERSION = 1
UNREADABLE = "unreadable"
SHOWN = 20
"""Anomalies of one history that are shown; the JSON has all."""

_STYLES = {HOLDS: "green", VIOLATED: "bold red", UNDETERMINED: "yellow", AGREE: "green", DISAGREE: "bold red"}


class HistoryReport(msgspec.Struct):
    """On one history. error: why it could not be judged, or empty; then the rest is empty. asked: the model that
    decides on the exit status; verdict: "holds", "violated" or "not determined", on that one. strongest: models that
    hold and are implied by no other that holds. sessions: session guarantee -> verdict, and violations.
    comparison: with the verdict file beside it, if there is one."""

    history: str
    error: str = ""
    transactions: int = 0
    asked: str = ""
    verdict: str = ""
    strongest: list[str] = []
    anomalies: list[Anomaly] = []
    models: dict[str, Verdict] = {}
    sessions: dict[str, Guarantee] = {}
    comparison: Comparison | None = None

    @property
    def exit_code(self) -> int:
        """0 it holds, 1 it is violated, 2 not determined or not readable."""
        return 2 if self.error else EXIT_CODES[self.verdict]


class HistoriesReport(msgspec.Struct):
    """On all of them. directory: more than one file was asked for. summary: how many there are by verdict, or,
    where there are verdict files, by result of the comparison; and how many are unreadable."""

    input: str
    histories: list[HistoryReport]
    seconds: float
    directory: bool = True
    summary: dict[str, int] = {}
    version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        counts = {"histories": len(self.histories), HOLDS: 0, VIOLATED: 0, UNDETERMINED: 0, UNREADABLE: 0}
        for one in self.histories:
            counts[UNREADABLE if one.error else one.verdict] += 1
        if self.compared:
            results = [one.comparison.result for one in self.histories if one.comparison]
            counts |= {f"comparisons {name}": results.count(name) for name in (AGREE, DISAGREE, UNDETERMINED)}
        self.summary = counts

    @property
    def compared(self) -> bool:
        """Whether there is any verdict file."""
        return any(one.comparison for one in self.histories)

    @property
    def exit_code(self) -> int:
        """Of a directory with verdict files: 1 if one disagrees, 2 if one cannot be read, else 0. Else the worst."""
        codes = [one.exit_code for one in self.histories]
        if self.directory and self.compared:
            if any(one.comparison and one.comparison.result == DISAGREE for one in self.histories):
                return 1
            return 2 if any(one.error for one in self.histories) else 0
        return 1 if 1 in codes else 2 if 2 in codes else 0


def to_json(report: HistoriesReport) -> bytes:
    """Indented, with a line end."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def spoken(model: str) -> str:
    """A model's name in words."""
    return public_name(model).replace("strong-session-", "strong session ").replace("-", " ")


def render_one(one: HistoryReport, console: Console) -> None:
    """The table of one history, and its anomalies, a sentence per edge."""
    if one.error:
        _line(console, _text(("not readable: ", "yellow"), one.error))
        return
    _line(console, _text((f"{one.history}: {one.transactions:,} transactions", "bold")))
    table = Table(show_edge=False, pad_edge=False)
    for column in ("model", "by itself", "with sessions", "with real time"):
        table.add_column(column, no_wrap=True)
    for base in BASES:
        cells = [one.models[public_name(variant + base)].verdict for variant in (PLAIN, SESSION, REALTIME)]
        table.add_row(spoken(base), *(Text(cell, _STYLES[cell]) for cell in cells))
    linear = one.models[LINEARIZABLE].verdict
    table.add_row("linearizable per key", "", "", Text(linear, _STYLES[linear]))
    console.print(table)
    for line in names.definitions():
        _line(console, Text(line, "dim"))
    _line(console, Text("serializable with sessions: strong session serializable; with real time: strict serializable"))
    _line(console, Text(f"strongest that holds: {_list([spoken(m) for m in one.strongest]) or 'none'}"))
    _anomalies(one.anomalies, console)
    for name, guarantee in one.sessions.items():
        why = f": {guarantee.why}" if guarantee.why else ""
        _line(console, _text(f"{name}: ", (guarantee.verdict, _STYLES[guarantee.verdict]), why))
        _anomalies(guarantee.violations, console)
    for verdict in (VIOLATED, UNDETERMINED):
        for why, models in _reasons(one, verdict).items():
            _line(console, _text((f"{verdict}: {_list([spoken(m) for m in models])}: {why}", "dim")))
    if one.comparison:
        _line(console, Text(f"the verdict file: {one.comparison.result}", _STYLES[one.comparison.result]))
        for detail in one.comparison.details:
            _line(console, _text(f"    {detail}"))
    asked = _text(f"verdict: {spoken(internal_name(one.asked))} ", (one.verdict, _STYLES[one.verdict]))
    _line(console, asked)


def _anomalies(anomalies: Sequence[Anomaly], console: Console) -> None:
    for anomaly in anomalies[:SHOWN]:
        _line(console, _text((anomaly.name, "bold red"), f": {anomaly.text}"))
        for step in anomaly.steps:
            _line(console, _text(f"    {step}"))
    if len(anomalies) > SHOWN:
        _line(console, Text(f"and {len(anomalies) - SHOWN} more anomalies"))


def _reasons(one: HistoryReport, verdict: str) -> dict[str, list[str]]:
    """Why -> the models, unless an anomaly says the same already."""
    told = {anomaly.text for anomaly in one.anomalies}
    reasons: dict[str, list[str]] = {}
    for model, found in one.models.items():
        cyclic = found.cycle and one.anomalies
        if found.verdict == verdict and found.why and found.why not in told and not cyclic:
            reasons.setdefault(found.why, []).append(model)
    return reasons


def render_many(report: HistoriesReport, console: Console) -> None:
    """A line per history, and the counts."""
    for one in report.histories:
        _line(console, _one_line(one))
        for detail in one.comparison.details if one.comparison else ():
            _line(console, _text((f"    {detail}", "dim")))
    counts = ", ".join(f"{name} {count}" for name, count in report.summary.items())
    _line(console, Text(f"{counts} ({report.seconds:.1f} s)", "bold"))


def _one_line(one: HistoryReport) -> Text:
    if one.error:
        return _text(f"{one.history}: ", ("not readable: ", "yellow"), one.error)
    found = list(dict.fromkeys(anomaly.name for anomaly in one.anomalies))
    text = _text(f"{one.history}: ")
    if one.comparison:
        text.append_text(Text(one.comparison.result, _STYLES[one.comparison.result])).append("; ")
    text.append(f"strongest {_list([spoken(m) for m in one.strongest]) or 'none'}; {spoken(internal_name(one.asked))} ")
    text.append(one.verdict, _STYLES[one.verdict])
    return text.append(f"; {_list(found)}" if found else "")


def _text(*parts: str | tuple[str, str]) -> Text:
    """Of a line. Names and values of a history steer no terminal, and are cut if they are long."""
    cut = [(part, "") if isinstance(part, str) else part for part in parts]
    return Text.assemble(*((visible(text).replace("\n", "\\u000a"), style) for text, style in cut))


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)


def _line(console: Console, text: Text) -> None:
    """One line, however long: to be read on a terminal and searched in a log."""
    console.print(text, soft_wrap=True)
