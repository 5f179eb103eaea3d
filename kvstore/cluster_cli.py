"""The commands about clusters: `kvstore cluster`, `kvstore top`. A part of the command `kvstore` (`kvstore.cli`)."""

from __future__ import annotations

import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvstore.console import (
    FAILED,
    Output,
    OutputOption,
    Target,
    UserError,
    beside,
    complain,
    json_line,
    make_app,
    print_json,
    remark,
    say,
    table,
    tell,
)

if TYPE_CHECKING:
    from kvstore.status import ReplicaStatus

app = make_app("Clusters.")
cluster_app = typer.Typer(help="Make, start, look at, change and stop a cluster.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The cluster's directory.")]
Where = Annotated[str, typer.Argument(metavar="DIR|ADDRESS", help="A cluster's directory, or a host:port or URL.")]
InsecureOption = Annotated[
    bool, typer.Option("--insecure", help="Listen beyond this machine without TLS.")
]

MachinesOption = Annotated[
    str, typer.Option(metavar="ADDRESS,...", help="One per replica of a shard: the first is of all first ones.")
]
NamesOption = Annotated[
    str, typer.Option(metavar="NAME", help="Of each replica's own machine: {id}, {shard}, {member} in it. Equal ports.")
]
TlsOption = Annotated[bool, typer.Option("--tls", help="Replicas and clients speak TLS; see `kvstore certs`.")]
ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A cluster.json to take instead of these options.")
]


def addresses(machines: str) -> list[str]:
    """Of the option `--machines`."""
    return [address.strip() for address in machines.split(",")] if machines else []


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
    machines: MachinesOption = "",
    names: NamesOption = "",
    durability: Annotated[str, typer.Option(help="fsync, or os: survives a process, not the machine.")] = "fsync",
    archive: Annotated[str, typer.Option(help="Where old journals go, which the audit reads; or none.")] = "archive",
    tls: TlsOption = False,
    given: ConfigOption = None,
    once: Annotated[bool, typer.Option("--once", help="Where there is a cluster already, all is well.")] = False,
    output: OutputOption = Output.text,
) -> None:
    """Make DIR with the configuration of a new cluster, and an empty directory for each of its replicas."""
    from kvstore import changing, config, identity
    from multicast.runtime.disk import make_directory

    path = directory / config.CLUSTER_FILE

    def is_there() -> bool:
        """Whether all is well without doing anything. UserError: there is a cluster."""
        if path.exists() and not once:
            raise UserError(f"{path} exists already; nothing was changed")
        if path.exists():
            was = config.load(directory)
            tell(output, was, f"{path}: cluster {was.cluster_id} as it was")
        return path.exists()

    if is_there():
        return
    if given is not None:
        made = config.parse(given.read_bytes(), str(given))
    else:
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
            machines=addresses(machines),
            names=names,
        )
    make_directory(str(directory.absolute()))
    with changing.alone(directory):
        if is_there():  # another command has made it meanwhile
            return
        identity.create(directory, made)
    if tls and given is None:
        from kvstore import certificates

        certificates.make(directory, made, beside(output))
    text = f"{path}: {len(made.shards)} shard(s), {len(made.replicas)} replica(s), protocol {made.protocol}"
    text += f", durability {made.durability}"
    tell(output, made, text)


@cluster_app.command("up")
def cluster_up(
    directory: Directory,
    detach: Annotated[bool, typer.Option("--detach", help="Return when all are ready; they run on.")] = False,
    insecure: InsecureOption = False,
    output: OutputOption = Output.text,
) -> int:
    """Start this machine's replicas that are down, wait until all are ready. Without --detach, stop them at Ctrl-C.

    What cannot start is named; the others run on, and the exit status is 1."""
    from kvstore import cluster
    from kvstore.status import statuses

    status, report = 0, beside(output)
    try:
        started = cluster.up(directory, report, insecure)
    except cluster.NotAll as error:
        complain(str(error))
        started, status = error.started, FAILED
    if output is Output.json:
        print_json(statuses(directory))
    elif not started and not status:
        say("all replicas were running already")
    if started and not detach:
        cluster.watch(directory, started, report)
    return status


