"""`explore`: every order of a small run."""

from __future__ import annotations

import time
from typing import Annotated

import msgspec
import typer

from multicast.simulation.cli import (
    GROUPS_MAX,
    REPLICAS_MAX,
    BadUsage,
    JsonOption,
    OptionOption,
    bounded,
    check,
    console,
    option_pairs,
    planted,
    protocols,
    write_json,
)
from multicast.simulation.drawing import protocol_options
from multicast.simulation.explore import Explored, explore
from multicast.simulation.model import Bounds
from multicast.simulation.runner import Settings
from multicast.types import GroupId, Topology

MESSAGES_MAX = 16
STATES_MAX = 100_000_000
TIMES_MAX = 16


def command(
    protocol: Annotated[str, typer.Option(help="A protocol's name.")],
    groups: Annotated[int, typer.Option(help="How many groups.")] = 2,
    replicas: Annotated[int | None, typer.Option(help="Processes per group; default 3, or 1.")] = None,
    messages: Annotated[int, typer.Option(help="How many messages.")] = 2,
    destinations: Annotated[
        str, typer.Option(help="Groups of each message, e.g. '0,1;1;0'; default: all groups, each.")
    ] = "",
    crashes: Annotated[int, typer.Option(help="How many crashes may happen; whoever crashed may restart.")] = 0,
    timeouts: Annotated[
        int | None, typer.Option(help="How many timers may expire (a new leader needs them); default: as crashes.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Stop at so many states.")] = 1_000_000,
    bug: Annotated[str, typer.Option(help="Explore a planted bug of this name instead.")] = "",
    bugs: Annotated[str, typer.Option(metavar="PACKAGE", help="Where the bugs are.")] = "tests.planted",
    option: OptionOption = None,
    json_file: JsonOption = None,
) -> None:
    """Let the messages of a small run arrive in every possible order. Exit status 1 if that finds a violation, 3 if it
    stopped before it had seen every state."""
    bounded("groups", groups, GROUPS_MAX)
    bounded("replicas", replicas, REPLICAS_MAX)
    bounded("messages", messages, MESSAGES_MAX)
    bounded("limit", limit, STATES_MAX)
    bounded("crashes", crashes or None, TIMES_MAX)
    bounded("timeouts", timeouts or None, TIMES_MAX)
    if protocol == "all":
        raise BadUsage("--protocol: explore one protocol at a time")
    chosen = planted(protocol, bug, bugs) if bug else protocols(protocol)[0]
    if replicas is None:
        replicas = 3 if chosen.specification.fault_tolerant else 1
    settings = Settings(groups=groups, replicas=replicas, options=option_pairs(option))
    check(chosen, settings)
    topology = Topology.grid(groups, replicas)
    sets = _destinations(destinations, groups) if destinations else (tuple(topology.groups),) * messages
    bounds = Bounds(
        destinations=sets,
        senders=tuple(topology.processes[i % len(topology.processes)] for i in range(len(sets))),
        crashes=crashes,
        timeouts=crashes if timeouts is None else timeouts,
        states_max=limit,
    )
    began = time.monotonic()
    with console.status("starting") as status:

        def progress(states: int, depth: int) -> None:
            status.update(f"{states} states, {depth} actions deep, {time.monotonic() - began:.0f} s")

        found = explore(chosen, topology, protocol_options(chosen, settings.options), bounds, progress)
    _print(chosen.specification.name, found, bounds, time.monotonic() - began)
    write_json(json_file, {"protocol": chosen.specification.name, **msgspec.to_builtins(found)})
    if found.violation:
        raise typer.Exit(1)
    if not found.exhausted:
        raise typer.Exit(3)


def _destinations(text: str, groups: int) -> tuple[tuple[GroupId, ...], ...]:
    sets: list[tuple[GroupId, ...]] = []
    for part in text.split(";"):
        words = [word.strip() for word in part.split(",")]
        if not all(word.isdecimal() and int(word) < groups for word in words):
            raise BadUsage(f"--destinations: {part.strip()!r} is no list of groups from 0 to {groups - 1}")
        sets.append(tuple(sorted({int(word) for word in words})))
    bounded("destinations", len(sets), MESSAGES_MAX)
    return tuple(sets)


def _print(name: str, found: Explored, bounds: Bounds, seconds: float) -> None:
    size = f"{found.states} states, {found.transitions} transitions, {found.depth} actions deep"
    if found.violation:
        console.print(f"{name}: violated after {size}, {seconds:.1f} s", markup=False)
        console.print(f"  {found.violation}", markup=False)
        console.print(f"  the shortest way there, {len(found.schedule)} actions:", markup=False)
        for number, line in enumerate(found.schedule, 1):
            console.print(f"  {number:3}. {line}", markup=False)
        return
    how = "exhausted" if found.exhausted else f"stopped at {found.states} states"
    console.print(f"{name}: {how}: {size}, {found.ends} different ends, {seconds:.1f} s; no violation", markup=False)
