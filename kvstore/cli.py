"""The command `kvstore`. Exit status 0: done; 1: failed, certainly without effect; 2: outcome unknown.

A user's mistake is one line on standard error. Modules that only some commands need are imported by those commands.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from client_sdk import Client
    from kvstore.cluster import ReplicaStatus

FAILED = 1
OUTCOME_UNKNOWN = 2
INTERRUPTED = 130

app = typer.Typer(
    help="A sharded, replicated key-value store. Exit status: 0 done, 1 failed, 2 outcome unknown.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cluster_app = typer.Typer(help="Make, start, look at and stop a cluster on this machine.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")


class Output(StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's directory.")]
Target = Annotated[
    str,
    typer.Option(
        "--cluster", metavar="DIR|URL", envvar="KVSTORE_CLUSTER", help="A cluster's directory, or a replica's URL."
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=0.001, max=600, help="Seconds, retries included.")]
OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print the result.")]
MessageIdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="UUID", help="The write's id, a UUIDv7: repeat it after an unknown outcome."),
]


class UserError(Exception):
    """Something that the user can put right; one line."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit."""
    try:
        code = app(arguments, prog_name="kvstore", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILED
    except Exception as error:
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> int:
    """One line for everything that is not our own bug; the exit status."""
    usage = getattr(error, "format_message", None)
    if usage is not None:
        text = usage()
        if "\n" in text:  # the help of a command that needs a subcommand
            print(text, file=sys.stderr)
        else:
            _complain(f"{text} (`--help` tells more)")
        return FAILED
    from client_sdk import KvError
    from client_sdk.errors import UNKNOWN
    from kvstore.cluster import ClusterError
    from kvstore.config import ConfigError
    from kvstore.process import AlreadyRunning, PortBusy
    from kvstore.serve import ServeError
    from kvstore.storage.backend import StorageError
    from multicast.records import JournalError

    ours = (UserError, ClusterError, ConfigError, AlreadyRunning, PortBusy, ServeError, StorageError, JournalError)
    if isinstance(error, KvError):
        _complain(str(error))
        return OUTCOME_UNKNOWN if error.outcome == UNKNOWN else FAILED
    if isinstance(error, OSError):
        _complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return FAILED
    if not isinstance(error, ours):
        raise error
    _complain(str(error))
    return FAILED


def _complain(text: str) -> None:
    from kvstore.cluster import ERROR_PREFIX

    print(f"{ERROR_PREFIX}{text}", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


# -- clusters ---------------------------------------------------------------------------------------------------------


@cluster_app.command("init")
def cluster_init(
    directory: Directory,
    shards: Annotated[int, typer.Option(help="Number of shards.")] = 2,
    replicas: Annotated[int, typer.Option(help="Replicas per shard: 2f + 1 survive f crashes.")] = 3,
    protocol: Annotated[str, typer.Option(help="The multicast protocol.")] = "white_box",
    base_port: Annotated[int, typer.Option(help="Replica i: peer port base + i, HTTP port base + 100 + i.")] = 7400,
    host: Annotated[str, typer.Option(help="Address that the replicas listen on.")] = "127.0.0.1",
    durability: Annotated[str, typer.Option(help="fsync, or os: survives a process, not the machine.")] = "fsync",
    given: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A cluster.json to take instead of these options.")
    ] = None,
) -> None:
    """Make DIR with the configuration of a new cluster, and an empty directory for each of its replicas."""
    from kvstore import config

    if (directory / config.CLUSTER_FILE).exists():
        raise UserError(f"{directory / config.CLUSTER_FILE} exists already; nothing was changed")
    if given is not None:
        made = config.parse(given.read_bytes(), str(given))
        _say(f"{config.create(directory, made)}: {len(made.replicas)} replica(s), protocol {made.protocol}")
        return
    made = config.new_cluster(
        shards=shards,
        replicas=replicas,
        protocol=protocol,
        cluster_id=uuid.uuid4().hex,
        base_port=base_port,
        host=host,
        durability=durability,
    )
    path = config.create(directory, made)
    _say(f"{path}: {shards} shard(s) of {replicas} replica(s), protocol {protocol}, durability {durability}")


@cluster_app.command("up")
def cluster_up(
    directory: Directory,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all are ready; they run on.")] = False,
) -> None:
    """Start the replicas that are down and wait until all are ready. Without --detach, stop them at Ctrl-C."""
    from kvstore import cluster

    with cluster.terminable():
        started = cluster.up(directory, _say)
        if not started:
            _say("all replicas were running already")
        elif not detach:
            cluster.watch(directory, started, _say)


@cluster_app.command("status")
def cluster_status(directory: Directory, output: OutputOption = Output.text) -> None:
    """Per replica: id, shard, url, pid, state, role, position, clock (by how much it is off, if it is)."""
    from kvstore import cluster

    replicas = cluster.status(directory)
    if output is Output.json:
        _print_json(replicas)
        return
    rows = [("ID", "SHARD", "URL", "PID", "STATE", "ROLE", "POSITION", "CLOCK"), *map(_status_row, replicas)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        _say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _status_row(replica: ReplicaStatus) -> tuple[str, ...]:
    clock = replica.details.get("clock") or {}
    off = f"{clock['ahead_us'] / 1e6:+.1f} s" if clock.get("off") else "ok" if clock else None
    values = (replica.id, replica.shard, replica.url, replica.pid, replica.state, replica.role, replica.position, off)
    return tuple("-" if value in (None, "") else str(value) for value in values)


@cluster_app.command("down")
def cluster_down(directory: Directory) -> int:
    """Stop all replicas cleanly."""
    from kvstore import cluster

    return 0 if cluster.down(directory, _say) else FAILED


@app.command("serve")
def serve_command(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster's directory.")],
    replica: Annotated[int, typer.Option("--replica", metavar="ID", help="Which replica to run.")],
    lost_disk: Annotated[
        bool, typer.Option("--lost-disk", help="Once: its directory is gone; it fetches everything from the others.")
    ] = False,
) -> None:
    """Run one replica in this process until SIGTERM or Ctrl-C; it logs JSON lines to standard error."""
    from kvstore.serve import serve

    serve(directory, replica, lost_disk)


# -- data -------------------------------------------------------------------------------------------------------------


@app.command("get")
def get_command(key: str, cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text) -> int:
    """Print a key's value. Status 1 if there is no such key."""
    name = os.fsencode(key)
    with _client(cluster, timeout) as client:
        found = client.get(name)
    if output is Output.json:
        from kvstore.http.schemas import entry_json, text_or_b64

        _print_json(entry_json(found) if found else dict([text_or_b64("key", name), ("value", None)]))
    elif found:
        _print_bytes(found.value)
    if found is None:
        _complain("no such key")
        return FAILED
    return 0


@app.command("put")
def put_command(
    key: str,
    value: Annotated[str, typer.Argument(help="- reads standard input.")],
    cluster: Target,
    if_version: Annotated[str | None, typer.Option(help="Only over this version.")] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if there is no such key.")] = False,
    message_id: MessageIdOption = None,
    timeout: Timeout = 10.0,
) -> None:
    """Write a key; prints the new version."""
    data = sys.stdin.buffer.read() if value == "-" else os.fsencode(value)
    version = _version(if_version)
    identity = _message_id(message_id)
    with _client(cluster, timeout) as client:
        written = client.put(os.fsencode(key), data, if_version=version, if_absent=if_absent, message_id=identity)
    _say(str(written))


@app.command("delete")
def delete_command(
    key: str,
    cluster: Target,
    if_version: Annotated[str | None, typer.Option(help="Only this version.")] = None,
    message_id: MessageIdOption = None,
    timeout: Timeout = 10.0,
) -> None:
    """Delete a key; prints whether it was there."""
    version, identity = _version(if_version), _message_id(message_id)
    with _client(cluster, timeout) as client:
        deleted = client.delete(os.fsencode(key), if_version=version, message_id=identity)
    _say("deleted" if deleted else "no such key")


@app.command("scan")
def scan_command(
    cluster: Target,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many keys.")] = 1000,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Print keys and values in key order, tab between them."""
    from kvstore.http.schemas import entry_json

    with _client(cluster, timeout) as client:
        for count, found in enumerate(client.scan(os.fsencode(prefix), page_size=min(limit, 100)), 1):
            if output is Output.json:
                _print_json(entry_json(found), one_line=True)
            else:
                _print_bytes(found.key + b"\t" + found.value)
            if count == limit:
                break


@app.command("txn")
def txn_command(
    transaction: Annotated[str, typer.Argument(metavar="JSON|FILE|-", help="As for POST /v1/txn.")],
    cluster: Target,
    message_id: MessageIdOption = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Run a transaction: compare, then success or failure. Either branch is status 0."""
    from kvstore.http.errors import Problem
    from kvstore.http.schemas import parse_transaction, result_json

    try:
        parsed = parse_transaction(_transaction_text(transaction))
    except Problem as problem:
        raise UserError(problem.detail) from None
    identity = _message_id(message_id)
    with _client(cluster, timeout) as client:
        result = client.txn(parsed.compare, parsed.success, parsed.failure, message_id=identity)
    branch = parsed.success if result.succeeded else parsed.failure
    results = [result_json(o, r) for o, r in zip(branch, result.results, strict=False)]
    if output is Output.json:
        _print_json({"succeeded": result.succeeded, "version": str(result.version), "results": results})
        return
    _say(f"{'success' if result.succeeded else 'failure'} at {result.version}")
    for operation, one in zip(branch, results, strict=False):
        _say(f"  {type(operation).__name__.lower()}: {_json_line(one)}")


def _transaction_text(argument: str) -> bytes:
    if argument == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(argument) if argument.lstrip().startswith("{") else Path(argument).read_bytes()


@app.command("bench")
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
    except ValueError as error:
        raise UserError(f"bench: {error}") from None


# -- small things -----------------------------------------------------------------------------------------------------


@contextmanager
def _client(target: str, timeout: float) -> Iterator[Client]:
    from client_sdk import Client

    try:
        client = Client(target, timeout=timeout)
    except ValueError as error:
        raise UserError(str(error)) from None
    with client:
        yield client


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option}: whole numbers with commas between them, not {text[:60]!r}") from None


def _version(text: str | None) -> Any:
    from multicast.types import Timestamp

    try:
        return None if text is None else Timestamp.parse(text.strip('"'))
    except ValueError as error:
        raise UserError(f"--if-version: {error}") from None


def _message_id(text: str | None) -> bytes | None:
    from multicast.types import is_uuid7

    if text is None:
        return None
    try:
        message_id = uuid.UUID(text).bytes
    except ValueError:
        message_id = b""
    if not is_uuid7(message_id):
        raise UserError(f"--id: a UUIDv7 is needed, such as 0197b3c2-7f00-7cc3-98c4-dc0c0c07398f, not {text[:60]!r}")
    return message_id


def _print_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.buffer.flush()


def _json_line(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _print_json(value: Any, one_line: bool = False) -> None:
    import msgspec

    text = _json_line(value)
    _say(text if one_line else msgspec.json.format(text, indent=2))
