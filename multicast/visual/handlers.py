"""The code that a step of a trace stands for: which handler, where it is, and what of which paper it says it is.

All of it comes from the protocol itself: its table of handlers, docstrings and comments.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from multicast.protocol import MulticastProtocol
from multicast.simulation.trace import EVENTS

ROOT = Path(__file__).resolve().parents[2]
CALLS_DEPTH = 2
"""How far the methods that a handler calls are looked through for what they say of the paper."""

_PLACES = r"(?:Figs?\.|Figures?|Sections?|Algorithms?|Theorems?|Lemmas?|[Ll]ines?|[Ss]teps?|Rules?|Phases?)"
_MORE = rf"(?:(?:-|–| to |, | and )(?:{_PLACES} )?\d+)*"
_REFERENCE = re.compile(rf"(?:[A-Z][\w-]+ paper, )?{_PLACES} [\dIVX]+[\w.]*{_MORE}")
_COMMENT = re.compile(r"#\s*(.+)$")


def handlers(protocol: MulticastProtocol) -> dict[str, dict[str, Any]]:
    """"<event>" or "arrival:<Type>" -> name, file, line, source, doc, paper and steps."""
    found = {event: getattr(type(protocol), method) for method, event in EVENTS.items() if method != "on_message"}
    table: dict[str, Callable[..., Any]] = {
        **found, **{f"arrival:{kind.__name__}": handler.call for kind, handler in protocol.handlers.items()}
    }  # fmt: skip
    paper = protocol.specification.paper
    return {key: described for key, call in table.items() if (described := _describe(call, protocol, paper))}


def _describe(call: Callable[..., Any], protocol: MulticastProtocol, paper: str) -> dict[str, Any] | None:
    function = getattr(call, "__func__", call)
    owner = getattr(call, "__self__", protocol)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return None
    steps = list(dict.fromkeys(_steps(function, type(owner), CALLS_DEPTH, set())))
    said = [match[0] for step in steps for match in [_REFERENCE.search(step)] if match]
    where = f"{paper}: {'; '.join(dict.fromkeys(said))}" if said else paper
    return {
        "name": getattr(function, "__qualname__", ""), "file": _file(function), "line": first,
        "source": textwrap.dedent("".join(lines)), "doc": inspect.getdoc(function) or "", "paper": where,
        "steps": steps,
    }  # fmt: skip


def _file(function: Any) -> str:
    name = inspect.getsourcefile(function) or function.__code__.co_filename
    path = Path(name)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else name


def _steps(function: Any, kind: type, depth: int, known: set[str]) -> Iterator[str]:
    """What a method, and those that it calls, say about lines of a paper: docstrings and comments."""
    name = getattr(function, "__name__", "")
    if name in known:
        return
    known.add(name)
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return
    doc = " ".join((inspect.getdoc(function) or "").split())
    if _REFERENCE.search(doc):
        yield f"{name.lstrip('_')}: {doc}"
    for line in source.splitlines():
        comment = _COMMENT.search(line)
        if comment is not None and _REFERENCE.search(comment[1]):
            code = line[: comment.start()].strip()
            yield f"{comment[1]}: {code}" if code else comment[1]
    if depth:
        for called in _called(source):
            method = inspect.getattr_static(kind, called, None)
            if inspect.isfunction(method):
                yield from _steps(method, kind, depth - 1, known)


def _called(source: str) -> list[str]:
    """The methods of its own class that a method calls, in order."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    return [
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ]
