"""`mutants`: after how many seeds each planted bug is found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast import registry
from multicast.simulation.beside import JOBS_MAX, each
from multicast.simulation.cli import (
    BadUsage,
    JobsOption,
    JsonOption,
    SizeOption,
    bounded,
    check_json,
    check_size,
    console,
    progress,
    seed_range,
    write_json,
)
from multicast.simulation.mutants import SEEDS_MAX, BadPackage, Bug, Found, Search, load, run

BUGS_MIN = 3
"""How many bugs every protocol, and every part that protocols share, must have."""


def command(
    protocol: Annotated[str, typer.Option(help="A protocol or a part with planted bugs, or all.")] = "all",
    bugs: Annotated[str, typer.Option(metavar="PACKAGE", help="Where the bugs are.")] = "tests.planted",
    bug: Annotated[list[str] | None, typer.Option(help="Only bugs of this name; may be repeated.")] = None,
    seeds: Annotated[str, typer.Option(metavar="FROM:TO", help="Which seeds; TO is not included.")] = f"0:{SEEDS_MAX}",
    size: SizeOption = None,
    jobs: JobsOption = 1,
    json_file: JsonOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after what the file of --json has.")] = False,
) -> None:
    """Count the seeds until each planted bug is found. Exit status 1 if one is not, or if a protocol has too few.

    The file of --json is written after every bug; with --resume, an interrupted search goes on."""
    bounded("jobs", jobs, JOBS_MAX)
    check_size(size)
    check_json(json_file)
    wanted, planted = seed_range(seeds), _chosen(protocol, bugs, bug or [])
    found = _known(json_file) if resume else []
    known = {(one.module, one.bug) for one in found}
    todo = [
        Search(module, one, wanted, size)
        for module, ones in planted.items()
        for one in ones
        if (module, one.name) not in known
    ]
    interrupted = False
    try:
        _search(todo, jobs, found, json_file)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; so far:")
    found.sort(key=lambda one: (one.module, one.bug))
    console.print(_table(found, len(wanted)))
    few = {module: len(ones) for module, ones in planted.items() if len(ones) < BUGS_MIN and not bug}
    for module, count in few.items():
        console.print(f"{module} has {count} planted bugs; every protocol must have {BUGS_MIN}", markup=False)
    spoiled = sorted({(one.module, seed) for one in found for seed in one.without})
    for module, seed in spoiled:
        console.print(f"{module} fails at seed {seed} without any planted bug", markup=False)
    missed = [one for one in found if one.seeds is None]
    console.print(
        f"{len(found) - len(missed)} of {len(found)} bugs found within {len(wanted)} seeds,"
        f" {sum(one.wall_s for one in found):.1f} s of processor time"
    )
    write_json(json_file, msgspec.to_builtins(found))
    if interrupted:
        raise typer.Exit(130)
    if missed or few or spoiled:
        raise typer.Exit(1)


def _known(path: Path | None) -> list[Found]:
    """What an earlier search found."""
    if path is None:
        raise BadUsage("--resume: give the file with --json")
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Found]) if path.exists() else []
    except (OSError, msgspec.DecodeError) as error:
        raise BadUsage(f"--resume: {path} is not what this command has written: {error}") from None


def _chosen(protocol: str, package: str, names: list[str]) -> dict[str, tuple[Bug, ...]]:
    planted = _of_protocol(protocol, package)
    known = {one.name for ones in planted.values() for one in ones}
    for name in names:
        if name not in known:
            raise BadUsage(f"--bug: no planted bug {name!r}; there are {', '.join(sorted(known))}")
    if not names:
        return planted
    chosen = {m: tuple(one for one in ones if one.name in names) for m, ones in planted.items()}
    return {module: ones for module, ones in chosen.items() if ones}


def _of_protocol(protocol: str, package: str) -> dict[str, tuple[Bug, ...]]:
    try:
        planted = load(package)
    except BadPackage as error:
        raise BadUsage(f"--bugs: {error}") from None
    if protocol == "all":
        return {name: planted.get(name, ()) for name in sorted({*planted, *registry.names()})}
    if protocol not in planted:
        raise BadUsage(f"--protocol: no bugs of {protocol!r} in {package}; it has {', '.join(sorted(planted))}")
    return {protocol: planted[protocol]}


def _search(todo: list[Search], jobs: int, found: list[Found], json_file: Path | None) -> None:
    with progress() as bar:
        task = bar.add_task("planted bugs", total=len(todo))
        for wanted, one in each(run, todo, jobs):
            found.append(one)
            write_json(json_file, msgspec.to_builtins(found))
            after = "NOT FOUND" if one.seeds is None else f"after {one.seeds} seeds, {one.checker}"
            bar.console.print(f"{wanted.module} {one.bug}: {after} ({one.wall_s:.1f} s)", markup=False)
            bar.advance(task)


def _table(found: list[Found], seeds_max: int) -> Table:
    table = Table(title=f"Planted bugs, and after how many of {seeds_max} seeds each is found", box=SIMPLE, expand=True)
    for heading in ("protocol", "bug", "seeds", "found by", "s"):
        table.add_column(heading, justify="right" if heading in ("seeds", "s") else "left", no_wrap=True)
    table.add_column("what it does", no_wrap=True, overflow="ellipsis", ratio=1)
    for one in found:
        seeds = "NOT FOUND" if one.seeds is None else str(one.seeds)
        table.add_row(one.module, one.bug, seeds, one.checker or "-", f"{one.wall_s:.1f}", one.about)
    return table
