"""`run`: seeds, under faults or calm."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast.protocol import MulticastProtocol
from multicast.simulation.batches import outcomes
from multicast.simulation.beside import JOBS_MAX
from multicast.simulation.cli import (
    GROUPS_MAX,
    MESSAGES_MAX,
    REPLICAS_MAX,
    BadUsage,
    JobsOption,
    JsonOption,
    OptionOption,
    ProtocolOption,
    SizeOption,
    bounded,
    check,
    check_json,
    check_size,
    console,
    option_pairs,
    progress,
    protocols,
    seed_range,
    write_json,
)
from multicast.simulation.reached import Reached, reached
from multicast.simulation.runner import PROFILES, Settings, Summary
from multicast.simulation.worlds import NoWorld, SeedRunner, load

_FAILURES_SHOWN = 3


def command(
    protocol: ProtocolOption,
    seeds: Annotated[str, typer.Option(metavar="FROM:TO", help="Which seeds; TO is not included.")] = "0:100",
    profile: Annotated[str, typer.Option(help="calm: no faults; faults: drawn from each seed.")] = "faults",
    size: SizeOption = None,
    groups: Annotated[int | None, typer.Option(help="How many groups; else drawn.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes per group; else drawn.")] = None,
    messages: Annotated[int | None, typer.Option(help="Messages per run; else drawn.")] = None,
    option: OptionOption = None,
    store: Annotated[bool, typer.Option("--store", help="Run the replicas of the store on the protocol.")] = False,
    jobs: JobsOption = 1,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Say which handlers and branches of the protocol were not reached.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Run seeds and check every property of atomic multicast. Exit status 1 on any violation.

    Most seeds are small worlds, a few are large; --size fixes it. tight: small, most limits at their least,
    and groups change all the while.

    With --store: also exactly-once, strict serializability, and equal state at equal position."""
    check_json(json_file)
    wanted, chosen = seed_range(seeds), protocols(protocol)
    settings = chosen_settings(chosen, profile, size, groups, replicas, messages, option, store)
    bounded("jobs", jobs, JOBS_MAX)
    summaries = [Summary(one.specification.name, settings) for one in chosen]
    interrupted = False
    try:
        for one, summary in zip(chosen, summaries, strict=True):
            if coverage:
                _run_covered(one, wanted, settings, summary, jobs)
            else:
                _run_seeds(one, wanted, settings, summary, jobs)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; so far:")
    write_json(json_file, [s.to_json() for s in summaries] if len(summaries) > 1 else summaries[0].to_json())
    for summary in summaries:
        _print_summary(summary)
    if interrupted:
        raise typer.Exit(130)
    if any(s.failures for s in summaries):
        raise typer.Exit(1)


def chosen_settings(
    chosen: list[type[MulticastProtocol]],
    profile: str,
    size: str | None,
    groups: int | None,
    replicas: int | None,
    messages: int | None,
    option: list[str] | None,
    store: bool,
) -> Settings:
    """What these options of a command mean, if they fit these protocols."""
    world = _world() if store else None
    profiles = world.profiles if world else PROFILES
    if profile not in profiles:
        raise BadUsage(f"--profile is one of {', '.join(profiles)}, not {profile!r}")
    check_size(size)
    bounded("groups", groups, GROUPS_MAX)
    bounded("replicas", replicas, REPLICAS_MAX)
    bounded("messages", messages, MESSAGES_MAX)
    settings = Settings(
        profile=profile, size=size, groups=groups, replicas=replicas, messages=messages, options=option_pairs(option),
        store=store,
    )  # fmt: skip
    for one in chosen:
        check(one, settings)
        if world is not None:
            _check_world(world, one, settings)
    return settings


def _world() -> SeedRunner:
    try:
        return load("store")
    except NoWorld as error:
        raise BadUsage(f"--store: {error}") from None


