"""What etcdctl has and we have not: one sentence each. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

from client_sdk.rights_cli import role_app
from kvstore.console import instead, make_app

TOKENS = "there are no users and no passwords, but tokens: `kvstore token create NAME --role ROLE`"
ROLES = "a role is told as a whole: `kvstore role put NAME --read PREFIX --write PREFIX`; `kvstore role list` shows all"

INSTEAD = {
    "user": TOKENS,
    "compaction": "what was overwritten is dropped by its age: limits.history_ms and limits.history_bytes_max",
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

app = make_app("As etcdctl calls it.")

for _command, _sentence in INSTEAD.items():
    _group, _, _name = _command.rpartition(" ")
    instead({"role": role_app, "": app}[_group], _name, _sentence)
