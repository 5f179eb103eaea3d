"""The commands of the server: clusters and replicas. `python -m kvstore`; `kvstore` has them, too (`workloads.cli`).

Modules that only some commands need are imported by those commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from kvstore import cluster_cli
from kvstore.cluster_cli import (
    ConfigOption,
    Directory,
    InsecureOption,
    MachinesOption,
    NamesOption,
    TlsOption,
    addresses,
)
from kvstore.console import (
    FAILED,
    INSTEAD_OF_OPTIONS,
    Output,
    OutputOption,
    Target,
    UserError,
    beside,
    complain,
    instead,
    json_line,
    make_app,
    print_json,
    remark,
    say,
    tell,
    together,
    unread,
)

INTERRUPTED = 130
COMPLETE = "_KVSTORE_COMPLETE"
"""In the environment of a command that only tells a shell how a word may go on."""

app = make_app("Clusters and replicas.")
archive_app = typer.Typer(help="Old segments of journals, which are kept for audits.", no_args_is_help=True)
app.add_typer(archive_app, name="archive")

config_app = typer.Typer(help="Settings.", no_args_is_help=True)
app.add_typer(config_app, name="config")
auth_app = typer.Typer(help="The token that may do everything.", no_args_is_help=True)
app.add_typer(auth_app, name="auth")

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Of limits and log: this replica's own; more than once."),
]


def main(arguments: Sequence[str] | None = None, *others: typer.Typer) -> NoReturn:
    """Run one command, of these or of other groups, and exit."""
    if COMPLETE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    words = sys.argv[1:] if arguments is None else arguments
    whole = together(cluster_cli.app, app, *others, asked=words[0] if words else "")
    try:
        code = whole(arguments, prog_name="kvstore", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        unread(sys.stdout)
        code = FAILED
    except Exception as error:
        code = _explain(error, bool(others))
    sys.exit(code if isinstance(code, int) else 0)


def command_names() -> set[str]:
    """Of the commands that `main` runs without others, and of their groups."""
    names = [group.name for one in (cluster_cli.app, app) for group in one.registered_groups]
    names += [command.name for one in (cluster_cli.app, app) for command in one.registered_commands]
    return {str(name) for name in names}


def _explain(error: Exception, all_commands: bool) -> int:
    """One line for everything that is not our own bug; the exit status."""
    usage = getattr(error, "format_message", None)
    if usage is not None:
        text = _instead_of_option(error) or usage()
        whole = getattr(getattr(error, "ctx", None), "parent", None) is None
        if whole and not all_commands and text.startswith("No such command"):
            text += " Here are those for clusters and replicas; the command `kvstore` has all."
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


def _instead_of_option(error: Exception) -> str:
    """Of an option that others have; else nothing."""
    option, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    command = getattr(context, "info_name", "")
    said = INSTEAD_OF_OPTIONS.get(f"{command} {option}") or INSTEAD_OF_OPTIONS.get(option)
    return f"No such option: {option}: {said}" if said else ""


@config_app.command("show")
def config_show(
    directory: Directory,
    origin: Annotated[bool, typer.Option("--origin", help="Who says so: flag, environment, file, default.")] = False,
    flags: SetOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Every setting, as `kvstore serve` would find it here and now. What is secret is hidden."""
    from kvstore import config
    from kvstore.settings import settings

    known = config.load(directory)
    file = msgspec.json.decode((directory / config.CLUSTER_FILE).read_bytes())
    found = settings(known, file, os.environ, flags or ())
    shown = [{"name": s.name, "value": s.value, **({"origin": s.origin} if origin else {})} for s in found]
    rows = [(s.name, json_line(s.value), *([s.origin] if origin else [])) for s in found]
    tell(output, shown, "\n".join("\t".join(row) for row in rows))


@auth_app.command("root")
def auth_root(directory: Directory, output: OutputOption = Output.text) -> None:
    """Make root's token and print it, once: from the replicas' next start on every request needs a token.

    Root may do everything, and makes roles and tokens for others (`kvstore role`, `kvstore token`). A token that it had
    before ends with that start."""
    from kvstore import changing
    from kvstore.api.rights import ROOT, digest_of, token_of

    token = token_of(ROOT, os.urandom(32))
    with changing.alone(directory):
        changing.update(directory, lambda now: msgspec.structs.replace(now, root=digest_of(token).hex()))
    remark("for every machine's cluster.json; replicas that run go on as they are until they are started again")
    tell(output, {"token": token}, token)


instead(auth_app, "enable", "`kvstore auth root DIR` makes root's token; from the replicas' next start on all need one")
instead(auth_app, "status", "`kvstore config show DIR --origin` shows whether there is a root: then tokens are needed")


