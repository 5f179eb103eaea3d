"""Which handlers and branches of a protocol, and of the parts that it uses, random runs reach.

Measured with `coverage`, branches too, inside functions only (modules are executed before). What is never reached is
either dead, or beyond what the simulator draws, or an error of a peer that no correct peer makes.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import linecache
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import coverage
import msgspec

from multicast.protocol import MulticastProtocol

_PACKAGES = ("multicast.protocols.", "multicast.parts.")


class Missed(msgspec.Struct, kw_only=True):
    """A function that was not reached completely. lines: never executed. branches: "from line -> to line (what stands
    there)", and "-> exit" for the end of the function; empty with entered False: nobody called it."""

    file: str
    function: str
    entered: bool
    lines: list[int]
    branches: list[str]


class Reached(msgspec.Struct, kw_only=True):
    """Of one file: statements and branches inside functions, how many of them were executed, and what was missed."""

    file: str
    statements: int
    executed: int
    branches: int
    taken: int
    missed: list[Missed]


def files_of(protocol: type[MulticastProtocol]) -> list[str]:
    """Paths of the module of a protocol, or of the one that a planted bug inherits from, and of the parts it uses."""
    names = [kind.__module__ for kind in protocol.__mro__ if kind.__module__.startswith(_PACKAGES)]
    found: dict[str, str] = {}
    while names:
        name = names.pop(0)
        spec = importlib.util.find_spec(name)
        if name in found or spec is None or spec.origin is None:
            continue
        found[name] = spec.origin
        for node in ast.walk(ast.parse(Path(spec.origin).read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                if node.module.startswith(_PACKAGES):
                    names.append(node.module)
                elif f"{node.module}." in _PACKAGES:
                    names += [f"{node.module}.{alias.name}" for alias in node.names]
    return list(found.values())


@contextmanager
def measured(protocol: type[MulticastProtocol], directory: Path | None) -> Iterator[None]:
    """What happens inside is measured and left in a file of its own in `directory`; None: nothing is measured."""
    if directory is None:
        yield
        return
    cover = coverage.Coverage(
        data_file=str(directory / "reached"), data_suffix=True, branch=True, include=files_of(protocol),
        config_file=False,
    )  # fmt: skip
    cover.start()
    try:
        yield
    finally:
        cover.stop()
        cover.save()


def reached(protocol: type[MulticastProtocol], directory: Path) -> list[Reached]:
    """What `measured` left in this directory, together; the protocol's own file first."""
    files = files_of(protocol)
    cover = coverage.Coverage(data_file=str(directory / "all"), branch=True, include=files, config_file=False)
    cover.combine([str(path) for path in directory.glob("reached.*")], keep=True)
    with tempfile.TemporaryDirectory() as other:
        report = Path(other) / "report.json"
        cover.json_report(morfs=files, outfile=str(report), ignore_errors=True)
        content = json.loads(report.read_text())["files"]
    by_path = {str(Path(path).resolve()): found for path, found in content.items()}
    return [_reached(path, by_path[path]) for path in files if path in by_path]


def _reached(path: str, content: dict[str, Any]) -> Reached:
    functions = {name: found for name, found in content["functions"].items() if name}
    totals = [found["summary"] for found in functions.values()]
    missed = [
        _missed(path, name, found)
        for name, found in functions.items()
        if found["missing_lines"] or found["missing_branches"]
    ]
    return Reached(
        file=Path(path).name,
        statements=sum(one["num_statements"] for one in totals),
        executed=sum(one["covered_lines"] for one in totals),
        branches=sum(one["num_branches"] for one in totals),
        taken=sum(one["covered_branches"] for one in totals),
        missed=missed,
    )


def _missed(path: str, name: str, found: dict[str, Any]) -> Missed:
    entered = bool(found["executed_lines"])
    branches = [_branch(path, *arc) for arc in found["missing_branches"]] if entered else []
    return Missed(
        file=Path(path).name, function=name, entered=entered, lines=found["missing_lines"], branches=branches
    )


def _branch(path: str, start: int, end: int) -> str:
    if end < 0:
        return f"{start} -> exit ({linecache.getline(path, start).strip()})"
    return f"{start} -> {end} ({linecache.getline(path, end).strip()})"
