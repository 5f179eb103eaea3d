"""`python -m kvstore.simulated`: see the package."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kvstore.simulated import schedules
from kvstore.simulated.runner import Outcome, Settings, run_seed
from multicast import registry

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Whole replicas in the simulated world.")


class Signals(StrEnum):
    """rule: the store's. delivery, off: unsafe, to see what the rule is for."""

    rule = "rule"
    delivery = "delivery"
    off = "off"


class Profile(StrEnum):
    """calm: no faults."""

    faults = "faults"
    calm = "calm"


class ScheduleName(StrEnum):
    """See `kvstore.simulated.schedules`."""

    two_groups = "two-groups"
    three_groups = "three-groups"


def _protocol(name: str) -> str:
    try:
        registry.load(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return name


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal() or int(first) >= int(end):
        raise typer.BadParameter(f"seeds are FIRST:END with FIRST < END, for example 0:20, not {text!r}")
    return range(int(first), int(end))


def _fresh(out: Path | None) -> Path | None:
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise typer.BadParameter(f"{out} exists and is not an empty directory")
    return out


Protocol = Annotated[str, typer.Option(callback=_protocol, help="One of: " + ", ".join(registry.names()))]
Out = Annotated[Path | None, typer.Option(callback=_fresh, help="Write the run directory that the audit reads.")]


@app.command()
def run(
    protocol: Protocol = "white_box",
    seeds: Annotated[str, typer.Option(help="FIRST:END")] = "0:20",
    signals: Signals = Signals.rule,
    profile: Profile = Profile.faults,
    shards: Annotated[int | None, typer.Option(min=1, max=16, help="Default: drawn from the seed.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, max=100, help="Default: drawn from the seed.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, max=600, help="Simulated; default: drawn.")] = None,
    out: Out = None,
    json: Annotated[Path | None, typer.Option(help="Write the summary there.")] = None,
) -> None:
    """Random workloads, one world per seed. Exit status 1 on any violation.

    With several seeds, OUT gets a directory per seed.
    """
    chosen = _seeds(seeds)
    settings = Settings(
        protocol=protocol,
        signals=signals.value,
        profile=profile.value,
        shards=shards,
        clients=clients,
        seconds=seconds,
    )
    outcomes: list[Outcome] = []
    for seed in chosen:
        directory = out if out is None or len(chosen) == 1 else out / str(seed)
        outcome = run_seed(settings, seed, directory)
        outcomes.append(outcome)
        for violation in outcome.violations:
            typer.echo(f"seed {seed}: {violation}\n    replay: {settings.replay(seed)}")
    faults: dict[str, int] = {}
    for outcome in outcomes:
        for kind, count in outcome.faults.items():
            faults[kind] = faults.get(kind, 0) + count
    failed = sum(bool(outcome.violations) for outcome in outcomes)
    typer.echo(
        f"{protocol}, signals {signals.value}: {len(outcomes)} seeds, "
        f"{sum(o.simulated_us for o in outcomes) / 1e6:.1f} simulated seconds, "
        f"{sum(o.operations for o in outcomes)} operations ({sum(o.answered for o in outcomes)} answered, "
        f"{sum(o.repetitions for o in outcomes)} repetitions), {sum(o.commits for o in outcomes)} store commits"
    )
    typer.echo("faults: " + (", ".join(f"{kind} {faults[kind]}" for kind in sorted(faults)) or "none"))
    typer.echo(f"violations: in {failed} of {len(outcomes)} seeds")
    if json is not None:
        json.write_bytes(msgspec.json.encode({"settings": settings, "failed": failed, "runs": outcomes}))
    raise typer.Exit(1 if failed else 0)


@app.command()
def schedule(
    name: ScheduleName,
    signals: Signals = Signals.rule,
    protocol: Protocol = "skeen",
    out: Out = None,
) -> None:
    """Play one schedule exactly and say what it shows. Exit status 0: it was played; the verdict is in the text."""
    played = schedules.play(name.value, protocol, signals.value, out)
    for line in played.lines:
        typer.echo(line)
    for violation in played.violations:
        typer.echo(f"violation: {violation}")
    if not played.violations:
        typer.echo("no violation")


if __name__ == "__main__":
    app(prog_name="python -m kvstore.simulated")