@app.command("certs")
def certs_command(
    directory: Directory,
    renew: Annotated[bool, typer.Option("--renew", help="Make all certificates of replicas anew.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Make what is missing of a cluster's certificates: for development, an authority, too; and for each replica.

    A running replica reads its certificate again at SIGHUP. In production your own authority signs: see README."""
    from kvstore import certificates, changing, config

    known = config.load(directory)
    with changing.alone(directory):
        made = certificates.make(directory, known, beside(output), renew)
    if output is Output.json:
        print_json({"made": made})


# -- archives ---------------------------------------------------------------------------------------------------------


@archive_app.command("prune")
def archive_prune(
    directory: Directory,
    keep_bytes: Annotated[int | None, typer.Option(min=0, help="Keep the newest that take no more than this.")] = None,
    keep_days: Annotated[float | None, typer.Option(min=0, help="Keep what was archived so lately.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Delete the oldest archived segments of journals: no audit can read them any more. Nothing else ever does."""
    from kvstore.archive import prune

    if keep_bytes is None and keep_days is None:
        raise typer.BadParameter("say how much is to be kept", param_hint="--keep-bytes or --keep-days")
    count = prune(directory, keep_bytes, keep_days, dry_run, beside(output))
    tell(output, {"segments": count, "dry_run": dry_run}, f"{count} segment(s){' would go' if dry_run else ''}")


# -- backups ----------------------------------------------------------------------------------------------------------


AtOption = Annotated[
    str,
    typer.Option(metavar="VERSION", help="As it was when that was written, as long as the history knows it: see"
                 " limits.history_ms."),
]  # fmt: skip


@app.command("backup")
def backup_command(
    source: Annotated[str, typer.Argument(metavar="DIR|ADDRESS|verify", help="A cluster's directory, or a replica.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to make, or to verify.")],
    at: AtOption = "",
    output: OutputOption = Output.text,
) -> None:
    """Back up a running cluster, all of it at one point of its order; or read a backup and say whether it is whole."""
    from kvstore.backup.files import verify
    from kvstore.backup.take import take

    if source == "verify" and at:
        raise typer.BadParameter("of a backup that is taken; all of this one is of one version", param_hint="--at")
    done = verify(target, remark) if source == "verify" else take(source, target, remark, at)
    rows, shards = sum(shard.rows for shard in done.shards), len(done.shards)
    result = {"rows": rows, "shards": shards, "cluster_id": done.cluster_id, "version": done.version}
    whose = f"of {shards} shard(s) of cluster {done.cluster_id} at version {done.version}"
    tell(output, result, f"{target}: {rows} rows {whose}")


snapshot_app = typer.Typer(help="Backups, as etcdctl calls them.", no_args_is_help=True)
app.add_typer(snapshot_app, name="snapshot", hidden=True)


@snapshot_app.command("save")
def snapshot_save(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to make.")],
    cluster: Target,
    at: AtOption = "",
    output: OutputOption = Output.text,
) -> None:
    """As `kvstore backup`."""
    backup_command(cluster, target, at, output)


@snapshot_app.command("status")
def snapshot_status(
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory.")],
    output: OutputOption = Output.text,
) -> None:
    """As `kvstore backup verify`."""
    backup_command("verify", target, "", output)


@snapshot_app.command("restore")
@app.command("restore")
def restore_command(
    backup: Annotated[Path, typer.Argument(metavar="BACKUP", help="A directory that `kvstore backup` has made.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new cluster's directory.")],
    replicas: Annotated[int, typer.Option(help="Replicas per shard.")] = 3,
    protocol: Annotated[str, typer.Option(help="The multicast protocol; by default that of the backup.")] = "",
    base_port: Annotated[int, typer.Option(help="Replica i: peer port base + i, HTTP port base + 100 + i.")] = 7400,
    host: Annotated[str, typer.Option(help="Address that the replicas listen on.")] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="By which others reach them; by default that of --host.")] = "",
    machines: MachinesOption = "",
    names: NamesOption = "",
    durability: Annotated[str, typer.Option(help="fsync, or os: survives a process, not the machine.")] = "fsync",
    archive: Annotated[str, typer.Option(help="Where old journals go, which the audit reads; or none.")] = "archive",
    tls: TlsOption = False,
    given: ConfigOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Make a new cluster with the rows of a backup, at their versions; start it with `cluster up`.

    All replicas are made here: each machine needs a copy of cluster.json and of the directories of its own ones."""
    from kvstore import config
    from kvstore.backup.files import read_manifest
    from kvstore.backup.restore import configuration, fitted, restore

    manifest = read_manifest(backup)
    if given is not None:
        made = fitted(manifest, config.parse(given.read_bytes(), str(given)))
    else:
        made = configuration(
            manifest, protocol=protocol, replicas=replicas, base_port=base_port, host=host, advertise=advertise,
            durability=durability, archive=archive, tls=config.CERTIFICATES if tls else "",
            machines=addresses(machines), names=names,
        )  # fmt: skip
    restore(backup, directory, made, remark)
    if tls and given is None:
        from kvstore import certificates

        certificates.make(directory, made, beside(output))
    many = len(made.replicas)
    tell(output, made, f"{directory}: {len(made.shards)} shard(s), {many} replica(s), protocol {made.protocol}")


@app.command("completion")
def completion_command(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
) -> None:
    """Print what makes a shell complete these commands: `source <(kvstore completion bash)`."""
    from typer._completion_shared import get_completion_script

    if shell not in ("bash", "zsh", "fish"):
        raise typer.BadParameter(f"bash, zsh or fish, not {shell!r}", param_hint="SHELL")
    say(get_completion_script(prog_name="kvstore", complete_var=COMPLETE, shell=shell))


@app.command("serve")
def serve_command(
    directory: Annotated[Path, typer.Option("--dir", metavar="DIR", help="The cluster's directory.")],
    replica: Annotated[
        str, typer.Option("--replica", metavar="ID|NAME", help="Which one: its id, or (the first part of) its address.")
    ],
    bootstrap: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A cluster.json to begin with where there is none: an empty replica asks the others."
        ),
    ] = None,
    lost_disk: Annotated[
        bool, typer.Option("--lost-disk", help="Once: its directory is gone; it fetches everything from the others.")
    ] = False,
    insecure: InsecureOption = False,
    flags: SetOption = None,
    failpoints: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For tests on loopback: what is to go wrong: multicast.runtime.failpoints"),
    ] = None,
) -> None:
    """Run one replica in this process until SIGTERM or Ctrl-C, said twice without waiting for anything; it logs to
    standard error: JSON, on a terminal text.

    With --bootstrap the same command is right at the first start, at every other, and after the loss of its disk."""
    from kvstore.serve import serve

    serve(directory, replica, lost_disk, failpoints, insecure, bootstrap, flags or ())
