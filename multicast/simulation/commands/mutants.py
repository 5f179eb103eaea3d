"""`mutants`: after how many seeds each planted bug is found."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.table import Table

from multicast import registry
from multicast.simulation.cli import BadUsage, JsonOption, bounded, check_json, console, progress, write_json
from multicast.simulation.mutants import SEEDS_MAX, BadPackage, Bug, Found, load, search

BUGS_MIN = 3
"""How many bugs every protocol, and every part that protocols share, must have."""
_SEEDS_MOST = 1_000_000


def command(
    protocol: Annotated[str, typer.Option(help="A protocol or a part with planted bugs, or all.")] = "all",
    bugs: Annotated[str, typer.Option(metavar="PACKAGE", help="Where the bugs are.")] = "tests.planted",
    seeds_max: Annotated[int, typer.Option(help="How many seeds each may take, from 0 on.")] = SEEDS_MAX,
    json_file: JsonOption = None,
) -> None:
    """Count the seeds until each planted bug is found. Exit status 1 if one is not, or if a protocol has too few."""
    bounded("seeds-max", seeds_max, _SEEDS_MOST)
    check_json(json_file)
    planted = _chosen(protocol, bugs)
    found: list[Found] = []
    interrupted = False
    try:
        _search(planted, seeds_max, found)
    except KeyboardInterrupt:
        interrupted = True
        console.print("interrupted; so far:")
    console.print(_table(found, seeds_max))
    few = {module: len(ones) for module, ones in planted.items() if len(ones) < BUGS_MIN}
    for module, count in few.items():
        console.print(f"{module} has {count} planted bugs; every protocol must have {BUGS_MIN}", markup=False)
    spoiled = sorted({(one.module, seed) for one in found for seed in one.without})
    for module, seed in spoiled:
        console.print(f"{module} fails at seed {seed} without any planted bug", markup=False)
    missed = [one for one in found if one.seeds is None]
    console.print(
        f"{len(found) - len(missed)} of {len(found)} bugs found within {seeds_max} seeds,"
        f" {sum(one.wall_s for one in found):.1f} s of processor time"
    )
    write_json(json_file, msgspec.to_builtins(found))
    if interrupted:
        raise typer.Exit(130)
    if missed or few or spoiled:
        raise typer.Exit(1)


def _chosen(protocol: str, package: str) -> dict[str, tuple[Bug, ...]]:
    try:
        planted = load(package)
    except BadPackage as error:
        raise BadUsage(f"--bugs: {error}") from None
    if protocol == "all":
        return {name: planted.get(name, ()) for name in sorted({*planted, *registry.names()})}
    if protocol not in planted:
        raise BadUsage(f"--protocol: no bugs of {protocol!r} in {package}; it has {', '.join(sorted(planted))}")
    return {protocol: planted[protocol]}


def _search(planted: dict[str, tuple[Bug, ...]], seeds_max: int, found: list[Found]) -> None:
    with progress() as bar:
        task = bar.add_task("", total=sum(map(len, planted.values())))
        for module, ones in planted.items():
            for bug in ones:
                bar.update(task, description=f"{module} {bug.protocol.__name__}")
                found.append(search(module, bug, range(seeds_max)))
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
