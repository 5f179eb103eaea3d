"""The command `kvstore`: the commands of the server, of clients, and the benchmarks, in one.

Exit status 0: done; 1: failed, certainly without effect; 2: outcome unknown. A user's mistake is one line on standard
error. Modules that only some commands need are imported by those commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from client_sdk import KvError
from client_sdk import cli as client
from kvstore import cli as server
from kvstore.console import Output, OutputOption, UserError, make_app

measuring = make_app("Measure.")


@measuring.command("bench")
def bench_command(
    directory: Annotated[Path | None, typer.Argument(metavar="[DIR]", help="A running cluster's directory.")] = None,
    protocols: Annotated[
        str | None,
        typer.Option(metavar="all|A,B", help="Instead of DIR: these protocols, a fresh cluster each, in one table."),
    ] = None,
    clients: Annotated[str | None, typer.Option(help="Default: 1,16,64,256; with --protocols 1,64.")] = None,
    kinds: Annotated[
        str | None,
        typer.Option(help="Of put, get, txn1, txn (transactions of one, two shards). Default: put,get,txn; txn1,txn."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Per measurement.")] = 4.0,
    output: OutputOption = Output.text,
) -> int:
    """Measure a running cluster, or compare protocols: throughput and latency by number of clients."""
    from kvstore import config
    from workloads import bench, compare

    if (directory is None) == (protocols is None):
        raise UserError("bench: give either DIR, a running cluster's directory, or --protocols")
    if directory is not None:
        config.load(directory)
    options: dict[str, Any] = {"seconds": seconds, "json": output is Output.json}
    if clients is not None:
        options["clients"] = _numbers("--clients", clients)
    if kinds is not None:
        options["kinds"] = tuple(kind.strip() for kind in kinds.split(","))
    try:
        return bench.run(directory, **options) if directory else compare.run(protocols or "", **options)
    except (ValueError, KvError) as error:
        raise UserError(f"bench: {error}") from None


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option}: whole numbers with commas between them, not {text[:60]!r}") from None


app = make_app("A sharded, replicated key-value store. Exit status: 0 done, 1 failed, 2 outcome unknown.")
for part in (server.app, client.app, measuring):
    app.add_typer(part)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit."""
    server.main(arguments, app)
