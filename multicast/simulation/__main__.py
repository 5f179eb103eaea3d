"""Command line of the simulator: `python -m multicast.simulation run|latency`."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation.latency import DELTA_US, Row, rows
from multicast.simulation.runner import PROFILES, Settings, Summary, protocol_options, run_seed
from multicast.types import Topology

SEEDS_MAX = 10_000_000
GROUPS_MAX = 64
REPLICAS_MAX = 31
MESSAGES_MAX = 1_000_000
_FAILURES_SHOWN = 3

app = typer.Typer(add_completion=False, help="Run protocols in a simulated, faulty world.")
_console = Console(highlight=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, soft_wrap=True)


class _BadUsage(Exception):
    """One line for the user."""


def _protocols(name: str) -> list[type[MulticastProtocol]]:
    names = registry.names() if name == "all" else [name]
    try:
        return [registry.load(n) for n in names]
    except ValueError as error:
        raise _BadUsage(f"--protocol: {error}") from None


def _seeds(text: str) -> range:
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match:
        raise _BadUsage(f"--seeds is FROM:TO or one number, not {text!r}")
    first = int(match[1])
    seeds = range(first, int(match[2]) if match[2] else first + 1)
    if not seeds:
        raise _BadUsage(f"--seeds {text} holds no seed: FROM must be below TO")
    if len(seeds) > SEEDS_MAX:
        raise _BadUsage(f"--seeds: at most {SEEDS_MAX} seeds, not {len(seeds)}")
    return seeds


def _options(pairs: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise _BadUsage(f"--option is NAME=VALUE, not {pair!r}")
        options[key] = value
    return options


def _bounded(name: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        raise _BadUsage(f"--{name} is from 1 to {most}, not {value}")


def _check(protocol: type[MulticastProtocol], settings: Settings) -> None:
    """Whether these settings fit this protocol."""
    name = protocol.specification.name
    try:
        protocol_options(protocol, settings.options)
    except ValueError as error:
        raise _BadUsage(f"--option: {error}") from None
    if settings.replicas not in (None, 1) and not protocol.specification.fault_tolerant:
        raise _BadUsage(f"--replicas: {name} has one process per group, not {settings.replicas}")
    if settings.groups and settings.replicas:
        Topology.grid(settings.groups, settings.replicas)


def _write(path: Path | None, content: object) -> None:
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise _BadUsage(f"--json {path}: {error.strerror}") from None


ProtocolOption = Annotated[str, typer.Option(help="A protocol's name, or all.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="A protocol option; else drawn.")
]


@app.command()
def run(
    protocol: ProtocolOption,
    seeds: Annotated[str, typer.Option(metavar="FROM:TO", help="Which seeds; TO is not included.")] = "0:100",
    profile: Annotated[str, typer.Option(help="calm: no faults; faults: drawn from each seed.")] = "faults",
    groups: Annotated[int | None, typer.Option(help="How many groups; else drawn.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes per group; else drawn.")] = None,
    messages: Annotated[int | None, typer.Option(help="Messages per run; else drawn.")] = None,
    option: OptionOption = None,
    json_file: JsonOption = None,
) -> None:
    """Run seeds and check every property of atomic multicast. Exit status 1 on any violation."""
    if profile not in PROFILES:
        raise _BadUsage(f"--profile is one of {', '.join(PROFILES)}, not {profile!r}")
    _bounded("groups", groups, GROUPS_MAX)
    _bounded("replicas", replicas, REPLICAS_MAX)
    _bounded("messages", messages, MESSAGES_MAX)
    settings = Settings(
        profile=profile, groups=groups, replicas=replicas, messages=messages, options=_options(option or [])
    )
    wanted, chosen = _seeds(seeds), _protocols(protocol)
    for one in chosen:
        _check(one, settings)
    summaries = [Summary(one.specification.name, settings) for one in chosen]
    interrupted = False
    try:
        for one, summary in zip(chosen, summaries, strict=True):
            _run_seeds(one, wanted, settings, summary)
    except KeyboardInterrupt:
        interrupted = True
        _console.print("interrupted; so far:")
    _write(json_file, [s.to_json() for s in summaries] if len(summaries) > 1 else summaries[0].to_json())
    for summary in summaries:
        _print_summary(summary)
    if interrupted:
        raise typer.Exit(130)
    if any(s.failures for s in summaries):
        raise typer.Exit(1)


def _run_seeds(protocol: type[MulticastProtocol], seeds: range, settings: Settings, summary: Summary) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console, transient=True, disable=not _console.is_terminal) as progress:
        task = progress.add_task(protocol.specification.name, total=len(seeds))
        for seed in seeds:
            outcome = run_seed(protocol, seed, settings)
            summary.add(outcome)
            if outcome.violations:
                kinds = sorted({checker for checker, _ in outcome.violations})
                _console.print(f"seed {seed}: {', '.join(kinds)}: {outcome.violations[0][1]}", markup=False)
                _console.print(f"  replay: {settings.replay(summary.protocol, seed)}", markup=False)
                if len(seeds) == 1:
                    for checker, text in outcome.violations:
                        _console.print(f"  {checker}: {text}", markup=False)
            if len(seeds) == 1:
                _console.print(f"seed {seed}: {outcome.topology}, trace digest {outcome.digest}", markup=False)
            progress.advance(task)


def _print_summary(summary: Summary) -> None:
    result = summary.to_json()
    faults = ", ".join(f"{kind} {count}" for kind, count in result["faults"].items()) or "none"
    _console.print(
        f"{summary.protocol}: {summary.seeds} seeds, {result['simulated_seconds']:.1f} simulated seconds,"
        f" {summary.messages} messages, {summary.deliveries} deliveries, {summary.events} protocol events"
        f" ({summary.events_per_second}/s), foreign processes per message {result['foreign_per_message']}",
        markup=False,
    )
    _console.print(f"  faults: {faults}", markup=False)
    failed = len(summary.failures)
    _console.print(
        f"  violations: {len(result['violations'])} in {failed} seeds" if failed else "  violations: none", markup=False
    )
    for outcome in summary.failures[:_FAILURES_SHOWN]:
        _console.print(f"  replay: {summary.settings.replay(summary.protocol, outcome.seed)}", markup=False)


@app.command()
def latency(protocol: ProtocolOption = "all", option: OptionOption = None, json_file: JsonOption = None) -> None:
    """Measure collision-free delivery latency in message delays beside the papers'. Exit status 1 if one differs."""
    chosen, options = _protocols(protocol), _options(option or [])
    for one in chosen:
        _check(one, Settings(options=options))
    measured: list[Row] = []
    for one in chosen:
        measured += rows(one, options)
    _console.print(_latency_table(measured))
    _write(json_file, msgspec.to_builtins(measured))
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


def main() -> None:
    """Bad usage: one line and exit status 2. SIGTERM ends a run as Ctrl-C does: with the summary so far."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = app(standalone_mode=False)
    except _BadUsage as error:
        text = str(error)
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except Exception as error:
        # What typer says of unknown or missing options; where its base class lives differs between releases.
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        text = describe()
    else:
        raise SystemExit(status if isinstance(status, int) else 0)
    _errors.print(f"error: {text}", markup=False)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