def _check_world(world: SeedRunner, protocol: type[MulticastProtocol], settings: Settings) -> None:
    try:
        world.check(protocol, settings)
    except ValueError as error:
        raise BadUsage(f"--store: {error}") from None


def _run_covered(
    protocol: type[MulticastProtocol], seeds: range, settings: Settings, summary: Summary, jobs: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        try:
            _run_seeds(protocol, seeds, settings, summary, jobs, Path(directory))
        finally:
            if summary.seeds:
                summary.reached = reached(protocol, Path(directory))


def _run_seeds(
    protocol: type[MulticastProtocol],
    seeds: range,
    settings: Settings,
    summary: Summary,
    jobs: int,
    coverage: Path | None = None,
) -> None:
    with progress() as bar:
        task = bar.add_task(protocol.specification.name, total=len(seeds))
        for seed, outcome in zip(seeds, outcomes(protocol, seeds, settings, jobs, coverage), strict=True):
            summary.add(outcome)
            if outcome.violations:
                kinds = sorted({checker for checker, _ in outcome.violations})
                console.print(f"seed {seed}: {', '.join(kinds)}: {outcome.violations[0][1]}", markup=False)
                console.print(f"  with {outcome.topology}, {_described(outcome.options)}", markup=False)
                console.print(f"  replay: {settings.replay(summary.protocol, seed)}", markup=False)
                console.print(f"  see: {settings.see(summary.protocol, seed)}", markup=False)
                if len(seeds) == 1:
                    for checker, text in outcome.violations:
                        console.print(f"  {checker}: {text}", markup=False)
            if len(seeds) == 1:
                console.print(f"seed {seed}: {outcome.topology}, trace digest {outcome.digest}", markup=False)
                console.print(f"  options: {_described(outcome.options)}", markup=False)
            bar.advance(task)


def _described(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "all options at their defaults"


def _print_summary(summary: Summary) -> None:
    result = summary.to_json()
    store = " with the store" if summary.settings.store else ""
    foreign = "" if store else f", foreign processes per message {result['foreign_per_message']}"
    faults = ", ".join(f"{kind} {count}" for kind, count in result["faults"].items())
    console.print(
        f"{summary.protocol}{store}: {summary.seeds} seeds ({summary.seeds_per_second} per second and core),"
        f" {result['simulated_seconds']:.1f} simulated seconds,"
        f" {summary.messages} messages, {summary.deliveries} deliveries, {summary.events} protocol events"
        f" ({summary.events_per_second}/s){foreign}",
        markup=False,
    )
    console.print(f"  faults of {len(summary.faults)} kinds: {faults}" if faults else "  faults: none", markup=False)
    failed = len(summary.failures)
    console.print(
        f"  violations: {len(result['violations'])} in {failed} seeds" if failed else "  violations: none", markup=False
    )
    if summary.reached:
        _print_reached(summary.reached)
    for outcome in summary.failures[:_FAILURES_SHOWN]:
        console.print(f"  replay: {summary.settings.replay(summary.protocol, outcome.seed)}", markup=False)
        console.print(f"  see: {summary.settings.see(summary.protocol, outcome.seed)}", markup=False)


def _print_reached(files: list[Reached]) -> None:
    """How much of each file, and what is missing."""
    table = Table(title="Reached, inside functions", box=SIMPLE)
    for heading in ("file", "statements", "reached", "branches", "taken"):
        table.add_column(heading, justify="left" if heading == "file" else "right")
    for file in files:
        table.add_row(file.file, *map(str, (file.statements, file.executed, file.branches, file.taken)))
    console.print(table)
    console.print("Never reached: line -> line (what stands there)")
    for file in files:
        for missed in file.missed:
            what = "" if missed.entered else " never called"
            console.print(f"  {file.file} {missed.function}:{what}", markup=False)
            lines = f"lines {', '.join(map(str, missed.lines))}"
            for branch in (missed.branches or [lines]) if missed.entered else ():
                console.print(f"    {branch}", markup=False)
