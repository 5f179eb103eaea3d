"""`compare-page`: the measured tables of the protocols' pages."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from multicast.simulation import pages
from multicast.simulation.cli import BadUsage, console


def command(
    latency: Annotated[Path | None, typer.Option(metavar="FILE", help="Of `latency --json FILE`.")] = None,
    experiments: Annotated[Path | None, typer.Option(metavar="FILE", help="claims.csv of `experiments`.")] = None,
    bench: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of `kvstore bench --protocols all -o json`.")
    ] = None,
    docs: Annotated[Path, typer.Option(metavar="DIR", help="Where the pages are.")] = pages.DOCS,
) -> None:
    """Write the tables of COMPARISON.md and of each protocol's page from measurements; what is not given stays."""
    try:
        changed = pages.update(docs, _load("latency", latency), _claims(experiments), _load("bench", bench))
    except pages.BadPage as error:
        raise BadUsage(f"compare-page: {error}") from None
    except OSError as error:
        raise BadUsage(f"compare-page: {error.filename}: {error.strerror}") from None
    for path in changed:
        console.print(str(path), markup=False)
    console.print(f"{len(changed)} pages changed", markup=False)


def _claims(path: Path | None) -> list[dict[str, str]] | None:
    if path is None:
        return None
    try:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise BadUsage(f"--experiments {path}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise BadUsage(f"--experiments {path}: this is not CSV") from None


def _load(name: str, path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise BadUsage(f"--{name} {path}: {error.strerror}") from None
    except ValueError:
        raise BadUsage(f"--{name} {path}: this is not JSON") from None
