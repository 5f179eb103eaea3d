"""The command `kvstore`: the commands of the server, of clients, and the benchmarks, in one.

Exit status 0: done; 1: failed, certainly without effect; 2: outcome unknown; 3: no such key. A user's mistake is one
line on standard error. Modules that only some commands need are imported by those commands, and the client only if the
first word is not one of the server's commands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kvstore import cli as server
from kvstore.console import Output, OutputOption, UserError, make_app, say

measuring = make_app("Measure.")
DIRECTORY = "Of the cluster; replaced if such a run has made it."


@measuring.command("bench")
def bench_command(
    target: Annotated[
        str | None, typer.Argument(metavar="[TARGET]", help="A running cluster: its directory, or URLs with commas.")
    ] = None,
    protocols: Annotated[
        str | None,
        typer.Option(metavar="all|A,B", help="Instead of TARGET: these protocols, a fresh cluster each, in one table."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(metavar="etcd", help="Instead of TARGET: a fresh cluster and a fresh etcd in turns, with ratios."),
    ] = None,
    clients: Annotated[str | None, typer.Option(help="Default: 1,16,100,256; with --protocols 1,64.")] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Of put, get, txn1, txn (transactions of one, two shards), ycsb-load, ycsb-a to ycsb-f (ycsb: all of"
            " those). Default: put,get,txn1,txn; with --protocols txn1,txn."
        ),
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="Per measurement. Default: 4; with --against 1.5.")] = None,
    open_loop: Annotated[
        bool, typer.Option("--open", help="Then also in open loop, at 25, 50 and 75 % of the throughput just measured.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Instead of closed loop: so many requests per second.")] = 0.0,
    value_bytes: Annotated[int, typer.Option(help="Of every value written.")] = 100,
    records: Annotated[int, typer.Option(help="How many keys there are.")] = 10_000,
    distribution: Annotated[str, typer.Option(help="Of YCSB's keys: zipfian, latest, uniform; else as it says.")] = "",
    load: Annotated[str, typer.Option(help="What sends the requests: own, or wrk (closed loop, no YCSB).")] = "own",
    grpc: Annotated[bool, typer.Option("--grpc", help="With --against: ask etcd by gRPC, too.")] = False,
    rounds: Annotated[int | None, typer.Option(help="With --against: medians of so many. Default: 3.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="1 and 100 clients, short measurements, one round.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Measure a running cluster, or compare with etcd, or protocols: throughput, latency and costs by clients."""

    from client_sdk import KvError
    from workloads.bench import against as versus
    from workloads.bench import compare, etcd, measure, wrk
    from workloads.bench.kinds import chosen

    if sum(one is not None for one in (target, protocols, against)) != 1:
        raise UserError("bench: give one of TARGET, a running cluster, --protocols, and --against")
    if against not in (None, versus.ETCD):
        raise UserError(f"--against: only {versus.ETCD}, not {against[:60]!r}")
    options: dict[str, Any] = {}
    if protocols is not None:
        options = {"clients": compare.CLIENTS, "kinds": compare.KINDS}
    elif against is not None:
        options = {"seconds": versus.SECONDS, "warmup": versus.WARMUP_SECONDS}
    if quick:
        options |= {"clients": (1, 100), "seconds": 1.5, "warmup": 0.4}
    if clients is not None:
        options["clients"] = _numbers("--clients", clients)
    if kinds is not None:
        options["kinds"] = chosen(kinds)
    if seconds is not None:
        options["seconds"] = seconds
    options |= {"open_loop": open_loop, "rate": rate, "value_bytes": value_bytes, "records": records, "load": load}
    plan = measure.Plan(**options, distribution=distribution)
    json = output is Output.json
    try:
        if target is not None:
            return measure.run(target, plan, json)
        if protocols is not None:
            return compare.run(protocols, plan, json)
        return versus.run(plan, rounds or (1 if quick else versus.ROUNDS), grpc, json)
    except (ValueError, KvError, etcd.NoEtcd, wrk.NoWrk) as error:
        raise UserError(f"bench: {error}") from None


@measuring.command("bench-page")
def bench_page_command(
    results: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What benchmarks have written (-o json).")],
    page: Annotated[Path | None, typer.Option(help="The page; by default workloads/BENCHMARKS.md.")] = None,
) -> None:
    """Write results of `kvstore bench` and `python -m multicast.bench` into the page of published results."""
    from workloads.bench.page import PAGE, BadPage, update

    try:
        say(f"{page or PAGE}: {', '.join(update(page or PAGE, results))}")
    except BadPage as error:
        raise UserError(f"bench-page: {error}") from None


