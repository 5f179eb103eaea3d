"""What the page offers: protocols with their options, scenarios, limits. All of it from the registry and from files."""

from __future__ import annotations

import inspect
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from multicast import registry
from multicast.protocol import MulticastProtocol, Options
from multicast.visual.scenario import described, scenarios
from multicast.visual.setup import ACTIONS_MAX, DELAY_US_MAX, PROCESSES_MAX, default_setup, plain

HIDDEN = frozenset(("clock",))
"""Options that the setup has a place of its own for."""


def catalogue() -> dict[str, Any]:
    """As JSON."""
    protocols = [registry.load(name) for name in registry.names()]
    return {
        "protocols": [_protocol(one) for one in protocols],
        "scenarios": [described(name) for name in scenarios()],
        "setup": plain(default_setup(protocols[0])),
        "limits": {"processes_max": PROCESSES_MAX, "actions_max": ACTIONS_MAX, "delay_us_max": DELAY_US_MAX},
    }


def _protocol(protocol: type[MulticastProtocol]) -> dict[str, Any]:
    specification = protocol.specification
    return {
        "name": specification.name, "title": specification.summary, "paper": specification.paper,
        "doc": inspect.getdoc(inspect.getmodule(protocol)) or "", "fault_tolerant": specification.fault_tolerant,
        "survives_lost_disk": specification.survives_lost_disk, "genuine": specification.genuine,
        "options": [option for option in options(specification.options) if option["name"] not in HIDDEN],
        "scenarios": [described(name) for name in scenarios()],
        "setup": plain(default_setup(protocol)),
    }  # fmt: skip


def options(kind: type[Options]) -> list[dict[str, Any]]:
    """The protocol's own first."""
    hints = get_type_hints(kind, include_extras=True)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    own = [name for name in fields if name not in Options.__struct_fields__]
    return [
        {
            "name": name, "default": fields[name].default, "doc": _doc(kind, name), "own": name in own,
            **_type(hints[name], name, kind),
        }
        for name in (*own, *(name for name in fields if name not in own))
    ]  # fmt: skip


def _type(hint: Any, name: str, kind: type[Options]) -> dict[str, Any]:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is Literal:
        return {"type": "choice", "choices": list(get_args(hint))}
    drawn = kind.drawn.get(name, ())
    if hint is str and drawn:
        return {"type": "choice", "choices": list(dict.fromkeys(drawn))}
    if hint is int:
        return {"type": "int", "min": 0}
    return {"type": {bool: "bool", float: "float", str: "text"}.get(hint, "text")}


def _doc(kind: type[Options], name: str) -> str:
    """What the docstrings of the options say behind "name:", up to the next name."""
    names = "|".join((*kind.__struct_fields__, "drawn"))
    for base in kind.__mro__:
        doc = " ".join((base.__dict__.get("__doc__") or "").split())
        match = re.search(rf"\b{name}(?:, \w+)*: (.*?)(?=\s(?:{names})(?:, \w+)*: |$)", doc)
        if match:
            return match[1].strip()
    return ""