@cluster_app.command("restart")
def cluster_restart(
    directory: Directory,
    only: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Only these replicas.")] = None,
    insecure: InsecureOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Restart the replicas that run here one after the other, each when all others of its shard are ready; clients go
    on. For another release, or other settings."""
    from kvstore import cluster

    restarted = cluster.restart(directory, beside(output), insecure, only or ())
    tell(output, [one.replica.id for one in restarted], f"{len(restarted)} replica(s) restarted")


@cluster_app.command("status")
def cluster_status(target: Where, output: OutputOption = Output.text) -> int:
    """Per replica: id, shard, url, pid (here), state, role, ballot, position, lag (deliveries behind the first of its
    shard), waits (for which shards what is next to take effect waits), free disk, clock (by how much it is off).

    Exit status 1 if one is not ready."""
    from kvstore.status import lags, statuses

    replicas = statuses(target)
    rows = [_status_row(replica, lag) for replica, lag in zip(replicas, lags(replicas), strict=True)]
    if output is Output.json:
        print_json(replicas)
    else:
        say(table([STATUS_HEADINGS, *rows]))
        for replica in replicas:
            if replica.why:
                remark(f"replica {replica.id} is {replica.state}: {replica.why}")
    return _status_of(replicas)


def _status_of(replicas: list[ReplicaStatus]) -> int:
    return 0 if all(replica.state == "ready" for replica in replicas) else FAILED


STATUS_HEADINGS = (
    "ID", "SHARD", "URL", "PID", "STATE", "ROLE", "BALLOT", "POSITION", "LAG", "WAITS", "DISK", "CLOCK",
)  # fmt: skip


def _status_row(replica: ReplicaStatus, lag: int | None) -> tuple[str, ...]:
    details = replica.details
    clock = details.get("clock") or {}
    described = details.get("details") or {}
    ballot = described.get("ballot", described.get("epoch"))
    waits = ",".join(map(str, (details.get("store") or {}).get("head_waiting_for", ())))
    free = details.get("disk_free_bytes")
    disk = None if free is None else f"{free / 2**30:.1f}G" if free >= 2**30 else f"{free >> 20}M"
    off = f"{clock['ahead_us'] / 1e6:+.1f} s" if clock.get("off") else "ok" if clock else None
    values = (
        replica.id, replica.shard, replica.url, replica.pid, replica.state, replica.role, ballot, replica.position,
        lag, waits, disk, off,
    )  # fmt: skip
    return tuple("-" if value in (None, "") else str(value) for value in values)


@app.command("top")
def top_command(
    target: Where,
    once: Annotated[bool, typer.Option("--once", help="Print one table, and end.")] = False,
    seconds: Annotated[float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between two.")] = 2.0,
    output: OutputOption = Output.text,
) -> None:
    """What the replicas do, again and again until Ctrl-C: requests per second, and those that failed; the median of
    their times, and what 99 of 100 took at most; lag, how long what is next to take effect waits for other shards,
    how long syncs take (99 of 100), sizes of journal and memory, free disk."""
    from kvstore.top import HEADINGS, cells, watched

    clear = "\x1b[H\x1b[J" if sys.stdout.isatty() and not once else ""
    with suppress(KeyboardInterrupt):
        for rows in watched(target, seconds):
            if output is Output.json:
                say(json_line(rows))
            else:
                say(clear + table([HEADINGS, *map(cells, rows)]))
            if once:
                break


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
    output: OutputOption = Output.text,
) -> None:
    """Put a new replica, with an empty disk, in the place of one, while clients go on; it runs on, here."""
    from kvstore.replacing import replace_replica

    changes: dict[str, str | int] = {}
    for name, value in (("host", host), ("peer_port", peer_port), ("http_port", http_port)):
        if value:
            changes[name] = value
    if host or advertise:
        changes["advertise"] = advertise
    started = replace_replica(directory, replica, changes, to or directory, beside(output), insecure)
    tell(output, started.replica, f"replica {replica} runs at {started.replica.url}")


def _ports(peer_port: int, http_port: int) -> tuple[int, int] | None:
    if bool(peer_port) != bool(http_port):
        raise typer.BadParameter("give both of them, or none", param_hint="--peer-port and --http-port")
    return (peer_port, http_port) if peer_port else None


@cluster_app.command("add-replica")
def cluster_add_replica(
    directory: Directory,
    shard: Annotated[int, typer.Argument(help="The shard that gets one more replica.")],
    host: Annotated[str, typer.Option(help="The address that it listens on.")] = "127.0.0.1",
    advertise: Annotated[str, typer.Option(help="By which others reach it; by default the address.")] = "",
    peer_port: Annotated[int, typer.Option(help="For its peers; by default the next one.")] = 0,
    http_port: Annotated[int, typer.Option(help="For HTTP; by default the next one.")] = 0,
    insecure: InsecureOption = False,
    output: OutputOption = Output.text,
) -> None:
    """Add a replica to a shard that goes on meanwhile, and start it here; it runs on."""
    from kvstore.growing import add_replica

    ports = _ports(peer_port, http_port)
    started = add_replica(directory, shard, host, advertise, ports, beside(output), insecure)
    tell(output, started.replica, f"replica {started.replica.id} belongs to shard {shard}")


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
    output: OutputOption = Output.text,
) -> None:
    """Add a shard, start its replicas here, and make it known, while clients go on. After a failure: again."""
    from kvstore.config import in_shell
    from kvstore.growing import add_shard

    ports = _ports(peer_port, http_port)
    shard, started = add_shard(directory, replicas, host, advertise, ports, beside(output), insecure, even)
    command = f"kvstore cluster move-slots {in_shell(directory)} --from S --to {shard} --slots ..."
    text = f"shard {shard} has no slots yet: {command}"
    if even:
        text = f"shard {shard} has an even share of the slots"
    tell(output, {"shard": shard, "replicas": [one.replica for one in started]}, text)


@cluster_app.command("remove-replica")
def cluster_remove_replica(
    directory: Directory,
    replica: Annotated[int, typer.Argument(metavar="ID", help="Which one.")],
    output: OutputOption = Output.text,
) -> None:
    """Remove a replica from its shard, which goes on meanwhile; the replica ends. Its id is not used again."""
    from kvstore.growing import remove_replica

    remove_replica(directory, replica, beside(output))
    if output is Output.json:
        print_json({"replica": replica, "removed": True})


@cluster_app.command("move-slots")
def cluster_move_slots(
    directory: Directory,
    source: Annotated[int, typer.Option("--from", metavar="SHARD", help="The shard that has them.")],
    target: Annotated[int, typer.Option("--to", metavar="SHARD", help="The shard that shall have them.")],
    slots: Annotated[str, typer.Option(metavar="FIRST-LAST,...", help="Rising, for example 0-4095 or 7,100-199.")] = "",
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Instead: give up a move that was begun, and what is kept for it.")
    ] = False,
    output: OutputOption = Output.text,
) -> None:
    """Move hash slots, with their keys, from one shard to another while clients go on. After a failure: again."""
    from kvstore.growing import give_up, move_slots

    if abandon == bool(slots):
        raise typer.BadParameter("give one of them", param_hint="--slots or --abandon")
    ranges = _ranges(slots) if slots else []
    if abandon:
        give_up(directory, source, target, beside(output))
    else:
        move_slots(directory, source, target, ranges, beside(output))
    if output is Output.json:
        print_json({"from": source, "to": target, **({"abandoned": True} if abandon else {"slots": ranges})})


def _ranges(slots: str) -> list[tuple[int, int]]:
    try:
        parts = [part.partition("-") for part in slots.split(",")]
        return [(int(first), int(last or first)) for first, _, last in parts]
    except ValueError:
        raise typer.BadParameter(f"rising ranges FIRST-LAST with commas, not {slots!r}", param_hint="--slots") from None


@cluster_app.command("down")
def cluster_down(directory: Directory, output: OutputOption = Output.text) -> int:
    """Stop all replicas cleanly."""
    from kvstore import cluster

    clean = cluster.down(directory, beside(output))
    if output is Output.json:
        print_json({"clean": clean})
    return 0 if clean else FAILED


# -- as etcdctl calls it ----------------------------------------------------------------------------------------------

member_app = typer.Typer(help="The replicas, as etcdctl calls them.", no_args_is_help=True)
app.add_typer(member_app, name="member", hidden=True)
endpoint_app = typer.Typer(help="The replicas' addresses, as etcdctl calls them.", no_args_is_help=True)
app.add_typer(endpoint_app, name="endpoint", hidden=True)
member_app.command("add")(cluster_add_replica)
member_app.command("remove")(cluster_remove_replica)


@member_app.command("list")
def member_list(cluster: Target, output: OutputOption = Output.text) -> None:
    """Id, shard and address of every replica."""
    from kvstore.status import described, urls_of

    shards = described(urls_of(cluster)).shards
    members = [{"id": r.id, "shard": shard.id, "url": r.url} for shard in shards for r in shard.replicas]
    tell(output, members, table([tuple(map(str, member.values())) for member in members]))


@endpoint_app.command("status")
def endpoint_status(cluster: Target, output: OutputOption = Output.text) -> int:
    """As `kvstore cluster status`."""
    return cluster_status(cluster, output)


@endpoint_app.command("health")
def endpoint_health(cluster: Target, output: OutputOption = Output.text) -> int:
    """Whether every replica is ready; exit status 1 if one is not."""
    from kvstore.status import statuses

    replicas = statuses(cluster)
    health = [{"endpoint": replica.url, "health": replica.state == "ready"} for replica in replicas]
    tell(output, health, "\n".join(f"{replica.url} is {replica.state}" for replica in replicas))
    return _status_of(replicas)
