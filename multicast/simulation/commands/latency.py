"""`latency`: delivery latency in message delays, beside the papers'."""

from __future__ import annotations

import msgspec
import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast.simulation.cli import (
    JsonOption,
    OptionOption,
    ProtocolOption,
    check,
    console,
    option_pairs,
    protocols,
    write_json,
)
from multicast.simulation.latency import DELTA_US, Row, rows
from multicast.simulation.runner import Settings


def command(protocol: ProtocolOption = "all", option: OptionOption = None, json_file: JsonOption = None) -> None:
    """Measure collision-free delivery latency in message delays beside the papers'. Exit status 1 if one differs."""
    chosen, options = protocols(protocol), option_pairs(option)
    for one in chosen:
        check(one, Settings(options=options))
    measured: list[Row] = []
    for one in chosen:
        measured += rows(one, options)
    console.print(_latency_table(measured))
    write_json(json_file, msgspec.to_builtins(measured))
    if not all(row.match for row in measured):
        raise typer.Exit(1)


def _latency_table(measured: list[Row]) -> Table:
    table = Table(
        title=f"Collision-free latency in δ ({DELTA_US} us), worst sender: k groups of n;"
        " first delivery in each group, every replica",
        box=SIMPLE,
    )
    for heading in ("protocol", "k", "n", "sender", "first", "paper", "every", "paper", "sent", "match"):
        table.add_column(heading, justify="left" if heading in ("protocol", "sender") else "right")
    for row in measured:
        first, every = row.paper["collision_free_first"], row.paper["collision_free_all"]
        exact = (first, every) in ((None, None), (row.collision_free_first, row.collision_free_all))
        table.add_row(
            row.protocol, str(row.destinations), str(row.replicas), row.sender, f"{row.collision_free_first:g}",
            "-" if first is None else str(first), f"{row.collision_free_all:g}", "-" if every is None else str(every),
            str(row.messages), ("yes" if exact else "below") if row.match else "NO",
        )  # fmt: skip
    return table
