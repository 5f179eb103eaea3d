"""`python -m kvstore.simulated`: see the package."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from kvstore.simulated import schedules, strictness
from kvstore.simulated.runner import Summary, run_seed
from kvstore.simulated.settings import Settings
from multicast import registry
from multicast.simulation.cli import BadUsage, option_pairs, progress, seed_range
from multicast.simulation.drawing import protocol_options

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Whole replicas in the simulated world.")
_console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)


class Signals(StrEnum):
    """`kvstore.core.signals.SignalRule`."""

    rule = "rule"
    delivery = "delivery"
    off = "off"


class Profile(StrEnum):
    """calm: no faults. chase: no faults either, but slow links and clients after anomalies."""

    faults = "faults"
    calm = "calm"
    chase = "chase"


class Size(StrEnum):
    """See `multicast.simulation.drawing`."""

    small = "small"
    large = "large"
    tight = "tight"


class ScheduleName(StrEnum):
    """See `kvstore.simulated.schedules`."""

    two_groups = "two-groups"
    three_groups = "three-groups"
    four_groups = "four-groups"


class Expectation(StrEnum):
    """What a script expects a schedule to show."""

    violation = "violation"
    none = "none"


def _protocols(name: str) -> list[str]:
    if name == "all":
        return registry.names()
    try:
        registry.load(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return [name]


def _protocol(name: str) -> str:
    _protocols(name)
    return name


def _seeds(text: str) -> str:
    try:
        seed_range(text)
    except BadUsage:
        message = f"seeds are FIRST:END with FIRST < END, for example 0:20, or one number, not {text!r}"
        raise typer.BadParameter(message) from None
    return text


def _options(pairs: list[str] | None, protocol: str) -> dict[str, str]:
    try:
        options = option_pairs(pairs)
        for name in _protocols(protocol) if options else ():
            protocol_options(registry.load(name), options)
    except (BadUsage, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    return options


def _fresh(out: Path | None) -> Path | None:
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise typer.BadParameter(f"{out} exists and is not an empty directory")
    return out


_NAMES = ", ".join(registry.names())
Protocol = Annotated[str, typer.Option(callback=_protocol, help=f"One of: {_NAMES}")]
Protocols = Annotated[str, typer.Option(callback=_protocol, help=f"all, or one of: {_NAMES}")]
Seeds = Annotated[str, typer.Option(callback=_seeds, metavar="FIRST:END", help="END is not included.")]
Out = Annotated[Path | None, typer.Option(callback=_fresh, help="Write the run directory that the audit reads.")]
Json = Annotated[Path | None, typer.Option(help="Write the results there.")]
OptionPairs = Annotated[list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="A protocol option.")]


@app.command()
def run(
    protocol: Protocols = "white_box",
    seeds: Seeds = "0:20",
    signals: Annotated[Signals | None, typer.Option(help="Default: the rule, if the protocol needs one.")] = None,
    profile: Profile = Profile.faults,
    size: Annotated[Size | None, typer.Option(help="Default: drawn from the seed, mostly small.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, max=16, help="Default: drawn from the seed.")] = None,
    replicas: Annotated[int | None, typer.Option(min=1, max=7, help="Of a shard, if the protocol allows it.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, max=100, help="Default: drawn from the seed.")] = None,
    backups: Annotated[bool | None, typer.Option(help="Whether cuts for backups are made; default: drawn.")] = None,
    leases: Annotated[bool | None, typer.Option(help="Whether clients hold leases; default: drawn.")] = None,
    rights: Annotated[bool | None, typer.Option(help="Whether clients have tokens; default: drawn.")] = None,
    ranges: Annotated[bool | None, typer.Option(help="Whether clients use ranges; default: drawn.")] = None,
    reads: Annotated[bool | None, typer.Option(help="Whether clients read in every way; default: drawn.")] = None,
    grows: Annotated[bool | None, typer.Option(help="Whether a shard is added; default: drawn.")] = None,
    late: Annotated[bool | None, typer.Option(help="Whether late copies of requests come; default: drawn.")] = None,
    bounds: Annotated[bool | None, typer.Option(help="Whether clients use min, max and none_newer.")] = None,
    nested: Annotated[bool | None, typer.Option(help="Whether some transactions have others in them.")] = None,
    stragglers: Annotated[bool | None, typer.Option(help="Whether forgotten messages come again.")] = None,
    piecemeal: Annotated[bool | None, typer.Option(help="Whether steps of moves hand over few rows.")] = None,
    edges: Annotated[bool | None, typer.Option(help="Whether clients compare versions, turn pages.")] = None,
    narrow: Annotated[bool | None, typer.Option(help="Whether limits of the store are at their least.")] = None,
    past: Annotated[bool | None, typer.Option(help="Whether clients read at versions; default: drawn.")] = None,
    watch: Annotated[bool | None, typer.Option(help="Whether clients watch; default: drawn.")] = None,
    moves: Annotated[bool | None, typer.Option(help="Whether slots move; default: drawn from the seed.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, max=600, help="Simulated; default: drawn.")] = None,
    option: OptionPairs = None,
    out: Out = None,
    trace: Annotated[bool, typer.Option("--trace", help="OUT gets the frames, too: from them genuineness.")] = False,
    json: Json = None,
) -> None:
    """Random workloads, one world per seed. Exit status 1 on any violation; interrupted, 130, with a summary so far.

    With several seeds, OUT gets a directory per seed; with several protocols, one per protocol.
    """
    if trace and out is None:
        raise typer.BadParameter("it writes to the run directory: give --out", param_hint="--trace")
    options, chosen, names = _options(option, protocol), seed_range(seeds), _protocols(protocol)
    summaries: list[Summary] = []
    interrupted = False
    try:
        for name in names:
            settings = Settings(
                protocol=name,
                signals=signals.value if signals else None,
                profile=profile.value,
                size=size and size.value,
                shards=shards,
                replicas=replicas,
                clients=clients,
                backups=backups,
                ranges=ranges,
                leases=leases,
                rights=rights,
                reads=reads,
                grows=grows,
                late=late,
                bounds=bounds,
                nested=nested,
                stragglers=stragglers,
                piecemeal=piecemeal,
                edges=edges,
                narrow=narrow,
                past=past,
                watch=watch,
                moves=moves,
                seconds=seconds,
                options=options,
            )
            summaries.append(Summary(settings=settings))
            _run_seeds(summaries[-1], chosen, out if out is None or len(names) == 1 else out / name, trace)
    except KeyboardInterrupt:
        interrupted = True
        typer.echo("interrupted; so far:")
    for line in (line for summary in summaries for line in summary.lines()):
        typer.echo(line)
    if json is not None:
        json.write_bytes(msgspec.json.encode(summaries[0] if len(summaries) == 1 else summaries))
    raise typer.Exit(130 if interrupted else 1 if any(summary.failed for summary in summaries) else 0)


def _run_seeds(summary: Summary, seeds: range, home: Path | None, trace: bool) -> None:
    """One after the other, with a bar where somebody looks at it; what is wrong is told at once."""
    settings = summary.settings
    with progress() as bar:
        for seed in bar.track(seeds, description=settings.protocol):
            directory = home if home is None or len(seeds) == 1 else home / str(seed)
            outcome = run_seed(settings, seed, directory, trace=trace)
            summary.add(outcome)
            for violation in outcome.violations:
                text = f"{settings.protocol}, seed {seed}: {violation}\n    replay: {settings.replay(seed)}"
                bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


@app.command()
def schedule(
    name: ScheduleName,
    signals: Signals = Signals.rule,
    protocol: Protocol = "skeen",
    option: OptionPairs = None,
    expect: Annotated[Expectation | None, typer.Option(help="Exit status 1 if it shows something else.")] = None,
    out: Out = None,
) -> None:
    """Play one schedule exactly and say what it shows. Exit status 0 unless --expect says something else."""
    if protocol == "all":
        raise typer.BadParameter("one protocol; `schedules` plays them all", param_hint="--protocol")
    played = schedules.play(name.value, protocol, signals.value, out, _options(option, protocol))
    for line in played.lines:
        typer.echo(line)
    for violation in played.violations:
        typer.echo(f"violation: {violation}")
    if not played.violations:
        typer.echo("no violation")
    if expect is not None and (expect is Expectation.violation) != bool(played.violations):
        typer.echo(f"expected: {expect.value}", err=True)
        raise typer.Exit(1)


@app.command("schedules")
def all_schedules(protocol: Protocols = "all", json: Json = None) -> None:
    """Every schedule with every way to signal, for every protocol and the options that matter.

    Exit status 1 if one shows something else than the protocol's strict_groups_max lets expect.
    """
    _report("What the schedules show", strictness.play_all(_protocols(protocol)), json)


@app.command("strictness")
def claims(
    protocol: Protocols = "all",
    seeds: Seeds = "0:100",
    json: Json = None,
) -> None:
    """Random searches for anomalies, without signals: none up to strict_groups_max groups, one with a group more.

    Exit status 1 if a claim does not hold, or if no seed shows that it is the best one.
    """
    _report("Random search without signals", strictness.search_all(_protocols(protocol), seed_range(seeds)), json)


def _report(title: str, lines: Iterable[strictness.Shown], json: Path | None) -> None:
    table = Table(title=title, box=SIMPLE)
    for heading in ("protocol", "groups", "signals", "expected", "seen", "", "where"):
        table.add_column(heading, justify="right" if heading == "groups" else "left", no_wrap=True)
    shown: list[strictness.Shown] = []
    for one in lines:
        shown.append(one)
        words = ["violation" if found else "none" for found in (one.expected, one.seen)]
        table.add_row(one.what, str(one.groups), one.signals, *words, "" if one.match else "DIFFERS", one.where)
    _console.print(table)
    different = [one for one in shown if not one.match]
    for one in different:
        typer.echo(f"differs: {one.what}, {one.groups} groups, signals {one.signals}: {one.where} {one.failure}")
        if one.replay:
            typer.echo(f"    replay: {one.replay}")
    typer.echo(f"{len(shown) - len(different)} of {len(shown)} as expected")
    if json is not None:
        json.write_bytes(msgspec.json.encode(shown))
    raise typer.Exit(1 if different else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: with the summary so far
    app(prog_name="python -m kvstore.simulated")
