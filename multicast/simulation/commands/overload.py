"""`overload`: a leader stands still under open load; whether the protocol recovers, and what repetition costs."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast.protocol import MulticastProtocol
from multicast.simulation.cli import BadUsage, JsonOption, ProtocolOption, console, progress, protocols, write_json
from multicast.simulation.experiments.calibrate import RECORDED
from multicast.simulation.experiments.load import Variant
from multicast.simulation.experiments.overload import (
    GROUPS,
    PAUSES_MAX,
    SLOWER,
    STORM_MAX,
    Outcome,
    Overload,
    overload,
    saturation,
    slow,
)

_SHARES = "0.5,0.8,0.95"
_CURVE_EVERY = 5
_WIDTH = 120


def command(
    protocol: ProtocolOption = "all",
    shares: Annotated[str, typer.Option(metavar="S,S,...", help="Loads, as shares of saturation.")] = _SHARES,
    pauses: Annotated[str, typer.Option(metavar="S,S,...", help="How long a leader stands still, seconds.")] = "1,4",
    slower: Annotated[
        float, typer.Option(help="Processors against the recorded ones; rates are lower by it.")
    ] = SLOWER,
    seed: Annotated[int, typer.Option(help="Of clients and delays.")] = 1,
    curve: Annotated[bool, typer.Option("--curve", help="Print throughput and backlog over time, too.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Offer a protocol shares of its own saturation, pause the leader of each group in turn, and see how long it takes
    until backlog and latency are usual again. Exit status 1 if it takes longer than three pauses, or what the
    processors can do at best, or if a multicast costs much more messages than in peace."""
    chosen = [p for p in protocols(protocol) if p.specification.fault_tolerant]
    if not chosen:
        raise BadUsage(f"--protocol: {protocol} has one process per group; nothing leads while it stands still")
    loads, lengths = _numbers("shares", shares, 0.01, 0.99), _numbers("pauses", pauses, 0.1, 60.0)
    if not 1.0 <= slower <= 10_000.0:
        raise BadUsage(f"--slower is from 1 to 10000, not {slower:g}")
    outcomes: list[Outcome] = []
    with progress() as bar:
        task = bar.add_task("", total=len(chosen) * len(loads) * len(lengths) * GROUPS)
        for one in chosen:
            for outcome in _tried(one, loads, lengths, slower, seed):
                outcomes.append(outcome)
                bar.update(task, advance=1, description=one.specification.name)
    console.print(_table(outcomes))
    if curve:
        for outcome in outcomes:
            _print_curve(outcome)
    write_json(json_file, msgspec.to_builtins(outcomes))
    if any(not o.good for o in outcomes):
        raise typer.Exit(1)


def _tried(
    protocol: type[MulticastProtocol], loads: list[float], lengths: list[float], slower: float, seed: int
) -> list[Outcome]:
    cpu, name = slow(RECORDED, slower), protocol.specification.name
    variant = Variant(title=name, protocol=name)
    most = saturation(variant, cpu, seed)
    return [
        overload(
            Overload(
                variant=variant,
                saturation=most,
                share=share,
                pause_us=int(length * 1e6),
                group=group,
                cpu=cpu,
                seed=seed,
            )
        )
        for length in lengths
        for share in loads
        for group in range(GROUPS)
    ]


def _numbers(name: str, text: str, least: float, most: float) -> list[float]:
    numbers: list[float] = []
    for word in text.split(","):
        try:
            number = float(word)
        except ValueError:
            raise BadUsage(f"--{name} is a list of numbers like 0.5,1, not {text[:60]!r}") from None
        if not least <= number <= most:
            raise BadUsage(f"--{name}: from {least:g} to {most:g}, not {word.strip()}")
        numbers.append(number)
    return numbers


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(
        title="recovered: from the end of the pause; in lengths of the pause; at best: by spare capacity\n"
        f"storm: messages per multicast against those in peace; good: {PAUSES_MAX:g} pauses or at best, {STORM_MAX:g}",
        box=SIMPLE,
    )
    for heading in (
        "protocol",
        "per s",
        "load",
        "pause",
        "group",
        "recovered",
        "pauses",
        "at best",
        "worst",
        "storm",
        "",
    ):
        table.add_column(heading, justify="left" if heading == "protocol" else "right", no_wrap=True)
    table.width = max(console.width, _WIDTH)
    for o in outcomes:
        plan = o.overload
        table.add_row(
            plan.variant.title, f"{plan.rate:.0f}", f"{plan.share:.0%}", f"{plan.pause_us / 1e6:g} s", str(plan.group),
            "never" if o.recovered_us is None else f"{o.recovered_us / 1e6:.1f} s",
            "" if o.pauses is None else f"{o.pauses:.1f}", f"{o.best:.1f}", str(o.worst), f"{o.storm:.1f}",
            "" if o.good else "bad",
        )  # fmt: skip
    return table


def _print_curve(outcome: Outcome) -> None:
    plan = outcome.overload
    console.print(
        f"{plan.variant.title}, {plan.share:.0%}, {plan.pause_us / 1e6:g} s, group {plan.group}:", markup=False
    )
    for b in outcome.bins[::_CURVE_EVERY]:
        latency = "-" if b.latency_us is None else f"{b.latency_us / 1e3:.0f} ms"
        console.print(
            f"  {b.at_us / 1e6:6.1f} s  {b.done:6d} done  {b.outstanding:6d} outstanding  {latency}", markup=False
        )
