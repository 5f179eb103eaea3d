"""The commands `kvstore lease ...`. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from client_sdk.cli import ABSENT, Timeout, lease_id, open_client
from client_sdk.errors import OutcomeUnknown, Unavailable
from client_sdk.requests import Lease
from client_sdk.sessions import RENEWALS
from kvstore.api.codec import id_text
from kvstore.api.forms import text_or_b64
from kvstore.console import Output, OutputOption, Target, complain, make_app, print_json, say

RETRY_SECONDS = 0.2

app = make_app("Leases.")
lease_app = typer.Typer(help="Keys that go when nobody renews their lease.", no_args_is_help=True)
app.add_typer(lease_app, name="lease")

LeaseArgument = Annotated[str, typer.Argument(metavar="LEASE", help="The id that `lease grant` has printed.")]


@lease_app.command("grant")
def lease_grant_command(
    ttl: Annotated[float, typer.Argument(help="Seconds from a renewal until it may expire: 1 to 86400.")],
    cluster: Target,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Make a lease, and print its id: `put --lease` attaches keys to it."""
    with open_client(cluster, timeout) as client:
        _say_lease(client.grant_lease(ttl), output)


@lease_app.command("list")
def lease_list_command(
    cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text
) -> None:
    """Print all leases, in the order of their grants. Where there are tokens, only for those who may admin."""
    with open_client(cluster, timeout) as client:
        if output is Output.json:
            print_json([_lease_json(found) for found in client.leases()])
            return
        for found in client.leases():
            _say_lease(found, output)


@lease_app.command("keep-alive", hidden=True)  # as etcdctl calls it
@lease_app.command("keepalive")
def lease_keepalive_command(
    lease: LeaseArgument,
    cluster: Target,
    once: Annotated[bool, typer.Option("--once", help="Renew it once, and end.")] = False,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> int:
    """Renew a lease three times in its time to live, until interrupted, or nobody has answered for as long as it lives.
    Status 3 if it has gone."""
    identity, until = lease_id(lease), 0.0
    with open_client(cluster, timeout) as client:
        while True:
            sent = time.monotonic()
            try:
                found = client.renew_lease(identity)
            except (Unavailable, OutcomeUnknown):
                if time.monotonic() >= until:
                    raise
                time.sleep(RETRY_SECONDS)  # it lives yet
                continue
            if found is None:
                return _no_lease()
            _say_lease(found, output)
            if once:
                return 0
            until = sent + found.ttl
            time.sleep(found.ttl / RENEWALS)


@lease_app.command("get")
@lease_app.command("show", hidden=True)
@lease_app.command("timetolive", hidden=True)  # as etcdctl calls it
def lease_get_command(
    lease: LeaseArgument,
    cluster: Target,
    keys: Annotated[bool, typer.Option("--keys", help="And the keys that are attached to it.")] = False,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> int:
    """Print how long a lease lives yet, about. Status 3 if it has gone."""
    identity = lease_id(lease)
    with open_client(cluster, timeout) as client:
        found = client.lease(identity, keys=keys)
    if found is None:
        return _no_lease()
    _say_lease(found, output)
    return 0


@lease_app.command("revoke")
def lease_revoke_command(
    lease: LeaseArgument, cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text
) -> int:
    """Let a lease go, and with it the keys that are attached to it. Status 3 if it has gone already."""
    identity = lease_id(lease)
    with open_client(cluster, timeout) as client:
        revoked = client.revoke_lease(identity)
    if output is Output.json:
        print_json({"revoked": revoked})
    return 0 if revoked else _no_lease()


def _no_lease() -> int:
    complain("no such lease, or no longer")
    return ABSENT


def _lease_json(lease: Lease) -> dict[str, Any]:
    told = {"id": id_text(lease.id), "ttl": lease.ttl, "left": lease.left, "version": str(lease.version)}
    return told if lease.keys is None else told | {"keys": [text_or_b64("key", key) for key in lease.keys]}


def _say_lease(lease: Lease, output: Output) -> None:
    if output is Output.json:
        print_json(_lease_json(lease))
    else:
        say(f"{id_text(lease.id)} {lease.left:g} of {lease.ttl:g} s")
        for key in lease.keys or ():
            say(f"  {key.decode(errors='backslashreplace')}")
