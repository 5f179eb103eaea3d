"""The commands of the server: clusters and replicas. `python -m kvstore`; `kvstore` has them, too (`workloads.cli`).

Modules that only some commands need are imported by those commands.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from kvstore.console import (
    FAILED,
    Output,
    OutputOption,
    UserError,
    complain,
    make_app,
    print_json,
    remark,
    say,
    together,
)

if TYPE_CHECKING:
    from kvstore.cluster import ReplicaStatus

INTERRUPTED = 130

app = make_app("Clusters and replicas.")
cluster_app = typer.Typer(help="Make, start, look at and stop a cluster on this machine.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")
archive_app = typer.Typer(help="Old segments of journals, which are kept for audits.", no_args_is_help=True)
app.add_typer(archive_app, name="archive")

auth_app = typer.Typer(help="The token that may do everything.", no_args_is_help=True)
app.add_typer(auth_app, name="auth")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's directory.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")
]


def main(arguments: Sequence[str] | None = None, *others: typer.Typer) -> NoReturn:
    """Run one command, of these or of other groups, and exit."""
    try:
        code = together(app, *others)(arguments, prog_name="kvstore", standalone_mode=False)
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
            complain(f"{text} (`--help` tells more)")
        return FAILED
    if isinstance(error, UserError):
        complain(str(error))
        return error.status
    if isinstance(error, OSError):
        complain(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
        return FAILED
    from kvstore.backup.files import BackupError
    from kvstore.cluster import ClusterError
    from kvstore.config import ConfigError
    from kvstore.process import AlreadyRunning, PortBusy
    from kvstore.serve import ServeError
    from kvstore.storage.backend import StorageError
    from multicast.records import JournalError

    ours = ClusterError | ConfigError | AlreadyRunning | PortBusy | ServeError | StorageError | JournalError
    if not isinstance(error, ours | BackupError):
        raise error
    complain(str(error))
    return FAILED


# -- clusters ---------------------------------------------------------------------------------------------------------


@cluster_app.command("init")
def cluster_init(
    directory: Directory,
    shards: Annotated[int, typer.Option(help="Number of shards.")] = 2,
    replicas: Annotated[int, typer.Option(help="Replicas per shard: 2f + 1 survive f crashes.")] = 3,
    protocol: Annotated[str, typer.Option(help="The multicast protocol.")] = "white_box",
    base_port: Annotated[int, typer.Option(help="Replica i: peer port base + i, HTTP port base + 100 + i.")] = 7400,
    host: Annotated[str, typer.Option(help="Address that the replicas listen on.")] = "127.0.0.1",
    advertise: Annotated[
        str, typer.Option(help="Address or name by which others reach them; by default that of --host.")
    ] = "",
    machines: Annotated[
        str, typer.Option(metavar="ADDRESS,...", help="One per replica of a shard: the first is of all first ones.")
    ] = "",
    durability: Annotated[str, typer.Option(help="fsync, or os: survives a process, not the machine.")] = "fsync",
    archive: Annotated[str, typer.Option(help="Where old journals go, which the audit reads; or none.")] = "archive",
    tls: Annotated[bool, typer.Option("--tls", help="Replicas and clients speak TLS; see `kvstore certs`.")] = False,
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
        say(f"{config.create(directory, made)}: {len(made.replicas)} replica(s), protocol {made.protocol}")
        return
    made = config.new_cluster(
        shards=shards,
        replicas=replicas,
        protocol=protocol,
        cluster_id=uuid.uuid4().hex,
        base_port=base_port,
        host=host,
        advertise=advertise,
        durability=durability,
        archive=archive,
        tls=config.CERTIFICATES if tls else "",
        machines=[address.strip() for address in machines.split(",")] if machines else [],
    )
    path = config.create(directory, made)
    if tls:
        from kvstore import certificates

        certificates.make(directory, made, say)
    say(f"{path}: {shards} shard(s) of {replicas} replica(s), protocol {protocol}, durability {durability}")


@auth_app.command("root")
def auth_root(directory: Directory) -> None:
    """Make root's token and print it, once: from the replicas' next start on every request needs a token.

    Root may do everything, and makes roles and tokens for others (`kvstore role`, `kvstore token`)."""
    from kvstore import config
    from kvstore.api.rights import ROOT, digest_of, token_of

    token = token_of(ROOT, os.urandom(32))
    found = config.load(directory)
    config.save(directory, msgspec.structs.replace(found, root=digest_of(token).hex()))
    remark("for every machine's cluster.json; replicas that run go on as they are until they are started again")
    say(token)


@app.command("certs")
def certs_command(
    directory: Directory,
    renew: Annotated[bool, typer.Option("--renew", help="Make all certificates of replicas anew.")] = False,
) -> None:
    """Make what is missing of a cluster's certificates: for development, an authority, too; and for each replica.

    A running replica reads its certificate again at SIGHUP. In production your own authority signs: see README."""
    from kvstore import certificates, config

    certificates.make(directory, config.load(directory), say, renew)


@cluster_app.command("up")
def cluster_up(
    directory: Directory,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all are ready; they run on.")] = False,
    insecure: InsecureOption = False,
) -> int:
    """Start the replicas that are down and wait until all are ready. Without --detach, stop them at Ctrl-C.

    What cannot start is named; the others run on, and the exit status is 1."""
    from kvstore import cluster

    status = 0
    with cluster.terminable():
        try:
            started = cluster.up(directory, say, insecure)
        except cluster.NotAll as error:
            complain(str(error))
            started, status = error.started, FAILED
        if not started and not status:
            say("all replicas were running already")
        elif started and not detach:
            cluster.watch(directory, started, say)
    return status


@cluster_app.command("status")
def cluster_status(directory: Directory, output: OutputOption = Output.text) -> None:
    """Per replica: id, shard, url, pid, state, role, ballot, position, lag (deliveries behind the first of its shard),
    waits (for which shards what is next to take effect waits), free disk, clock (by how much it is off, if it is)."""
    from kvstore import cluster

    replicas = cluster.status(directory)
    if output is Output.json:
        print_json(replicas)
        return
    first: dict[int, int] = {}
    for replica in replicas:
        first[replica.shard] = max(first.get(replica.shard, 0), replica.position or 0)
    rows = [STATUS_HEADINGS, *[_status_row(replica, first[replica.shard]) for replica in replicas]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


STATUS_HEADINGS = (
    "ID", "SHARD", "URL", "PID", "STATE", "ROLE", "BALLOT", "POSITION", "LAG", "WAITS", "DISK", "CLOCK",
)  # fmt: skip


def _status_row(replica: ReplicaStatus, first: int) -> tuple[str, ...]:
    """first: the position of the replica of its shard that has come furthest."""
    details = replica.details
    clock = details.get("clock") or {}
    ballot = (details.get("details") or {}).get("ballot")
    waits = ",".join(map(str, (details.get("store") or {}).get("head_waiting_for", ())))
    free = details.get("disk_free_bytes")
    disk = None if free is None else f"{free / 2**30:.1f}G"
    lag = None if replica.position is None else first - replica.position
    off = f"{clock['ahead_us'] / 1e6:+.1f} s" if clock.get("off") else "ok" if clock else None
    values = (
        replica.id, replica.shard, replica.url, replica.pid, replica.state, replica.role, ballot, replica.position,
        lag, waits, disk, off,
    )  # fmt: skip
    return tuple("-" if value in (None, "") else str(value) for value in values)


@cluster_app.command("replace-replica")
def cluster_replace_replica(
    directory: Directory,
    replica: Annotated[int, typer.Argument(metavar="ID", help="Which one; it keeps its id.")],
    host: Annotated[str, typer.Option(help="The address that it listens on; by default as it was, and so on.")] = "",
    advertise: Annotated[str, typer.Option(help="By which others reach it; by default the address.")] = "",
    peer_port: Annotated[int, typer.Option(help="For its peers.")] = 0,
    http_port: Annotated[int, typer.Option(help="For HTTP.")] = 0,
    to: Annotated[Path | None, typer.Option("--dir", help="The cluster's directory, for its machine.")] = None,
    insecure: InsecureOption = False,
) -> None:
    """Put a new replica, with an empty disk, in the place of one, while clients go on; it runs on, here."""
    from kvstore.replacing import replace_replica

    changes: dict[str, str | int] = {}
    for name, value in (("host", host), ("peer_port", peer_port), ("http_port", http_port)):
        if value:
            changes[name] = value
    if host or advertise:
        changes["advertise"] = advertise
    replace_replica(directory, replica, changes, to or directory, say, insecure)


@cluster_app.command("add-replica")
def cluster_add_replica(
    directory: Directory,
    shard: Annotated[int, typer.Argument(help="The shard that gets one more replica.")],
    host: Annotated[str, typer.Option(help="The address that it listens on.")] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="By which others reach it; by default the address.")] = "",
    peer_port: Annotated[int, typer.Option(help="For its peers; by default the next one.")] = 0,
    http_port: Annotated[int, typer.Option(help="For HTTP; by default the next one.")] = 0,
    insecure: InsecureOption = False,
) -> int:
    """Add a replica to a shard that goes on meanwhile, and start it here; it runs on."""
    from kvstore.growing import add_replica

    ports = (peer_port, http_port) if peer_port and http_port else None
    add_replica(directory, shard, host, advertise, ports, say, insecure)
    return 0


@cluster_app.command("add-shard")
def cluster_add_shard(
    directory: Directory,
    replicas: Annotated[int, typer.Option(help="How many the new shard has.")] = 3,
    host: Annotated[str, typer.Option(help="The address that they listen on.")] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="By which others reach them; by default the address.")] = "",
    peer_port: Annotated[int, typer.Option(help="Of the first, for its peers; by default the next one.")] = 0,
    http_port: Annotated[int, typer.Option(help="Of the first, for HTTP; by default the next one.")] = 0,
    even: Annotated[bool, typer.Option("--rebalance", help="Move an even share of the slots to it.")] = False,
    insecure: InsecureOption = False,
) -> int:
    """Add a shard, start its replicas here, and make it known, while clients go on. After a failure: again."""
    from kvstore.growing import add_shard, rebalance

    ports = (peer_port, http_port) if peer_port and http_port else None
    shard, _ = add_shard(directory, replicas, host, advertise, ports, say, insecure)
    if even:
        rebalance(directory, shard, say)
    else:
        say(f"shard {shard} has no slots yet: kvstore cluster move-slots {directory} --from S --to {shard} --slots ...")
    return 0


@cluster_app.command("remove-replica")
def cluster_remove_replica(
    directory: Directory, replica: Annotated[int, typer.Argument(metavar="ID", help="Which one.")]
) -> int:
    """Remove a replica from its shard, which goes on meanwhile; the replica ends. Its id is not used again."""
    from kvstore.growing import remove_replica

    remove_replica(directory, replica, say)
    return 0


@cluster_app.command("move-slots")
def cluster_move_slots(
    directory: Directory,
    source: Annotated[int, typer.Option("--from", metavar="SHARD", help="The shard that has them.")],
    target: Annotated[int, typer.Option("--to", metavar="SHARD", help="The shard that shall have them.")],
    slots: Annotated[str, typer.Option(metavar="FIRST-LAST,...", help="Rising, for example 0-4095 or 7,100-199.")],
) -> int:
    """Move hash slots, with their keys, from one shard to another while clients go on. After a failure: again."""
    from kvstore.growing import move_slots

    try:
        parts = [part.partition("-") for part in slots.split(",")]
        ranges = [(int(first), int(last or first)) for first, _, last in parts]
    except ValueError:
        raise typer.BadParameter(f"rising ranges FIRST-LAST with commas, not {slots!r}", param_hint="--slots") from None
    move_slots(directory, source, target, ranges, say)
    return 0


@cluster_app.command("down")
def cluster_down(directory: Directory) -> int:
    """Stop all replicas cleanly."""
    from kvstore import cluster

    return 0 if cluster.down(directory, say) else FAILED


# -- archives ---------------------------------------------------------------------------------------------------------


@archive_app.command("prune")
def archive_prune(
    directory: Directory,
    keep_bytes: Annotated[int | None, typer.Option(min=0, help="Keep the newest that take no more than this.")] = None,
    keep_days: Annotated[float | None, typer.Option(min=0, help="Keep what was archived so lately.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
) -> None:
    """Delete the oldest archived segments of journals: no audit can read them any more. Nothing else ever does."""
    from kvstore.archive import prune

    if keep_bytes is None and keep_days is None:
        raise typer.BadParameter("say how much is to be kept", param_hint="--keep-bytes or --keep-days")
    count = prune(directory, keep_bytes, keep_days, dry_run, say)
    say(f"{count} segment(s){' would go' if dry_run else ''}")


# -- backups ----------------------------------------------------------------------------------------------------------


@app.command("backup")
def backup_command(
    source: Annotated[str, typer.Argument(metavar="DIR|ADDRESS|verify", help="A cluster's directory, or a replica.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to make, or to verify.")],
) -> None:
    """Back up a running cluster, all of it at one point of its order; or read a backup and say whether it is whole."""
    from kvstore.backup.files import verify
    from kvstore.backup.take import take

    done = verify(target, remark) if source == "verify" else take(source, target, remark)
    rows = sum(shard.rows for shard in done.shards)
    say(f"{target}: {rows} rows of {len(done.shards)} shard(s) of cluster {done.cluster_id} at version {done.version}")


@app.command("restore")
def restore_command(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A directory that `kvstore backup` has made.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new cluster's directory.")],
    replicas: Annotated[int, typer.Option(help="Replicas per shard.")] = 3,
    protocol: Annotated[str, typer.Option(help="The multicast protocol; by default that of the backup.")] = "",
    base_port: Annotated[int, typer.Option(help="Replica i: peer port base + i, HTTP port base + 100 + i.")] = 7400,
    host: Annotated[str, typer.Option(help="Address that the replicas listen on.")] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="By which others reach them; by default that of --host.")] = "",
    durability: Annotated[str, typer.Option(help="fsync, or os: survives a process, not the machine.")] = "fsync",
    archive: Annotated[str, typer.Option(help="Where old journals go, which the audit reads; or none.")] = "archive",
) -> None:
    """Make a new cluster with the rows of a backup, at their versions; start it with `cluster up`."""
    from kvstore.backup.files import read_manifest
    from kvstore.backup.restore import configuration, restore

    made = configuration(
        read_manifest(backup), replicas=replicas, protocol=protocol, base_port=base_port, host=host,
        advertise=advertise, durability=durability, archive=archive,
    )  # fmt: skip
    restore(backup, directory, made, remark)
    say(f"{directory}: {len(made.shards)} shard(s) of {replicas} replica(s), protocol {made.protocol}")


@app.command("serve")
def serve_command(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster's directory.")],
    replica: Annotated[int, typer.Option("--replica", metavar="ID", help="Which replica to run.")],
    lost_disk: Annotated[
        bool, typer.Option("--lost-disk", help="Once: its directory is gone; it fetches everything from the others.")
    ] = False,
    insecure: InsecureOption = False,
    failpoints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For tests on loopback: what is to go wrong: multicast.runtime.failpoints"),
    ] = None,
) -> None:
    """Run one replica in this process until SIGTERM or Ctrl-C; it logs JSON lines to standard error."""
    from kvstore.serve import serve

    serve(directory, replica, lost_disk, failpoints, insecure)
