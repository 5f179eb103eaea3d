"""`trace`: one run as lines of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multicast.simulation.cli import BadUsage, OptionOption, SizeOption, console, planted, protocols
from multicast.simulation.commands.run import chosen_settings
from multicast.simulation.trace import Trace
from multicast.simulation.worlds import run_seed

SEED_MAX = 1 << 63


def command(
    protocol: Annotated[str, typer.Option(help="A protocol's name.")],
    seed: Annotated[int, typer.Option(help="Which seed.")],
    out: Annotated[Path, typer.Option(metavar="FILE|DIR", help="Where to write.")],
    profile: Annotated[str, typer.Option(help="calm: no faults; faults: drawn from the seed.")] = "faults",
    size: SizeOption = None,
    groups: Annotated[int | None, typer.Option(help="How many groups; else drawn.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Processes per group; else drawn.")] = None,
    messages: Annotated[int | None, typer.Option(help="Messages; else drawn.")] = None,
    option: OptionOption = None,
    run_directory: Annotated[
        bool, typer.Option("--run-dir", help="Make OUT a run directory for the audit: the journals, and the trace.")
    ] = False,
    store: Annotated[bool, typer.Option("--store", help="Run the replicas of the store on the protocol.")] = False,
    bug: Annotated[str, typer.Option(help="Trace a planted bug of this name instead.")] = "",
    bugs: Annotated[str, typer.Option(metavar="PACKAGE", help="Where the bugs are.")] = "tests.planted",
) -> None:
    """Run one seed and write everything that happens, what it changes, and what blocks what, as lines of JSON (see
    TRACE.md). Exit status 1 on any violation."""
    if not 0 <= seed <= SEED_MAX:
        raise BadUsage(f"--seed is from 0 to {SEED_MAX}, not {seed}")
    if protocol == "all":
        raise BadUsage("--protocol: trace one protocol at a time")
    chosen = planted(protocol, bug, bugs) if bug else protocols(protocol)[0]
    settings = chosen_settings([chosen], profile, size, groups, replicas, messages, option, store)
    file_path = out / "trace" / "trace.jsonl" if run_directory else out
    if run_directory and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadUsage(f"--out {out}: it exists and is not an empty directory")
    try:
        if run_directory:
            file_path.parent.mkdir(parents=True, exist_ok=True)
        with file_path.open("w") as file:
            name = chosen.specification.name
            trace = Trace(file.write, name, seed, settings, settings.replay(name, seed))
            outcome = run_seed(chosen, seed, settings, [trace])
            trace.end(outcome)
        if run_directory:
            trace.dump_journals(out)
    except OSError as error:
        raise BadUsage(f"--out {out}: {error.strerror}") from None
    except KeyboardInterrupt:
        console.print(f"interrupted; {out} has the beginning", markup=False)
        raise typer.Exit(130) from None
    for checker, text in outcome.violations:
        console.print(f"{checker}: {text}", markup=False)
    console.print(
        f"{chosen.specification.name}, seed {seed}: {trace.lines} lines in {file_path}, trace digest {outcome.digest}",
        markup=False,
    )
    if outcome.violations:
        raise typer.Exit(1)
