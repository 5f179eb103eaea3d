"""`toto`: how early the ToTo family's delivery rules order messages, on random causal DAGs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast.simulation.cli import BadUsage, JsonOption, bounded, console, progress, write_json
from multicast.simulation.toto import (
    PAPER_PHI,
    PAPER_PREFIX,
    PAPER_PROCESSES,
    PAPER_SIMPLER,
    PAPER_TAIL,
    Row,
    Sweep,
    least_tail,
)

PROCESSES_MAX = 64
WIDTH_MAX = 1_000.0
_MESSAGES_MAX = 100_000
_DAGS_MAX = 1_000
_LANS_MAX = 8
_EARLY_MIN = 0.01


def command(
    processes: Annotated[str, typer.Option(metavar="N,N,...", help="How many processes.")] = "4,8,12",
    widths: Annotated[
        str, typer.Option(metavar="W,W,...", help="Mean delays, in messages sent by all meanwhile.")
    ] = "0,0.1,0.3,1,3,10",
    lans: Annotated[str, typer.Option(metavar="L,L,...", help="In how many LANs the processes are.")] = "1,2",
    messages: Annotated[int, typer.Option(help="Messages per DAG.")] = 300,
    dags: Annotated[int, typer.Option(help="DAGs per setting.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the DAGs.")] = 1,
    json_file: JsonOption = None,
) -> None:
    """Measure N_tail and the share delivered early by each rule, for every Φ and some widths of the causal DAG."""
    sweep = Sweep(
        processes=tuple(int(n) for n in _numbers("processes", processes, 1, PROCESSES_MAX, True)),
        widths=tuple(_numbers("widths", widths, 0, WIDTH_MAX, False)),
        lans=tuple(int(n) for n in _numbers("lans", lans, 1, _LANS_MAX, True)),
        messages=messages, dags=dags, seed=seed,
    )  # fmt: skip
    bounded("messages", messages, _MESSAGES_MAX)
    bounded("dags", dags, _DAGS_MAX)
    if messages < (least := 10 * max(sweep.processes)):
        raise BadUsage(f"--messages: at least ten per process, {least}, not {messages}")
    rows: list[Row] = []
    interrupted = False
    width: float | None = None
    try:
        with progress() as bar:
            task = bar.add_task("settings", total=len(list(sweep.settings())))
            for some in sweep.rows():
                rows += some
                bar.advance(task)
        if PAPER_PROCESSES in sweep.processes:
            width = sweep.width_for(PAPER_TAIL)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; so far:")
    console.print(_table(rows))
    findings = conclusions(rows, width) if not interrupted else []
    for line in findings:
        console.print(line, markup=False)
    write_json(json_file, {"rows": msgspec.to_builtins(rows), "findings": findings})
    if interrupted:
        raise typer.Exit(130)


def _numbers(name: str, text: str, least: float, most: float, whole: bool) -> list[float]:
    numbers: list[float] = []
    for word in text.split(","):
        try:
            number = float(int(word)) if whole else float(word)
        except ValueError:
            raise BadUsage(f"--{name} is a list of numbers like 4,8, not {text[:60]!r}") from None
        if not least <= number <= most:
            raise BadUsage(f"--{name}: from {least:g} to {most:g}, not {word.strip()}")
        numbers.append(number)
    return numbers


def _table(rows: list[Row]) -> Table:
    table = Table(
        title="N_tail: processes heard from when a message is ordered; least: the least possible\n"
        "early: share ordered before all were heard; conc.: how many messages one is concurrent with\n"
        "gain: s_toto: share of its early ones that toto has not ordered then; gl_toto: share ordered by a prefix",
        box=SIMPLE,
    )
    for heading in ("n", "LANs", "width", "conc.", "rule", "Φ", "least", "N_tail", "early", "gain"):
        table.add_column(heading, justify="left" if heading == "rule" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.n), str(row.lans), f"{row.width:g}", f"{row.concurrent:.1f}", row.rule, str(row.phi),
            str(least_tail(row.n, row.phi, row.rule)), f"{row.tail:.2f}", f"{row.early:.0%}",
            "" if row.gain is None else f"{row.gain:.1%}",
        )  # fmt: skip
    return table


def conclusions(rows: list[Row], width: float | None) -> list[str]:
    """What one must assume for the paper's three numbers. A share of less than `_EARLY_MIN` messages says nothing."""
    lines: list[str] = []
    here = [r for r in rows if r.n == PAPER_PROCESSES and r.phi == PAPER_PHI and r.rule == "s_toto"]
    if here:
        assumption = "is exceeded even on a bus" if width is None else f"needs a width of at most {width:.2f}"
        lines.append(
            f"N_tail = {PAPER_TAIL} (n = {PAPER_PROCESSES}, Φ = {PAPER_PHI}, S-ToTo) {assumption}, one LAN; over the"
            f" widths above N_tail is {min(r.tail for r in here):.2f} to {max(r.tail for r in here):.2f}, the least"
            f" possible is {least_tail(PAPER_PROCESSES, PAPER_PHI, 's_toto')}"
        )
    for rule, paper, what in (
        ("s_toto", PAPER_SIMPLER, "of S-ToTo's early messages ToTo has not ordered at that moment"),
        ("gl_toto", PAPER_PREFIX, "of all messages are ordered by GL-ToTo's prefix"),
    ):
        of_rule = [r for r in rows if r.rule == rule and r.gain is not None and r.early >= _EARLY_MIN]
        if of_rule:
            low, high = (pick(of_rule, key=lambda r: r.gain or 0.0) for pick in (min, max))
            lines.append(
                f'"as much as {paper:.0%}": {low.gain:.1%} {_where(low)} to {high.gain:.1%} {_where(high)} {what}'
            )
    return lines


def _where(row: Row) -> str:
    return f"(n = {row.n}, Φ = {row.phi}, width {row.width:g}, LANs: {row.lans}, early: {row.early:.0%})"
