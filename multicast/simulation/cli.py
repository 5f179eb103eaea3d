"""What the commands of the simulator share: reading options, writing results, and how bad usage ends."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from multicast import registry
from multicast.protocol import MulticastProtocol
from multicast.simulation.drawing import SIZES, protocol_options
from multicast.simulation.mutants import BadPackage, load
from multicast.simulation.runner import Settings
from multicast.types import Topology

SEEDS_MAX = 10_000_000
GROUPS_MAX = 64
REPLICAS_MAX = 31
MESSAGES_MAX = 1_000_000

console = Console(highlight=False, soft_wrap=True)
_errors = Console(stderr=True, highlight=False, soft_wrap=True)


class BadUsage(Exception):
    """One line for the user; exit status 2."""


ProtocolOption = Annotated[str, typer.Option(help="A protocol's name, or all.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]
JobsOption = Annotated[int, typer.Option(help="So many processes at once.")]
SizeOption = Annotated[str | None, typer.Option(metavar="|".join(SIZES), help="Of the runs; else drawn, mostly small.")]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="A protocol option; else drawn.")
]


def protocols(name: str) -> list[type[MulticastProtocol]]:
    """The protocol of this name, or all."""
    names = registry.names() if name == "all" else [name]
    try:
        return [registry.load(n) for n in names]
    except ValueError as error:
        raise BadUsage(f"--protocol: {error}") from None


def planted(module: str, name: str, package: str) -> type[MulticastProtocol]:
    """The planted bug of this name in this protocol, from a package of them."""
    try:
        bugs = load(package).get(module, ())
    except BadPackage as error:
        raise BadUsage(f"--bugs: {error}") from None
    for bug in bugs:
        if bug.protocol.__name__ == name:
            return bug.protocol
    known = ", ".join(bug.protocol.__name__ for bug in bugs) or "none"
    raise BadUsage(f"--bug: {module} has no planted bug {name!r}; it has {known}")


def seed_range(text: str) -> range:
    """FROM:TO or one number."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text)
    if not match:
        raise BadUsage(f"--seeds is FROM:TO or one number, not {text!r}")
    first = int(match[1])
    seeds = range(first, int(match[2]) if match[2] else first + 1)
    if not seeds:
        raise BadUsage(f"--seeds {text} holds no seed: FROM must be below TO")
    if len(seeds) > SEEDS_MAX:
        raise BadUsage(f"--seeds: at most {SEEDS_MAX} seeds, not {len(seeds)}")
    return seeds


def option_pairs(pairs: list[str] | None) -> dict[str, str]:
    """NAME=VALUE, any number of them."""
    options: dict[str, str] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadUsage(f"--option is NAME=VALUE, not {pair!r}")
        options[key] = value
    return options


def check_size(size: str | None) -> None:
    """Whether --size is one."""
    if size not in (None, *SIZES):
        raise BadUsage(f"--size is one of {', '.join(SIZES)}, not {size!r}")


def bounded(name: str, value: int | None, most: int) -> None:
    """Whether --`name` is from 1 to `most`."""
    if value is not None and not 1 <= value <= most:
        raise BadUsage(f"--{name} is from 1 to {most}, not {value}")


def check(protocol: type[MulticastProtocol], settings: Settings) -> None:
    """Whether these settings fit this protocol."""
    name = protocol.specification.name
    try:
        protocol_options(protocol, settings.options)
    except ValueError as error:
        raise BadUsage(f"--option: {error}") from None
    if settings.replicas not in (None, 1) and not protocol.specification.fault_tolerant:
        raise BadUsage(f"--replicas: {name} has one process per group, not {settings.replicas}")
    if settings.groups and settings.replicas:
        Topology.grid(settings.groups, settings.replicas)


def check_json(path: Path | None) -> None:
    """Whether the file of --json can be written, before hours of work for it."""
    if path is not None and not path.parent.is_dir():
        raise BadUsage(f"--json {path}: {path.parent} is not a directory")


def write_json(path: Path | None, content: object) -> None:
    """Results to the file of --json, if there is one."""
    if path is None:
        return
    try:
        path.write_text(json.dumps(content, indent=2) + "\n")
    except OSError as error:
        raise BadUsage(f"--json {path}: {error.strerror}") from None


def progress() -> Progress:
    """A progress bar; silent where nobody looks at it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def execute(app: typer.Typer) -> None:
    """Bad usage: one line and exit status 2. SIGTERM ends a command as Ctrl-C does: with the summary so far."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        status = app(standalone_mode=False)
    except BadUsage as error:
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
