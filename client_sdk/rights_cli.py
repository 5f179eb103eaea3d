"""The commands about rights: `kvstore role`, `kvstore token`. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from client_sdk import rights
from client_sdk.cli import Timeout, open_client
from kvstore.api.forms import text_or_b64
from kvstore.api.rights import Access, PermissionJson, id_of
from kvstore.console import Output, OutputOption, Target, UserError, make_app, print_json, say, tell

app = make_app("Who may do what.")
role_app = typer.Typer(help="What the holders of tokens may do.", no_args_is_help=True)
token_app = typer.Typer(help="Tokens, by which clients say who they are.", no_args_is_help=True)
app.add_typer(role_app, name="role")
app.add_typer(token_app, name="token")

_Prefixes = Annotated[
    list[str] | None, typer.Option(metavar="PREFIX", help="Keys that begin with this; more than once.")
]


_Keys = Annotated[list[str] | None, typer.Option(metavar="KEY", help="This key alone; more than once.")]
_Ranges = Annotated[
    list[str] | None, typer.Option(metavar="START,END", help="From one key to before another; no END: all that follow.")
]


@role_app.command("put")
def role_put(
    name: str,
    cluster: Target,
    read: _Prefixes = None,
    write: _Prefixes = None,
    read_key: _Keys = None,
    write_key: _Keys = None,
    read_range: _Ranges = None,
    write_range: _Ranges = None,
    lease: Annotated[bool, typer.Option("--lease", help="Grant, renew and revoke leases.")] = False,
    admin: Annotated[bool, typer.Option("--admin", help="Change the cluster, and rights.")] = False,
    monitor: Annotated[bool, typer.Option("--monitor", help="See metrics.")] = False,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Make a role, or change it: from now on it is for that, and nothing else."""
    permissions: list[PermissionJson] = []
    of_keys: list[tuple[Access, list[str] | None, list[str] | None, list[str] | None]]
    of_keys = [("read", read, read_key, read_range), ("write", write, write_key, write_range)]
    for access, prefixes, keys, ranges in of_keys:
        permissions += [_of_keys(access, prefix=prefix) for prefix in prefixes or ()]
        permissions += [_of_keys(access, key=key) for key in keys or ()]
        permissions += [_of_range(access, told) for told in ranges or ()]
    permissions += [PermissionJson(access=["lease"])] if lease else []
    permissions += [PermissionJson(access=["admin"])] if admin else []
    permissions += [PermissionJson(access=["monitor"])] if monitor else []
    if not permissions:
        what = "--read, --write (each also -key, -range), --lease, --admin, --monitor"
        raise UserError(f"say what it is for: {what}")
    with open_client(cluster, timeout) as client:
        client.run(rights.put_role(name, permissions))
    tell(output, {"role": name, "permissions": permissions}, f"role {name}: {len(permissions)} permission(s)")


def _of_range(access: Access, told: str) -> PermissionJson:
    start, comma, end = told.partition(",")
    if not comma or "," in end or not (start or end):
        text = f"START,END, with one comma and a key on one side of it at least, not {told!r}"
        raise UserError(f"--{access}-range: {text}; keys with commas: PUT /v1/admin/roles/NAME")
    return _of_keys(access, **{name: bound for name, bound in (("start", start), ("end", end)) if bound})


def _of_keys(access: Access, **bounds: str) -> PermissionJson:
    """Bytes that are no text, too."""
    told: dict[str, Any] = {}
    for name, bound in bounds.items():
        told |= text_or_b64(name, os.fsencode(bound))
    return PermissionJson(access=[access], **told)


@role_app.command("delete")
def role_delete(
    name: str, cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text
) -> None:
    """Take a role from all who have it."""
    with open_client(cluster, timeout) as client:
        if not client.run(rights.delete_role(name)):
            raise UserError(f"there is no role {name!r}, or no longer")
    tell(output, {"role": name, "deleted": True}, f"role {name}: nobody has it")


@role_app.command("list")
def role_list(cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text) -> None:
    """All roles and what they are for."""
    with open_client(cluster, timeout) as client:
        found = client.run(rights.list_rights()).roles
    if output is Output.json:
        print_json(found)
        return
    for name, permissions in sorted(found.items()):
        for one in permissions:
            keys = "" if one.access not in ("read", "write") else f" from {one.first!r} to {one.end or 'the end'!r}"
            say(f"{name}\t{one.access}{keys}")


@token_app.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    cluster: Target,
    role: Annotated[list[str] | None, typer.Option(help="That he has; more than once.")] = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Make a token and print it. It is told here, once, and nowhere else."""
    with open_client(cluster, timeout) as client:
        made = client.run(rights.make_token(name, role or []))
    tell(output, made, made.token)


@token_app.command("revoke")
def token_revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="The second part of the token; or the token.")],
    cluster: Target,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Take a token back."""
    token_id = id_of(token) or token
    with open_client(cluster, timeout) as client:
        if not client.run(rights.delete_token(token_id)):
            raise UserError(f"there is no token with the id {token_id!r}, or no longer")
    tell(output, {"id": token_id, "revoked": True}, f"token {token_id}: not known any more")


@token_app.command("list")
def token_list(cluster: Target, timeout: Timeout = 10.0, output: OutputOption = Output.text) -> None:
    """All tokens but root's: id, whose, roles."""
    with open_client(cluster, timeout) as client:
        found = client.run(rights.list_rights()).tokens
    if output is Output.json:
        print_json(found)
        return
    for one in found:
        say(f"{one.id}\t{one.name}\t{','.join(one.roles)}")