@measuring.command("nemesis")
def nemesis_command(
    seed: Annotated[int, typer.Option(help="Of the faults: which meet whom, and for how long.")] = 1,
    minutes: Annotated[float, typer.Option(help="How long there are faults.")] = 1.0,
    protocol: Annotated[str, typer.Option(help="The multicast protocol.")] = "white_box",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there, too.")] = None,
    directory: Annotated[Path, typer.Option("--dir", help=DIRECTORY)] = Path("nemesis-run"),
    audit: Annotated[bool, typer.Option(help="Have Spark judge the run.")] = True,
    durability: Annotated[str, typer.Option(help="fsync; os: moves are not determined then.")] = "fsync",
    only: Annotated[str, typer.Option(metavar="FAULT,...", help="Only these faults; a wrong name lists all.")] = "",
    leaders: Annotated[bool, typer.Option("--leaders", help="Faults meet leaders only.")] = False,
    moves: Annotated[bool, typer.Option(help="Slots move between the shards.")] = True,
    backups: Annotated[bool, typer.Option(help="Backups are made and verified.")] = True,
    members: Annotated[bool, typer.Option(help="Replicas are added and removed.")] = True,
    growth: Annotated[bool, typer.Option(help="A shard is added.")] = True,
    disks: Annotated[bool, typer.Option(help="Replicas of that shard are replaced.")] = True,
) -> int:
    """Run a new cluster on this machine under load and faults, and judge it: exit status 0 only if nothing is wrong."""
    from client_sdk import KvError
    from multicast.registry import UnknownProtocol
    from workloads.nemesis import run
    from workloads.nemesis.cluster import NemesisFailed
    from workloads.nemesis.operations import KINDS

    if not 0 < minutes <= 24 * 60:
        raise UserError(f"nemesis: --minutes is more than 0 and at most {24 * 60}, not {minutes:g}")
    try:
        names = tuple(name.strip() for name in only.split(",") if name.strip())
        wanted = zip(KINDS, (moves, backups, members, growth, disks), strict=True)
        kinds = tuple(kind for kind, there in wanted if there)
        share = 1.0 if leaders else run.LEADER_SHARE
        plan = run.Plan(
            seed, minutes, protocol, directory,
            audit=audit, only=names, leader_share=share, operations=kinds, durability=durability,
        )  # fmt: skip
        return run.command(plan, json, say)
    except (NemesisFailed, KvError, UnknownProtocol) as error:
        raise UserError(f"nemesis: {error}") from None


@measuring.command("soak")
def soak_command(
    minutes: Annotated[float, typer.Option(help="How long there is load.")] = 20.0,
    rate: Annotated[float, typer.Option(help="Puts and deletions per second.")] = 300.0,
    protocol: Annotated[str, typer.Option(help="The multicast protocol.")] = "white_box",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write all samples there, too.")] = None,
    directory: Annotated[Path, typer.Option("--dir", help=DIRECTORY)] = Path("soak-run"),
) -> int:
    """Run a new cluster under a steady load: exit status 0 only if all is flat in the second half."""
    from client_sdk import KvError
    from workloads import soak

    if not 0 < minutes <= 24 * 60:
        raise UserError(f"soak: --minutes is more than 0 and at most {24 * 60}, not {minutes:g}")
    if not 0 < rate <= 100_000:
        raise UserError(f"soak: --rate is more than 0 and at most 100000, not {rate:g}")
    try:
        plan = soak.Plan(minutes=minutes, rate=rate, protocol=protocol, directory=directory)
        return soak.command(plan, json, say)
    except (soak.SoakFailed, KvError) as error:
        raise UserError(f"soak: {error}") from None


@measuring.command("bench-watch")
def bench_watch_command(
    watches: Annotated[int, typer.Option(min=1, max=100_000, help="How many there are.")] = 1000,
    keys: Annotated[int, typer.Option(min=1, max=10_000_000, help="Of all watches together.")] = 100_000,
    rate: Annotated[float, typer.Option(help="Puts per second.")] = 1000.0,
    seconds: Annotated[float, typer.Option(help="How long.")] = 120.0,
    protocol: Annotated[str, typer.Option(help="The multicast protocol.")] = "white_box",
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there, too.")] = None,
    directory: Annotated[Path, typer.Option("--dir", help=DIRECTORY)] = Path("watch-run"),
) -> int:
    """Run a new cluster under watches and puts: exit status 0 only if all was told soon, and memory is flat."""
    from client_sdk import KvError
    from workloads import soak, watched

    if not 0 < seconds <= 24 * 3600:
        raise UserError(f"bench-watch: --seconds is more than 0 and at most {24 * 3600}, not {seconds:g}")
    if not 0 < rate <= 100_000:
        raise UserError(f"bench-watch: --rate is more than 0 and at most 100000, not {rate:g}")
    try:
        plan = watched.Plan(
            watches=watches, keys=keys, rate=rate, seconds=seconds, protocol=protocol, directory=directory
        )
        return watched.command(plan, json, say)
    except (soak.SoakFailed, KvError) as error:
        raise UserError(f"bench-watch: {error}") from None


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option}: whole numbers with commas between them, not {text[:60]!r}") from None


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and (words[0] == "--version" or words[0] in server.command_names()):
        server.main(words)
    from client_sdk import cli as client
    from client_sdk import etcd_cli, leases_cli, locks_cli, rights_cli

    server.main(words, client.app, leases_cli.app, locks_cli.app, rights_cli.app, etcd_cli.app, measuring)
