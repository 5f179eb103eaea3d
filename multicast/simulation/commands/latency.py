"""`latency`: delivery latency in message delays and messages per multicast, beside the papers'."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from multicast import registry
from multicast.simulation.cli import (
    BadUsage,
    JsonOption,
    OptionOption,
    ProtocolOption,
    bounded,
    check,
    console,
    option_pairs,
    protocols,
    write_json,
)
from multicast.simulation.latency.published import SKEW_MAX, SKEWS, Published, variants
from multicast.simulation.latency.schedule import DELTA_US
from multicast.simulation.latency.table import GROUPS, REPLICAS, Counted, Plan, Row, consensus_row, row
from multicast.simulation.runner import Settings

DESTINATIONS_MAX = 8
REPLICAS_MAX = 9
SEED_MAX = 1 << 63
EFFORT_MAX = 1_000.0
_WIDTH = 200
"""Of the tables. They are wide; where the lines are to be cut is the terminal's business."""


def command(
    protocol: ProtocolOption = "all",
    option: OptionOption = None,
    groups: Annotated[int | None, typer.Option(help=f"Destination groups; {GROUPS} if not said.")] = None,
    replicas: Annotated[int | None, typer.Option(help=f"Processes per group; {REPLICAS} if not said.")] = None,
    seed: Annotated[int, typer.Option(help="Of the searches and samples.")] = 0,
    effort: Annotated[float, typer.Option(help="How long to search: 1 is a few seconds per line.")] = 1.0,
    skew: Annotated[
        list[float] | None, typer.Option(help="Clock error in δ at which to measure hybrid clocks; may be repeated.")
    ] = None,
    schedules: Annotated[bool, typer.Option(help="Print the worst schedules found.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Measure delivery latency in message delays, alone and in the worst case, and messages per multicast, beside what
    the papers say. Exit status 1 if anything differs."""
    plan = _plan(groups, replicas, seed, effort, skew)
    chosen, options = protocols(protocol), option_pairs(option)
    for one in chosen:
        check(one, Settings(options=options))
    todo = [(one, published) for one in chosen for published in variants(one, options, plan.skews)]
    measured: list[Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=float(len(todo)))
        if protocol == "all":
            measured.append(consensus_row(plan.replicas or REPLICAS))
        for done, (one, published) in enumerate(todo):
            bar.update(task, description=_title(one.specification.name, published))
            measured.append(row(one, published, plan, partial(_advance, bar, task, done)))
    write_json(json_file, msgspec.to_builtins(measured))
    _show(measured, schedules)
    if not all(one.match for one in measured):
        raise typer.Exit(1)


def _advance(bar: Progress, task: TaskID, done: int, share: float) -> None:
    bar.update(task, completed=done + share)


def _plan(groups: int | None, replicas: int | None, seed: int, effort: float, skews: list[float] | None) -> Plan:
    bounded("groups", groups, DESTINATIONS_MAX)
    bounded("replicas", replicas, REPLICAS_MAX)
    if replicas is not None and replicas % 2 == 0:
        raise BadUsage(f"--replicas is odd (2f + 1), not {replicas}")
    if not 0 <= seed <= SEED_MAX:
        raise BadUsage(f"--seed is from 0 to {SEED_MAX}, not {seed}")
    if not 0 < effort <= EFFORT_MAX:
        raise BadUsage(f"--effort is above 0 and at most {EFFORT_MAX:g}, not {effort:g}")
    for value in skews or ():
        if not 0 <= value <= SKEW_MAX or round(value * DELTA_US) != value * DELTA_US:
            raise BadUsage(f"--skew is from 0 to {SKEW_MAX:g} δ, in steps of 1/{DELTA_US}, not {value:g}")
    return Plan(groups=groups, replicas=replicas, seed=seed, effort=effort, skews=tuple(skews or SKEWS))


# -- for people --------------------------------------------------------------------------------------------------------


def _title(name: str, published: Published) -> str:
    return " ".join([name, *(f"{key}={value}" for key, value in published.options.items())])


def _show(measured: list[Row], schedules: bool) -> None:
    for table in (_latencies(measured), _counts(measured)):
        table.width = max(console.width, _WIDTH)
        console.print(table, width=table.width)
    for one in measured:
        for mean in one.averages:
            value = "not delivered" if mean.measured is None else f"{mean.measured:.2f}"
            console.print(
                f"{_name(one)}: always busy, {mean.blockers} blockers: {value} on average ({mean.paper:.2f})",
                markup=False,
            )
        if one.early is not None:
            paper = "-" if one.early_paper is None else f"{one.early_paper:g}"
            console.print(f"{_name(one)}: optimistic delivery at {one.early:g} ({paper})", markup=False)
    for one in measured:
        for line in one.against:
            console.print(f"{_name(one)}: {line}", markup=False)
        if schedules and one.schedules:
            for name, lines in (("first", one.worst_first), ("every", one.worst_all)):
                console.print(f"{_name(one)}: worst for {name}:", markup=False)
                for line in lines:
                    console.print(f"  {line}", markup=False)


def _latencies(measured: list[Row]) -> Table:
    table = Table(
        title="Latency in δ to k groups of n, measured (paper): alone, and in the worst case found; first delivery in"
        " each group (L: its leader's), every replica",
        box=SIMPLE,
    )
    for heading in ("protocol", "options", "k", "n"):
        table.add_column(heading, justify="right" if len(heading) == 1 else "left")
    for heading in ("alone, first", "every", "worst, first", "every", "messages", "match"):
        table.add_column(heading, justify="right")
    for one in measured:
        leader = " L" if one.first_at == "leader" else ""
        table.add_row(
            one.protocol,
            _options(one),
            str(one.destinations),
            str(one.replicas),
            _pair(one.collision_free_first, one.paper["collision_free_first"]) + leader,
            _pair(one.collision_free_all, one.paper["collision_free_all"]),
            _pair(one.failure_free_first, one.paper["failure_free_first"]) + leader,
            _pair(one.failure_free_all, one.paper["failure_free_all"]),
            _messages(one),
            "yes" if one.match else "NO",
        )
    return table


def _counts(measured: list[Row]) -> Table:
    table = Table(title="Messages per multicast to k groups of n, beside the formula", box=SIMPLE)
    for heading in ("protocol", "options", "formula", "n", "k: measured (formula)"):
        table.add_column(heading, justify="right" if heading == "n" else "left")
    shown: list[tuple[str, list[Counted]]] = []
    for one in measured:
        if (one.protocol, one.counts) in shown:
            continue
        shown.append((one.protocol, one.counts))
        for replicas in sorted({c.replicas for c in one.counts}):
            cells = [
                f"{c.destinations}: {c.messages} ({c.least if c.least == c.most else f'{c.least}..{c.most}'})"
                for c in one.counts
                if c.replicas == replicas
            ]
            table.add_row(one.protocol, _options(one), one.formula, str(replicas), "  ".join(cells))
    return table


def _messages(one: Row) -> str:
    most = one.paper["messages"]
    if most is None or most == one.messages_least:
        return _pair(one.messages, most)
    return f"{one.messages} ({one.messages_least}..{most:g})"


def _pair(value: float | None, paper: float | None) -> str:
    return f"{'-' if value is None else f'{value:g}'} ({'-' if paper is None else f'{paper:g}'})"


def _name(one: Row) -> str:
    return f"{one.protocol} {_options(one)}".rstrip()


def _options(one: Row) -> str:
    """Those that are not as usual."""
    usual: dict[str, Any] = {}
    if one.protocol in registry.names():
        usual = msgspec.to_builtins(registry.load(one.protocol).specification.options())
    words = [f"{key}={_text(value)}" for key, value in one.options.items() if usual.get(key) != value]
    if one.skew:
        words.append(f"skew={one.skew:g}")
    return " ".join(words)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
