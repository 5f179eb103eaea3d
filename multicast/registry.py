"""Finds protocols: every module in `multicast.protocols` that holds one is enrolled by being there."""

from __future__ import annotations

import difflib
import importlib
import pkgutil

from multicast import protocols
from multicast.protocol import MulticastProtocol


class UnknownProtocol(ValueError):
    """No module of that name; the text names the nearest one and all that there are."""


def names() -> list[str]:
    """Names of all protocols, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(protocols.__path__))


def load(name: str) -> type[MulticastProtocol]:
    """The protocol in `multicast/protocols/<name>.py`. UnknownProtocol if there is none."""
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UnknownProtocol(f"unknown protocol {name!r}{hint} (known: {', '.join(known)})")
    module = importlib.import_module(f"multicast.protocols.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, MulticastProtocol) and value.__module__ == module.__name__:
            if value.specification.name != name:
                raise AssertionError(f"{module.__name__} specifies {value.specification.name!r}")
            return value
    raise AssertionError(f"{module.__name__} defines no protocol")
