"""What etcdctl has and we have not: one sentence each. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

from client_sdk.rights_cli import role_app
from kvstore.console import INSTEAD_OF_OPTIONS, instead, make_app

ROLES = "a role is told as a whole: `kvstore role put NAME --read PREFIX --write PREFIX`; `kvstore role list` shows all"

INSTEAD = {
    "user": INSTEAD_OF_OPTIONS["--user"],
    "compaction": "what was overwritten is dropped by its age: limits.history_ms and limits.history_bytes_max",
    "version": "here it is `kvstore --version`",
    "defrag": "nothing has to be defragmented",
    "alarm": "there are no alarms to disarm: writes are taken again as soon as there is room on the disk",
    "move-leader": "leaders are not moved by hand; a replica that stops leaves at once, and another one leads",
    "make-mirror": "there are no mirrors; `kvstore watch --from VERSION -o json` tells every change in one order",
    "check": "to measure: `kvstore bench DIR`",
    "role add": ROLES,
    "role get": ROLES,
    "role grant-permission": ROLES,
    "role revoke-permission": ROLES,
}
"""Command of etcdctl -> what we say."""

RANGES = "`kvstore scan` is for ranges: a prefix, --start, --end, --reverse, --keys-only, --count-only, --limit"
RANGES_HAVE = "keys-only count-only limit from-key order sort-by"
PREVIOUS = "what was there before is not told: read it in the same transaction, or with `get --version`"

OLD = "--version takes one that a put has printed, and shows what stood then"

INSTEAD_OF_OPTIONS |= {
    **dict.fromkeys(("get --rev", "scan --rev", "range --rev"), OLD),
    "watch --rev": "--from takes a version, and tells what follows it; etcd's begins with it",
    **dict.fromkeys([f"get --{name}" for name in RANGES_HAVE.split()], RANGES),
    "get --print-value-only": "a value alone is what is printed; --raw leaves out the line's end, too",
    **dict.fromkeys([f"{command} --prev-kv" for command in ("put", "del", "delete", "watch")], PREVIOUS),
    "del --from-key": "here it is --start KEY",
    **dict.fromkeys(("txn -i", "txn --interactive"), "one argument: JSON, a file of it, or - for standard input"),
}

app = make_app("As etcdctl calls it.")

for _command, _sentence in INSTEAD.items():
    _group, _, _name = _command.rpartition(" ")
    instead({"role": role_app, "": app}[_group], _name, _sentence)
