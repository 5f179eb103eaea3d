"""The rules of the house as functions: sources in, violations out. `test_house.py` applies them to the project.

A rule takes the parsed modules of the project and returns one line per violation, `path:line: what is wrong`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("multicast", "kvstore", "client_sdk", "workloads", "spark_etl", "tests")
FILE_LINES_MAX = 500
PROTOCOL_LINES_MAX = 800
"""A protocol is one file, and the parts that it owns."""
TESTS_LINES_MAX = 700
"""Tests of one subject may be many."""
OUTGROWN: dict[str, int] = {}
"""Whose second subject has no file of its own yet."""

LIBRARY_PURE = (
    "types", "membership", "protocol", "application", "wire", "session", "discipline", "catch_up", "batch", "engine",
    "lanes", "recorder", "records", "snapshot",
)  # fmt: skip
LIBRARY_DISK = tuple(
    f"multicast.{m}" for m in ("checkpoint", "disk", "install", "journal", "reader", "retention", "segments")
)
ARROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # Who (the longest prefix counts) may import whom. A package may always import itself, except the protocols.
    ("multicast.types", ()),
    ("multicast.membership", ("multicast.types",)),
    (
        "multicast.protocol",
        ("multicast.discipline", "multicast.membership", "multicast.records", "multicast.types"),
    ),
    ("multicast.application", ("multicast.records", "multicast.types")),
    ("multicast.records", ("multicast.types",)),
    ("multicast.session", ("multicast.protocol", "multicast.types")),
    ("multicast.discipline", ("multicast.types",)),
    ("multicast.wire", ("multicast.protocol", "multicast.records", "multicast.types")),
    ("multicast.lanes", ("multicast.types",)),
    ("multicast.recorder", ("multicast.protocol", "multicast.records", "multicast.types")),
    ("multicast.catch_up", ("multicast.types",)),
    ("multicast.batch", ("multicast.protocol", "multicast.types", "multicast.wire")),
    ("multicast.snapshot", ("multicast.batch", "multicast.protocol", "multicast.types", "multicast.wire")),
    ("multicast.engine", tuple(f"multicast.{m}" for m in LIBRARY_PURE)),
    ("multicast.parts", ("multicast.types", "multicast.membership", "multicast.protocol")),
    ("multicast.protocols", ("multicast.types", "multicast.membership", "multicast.protocol", "multicast.parts")),
    ("multicast.registry", ("multicast.types", "multicast.protocol", "multicast.protocols")),
    ("multicast.disk", ()),
    ("multicast.segments", ("multicast.records",)),
    ("multicast.reader", ("multicast.records",)),
    (
        "multicast.journal",
        ("multicast.disk", "multicast.reader", "multicast.records", "multicast.segments", "multicast.types"),
    ),
    ("multicast.retention", ("multicast.disk", "multicast.journal", "multicast.records")),
    (
        "multicast.checkpoint",
        tuple(f"multicast.{m}" for m in ("disk", "journal", "reader", "records", "segments")),
    ),
    (
        "multicast.install",
        tuple(f"multicast.{m}" for m in ("checkpoint", "journal", "protocol", "recorder", "records")),
    ),
    ("multicast.logs", ()),
    (
        "multicast.runtime",
        (*LIBRARY_DISK, "multicast.logs", "multicast.registry", *(f"multicast.{m}" for m in LIBRARY_PURE)),
    ),
    (
        "multicast.simulation",
        (*LIBRARY_DISK, "multicast.registry", "multicast.parts", *(f"multicast.{m}" for m in LIBRARY_PURE)),
    ),
    (
        "multicast.visual",
        ("multicast.simulation", "multicast.registry", *(f"multicast.{m}" for m in LIBRARY_PURE)),
    ),
    ("multicast", ("multicast",)),
    ("kvstore.api", ("kvstore.fields", "multicast.types")),
    ("kvstore.core", ("kvstore.api", *(f"multicast.{m}" for m in LIBRARY_PURE))),
    ("kvstore", ("kvstore", "multicast")),
    ("client_sdk.cli", ("client_sdk", "kvstore.api", "kvstore.console", "multicast.types")),
    ("client_sdk.rights_cli", ("client_sdk", "kvstore.api", "kvstore.console")),
    ("client_sdk.testing", ("client_sdk", "kvstore.http", "kvstore.limits", "kvstore.memory")),
    ("client_sdk.leases_cli", ("client_sdk", "kvstore.api", "kvstore.console")),
    ("client_sdk.locks_cli", ("client_sdk", "kvstore.api", "kvstore.console")),
    ("client_sdk.etcd_cli", ("client_sdk", "kvstore.console")),
    ("client_sdk", ("kvstore.api", "multicast.types")),
    ("workloads.cli", ("client_sdk", "kvstore", "multicast.registry", "workloads")),
    ("workloads.__main__", ("kvstore.extras", "workloads")),
    (
        "workloads.nemesis",
        (
            "client_sdk", "kvstore.api", "kvstore.config", "kvstore.core.audit", "kvstore.process",
            "multicast.runtime.failpoints", "multicast.types", "multicast.registry", "workloads",
        ),
    ),
    ("workloads", ("client_sdk", "kvstore.api", "kvstore.core.audit", "multicast.types", "multicast.registry")),
    (
        "spark_etl",
        (*(f"multicast.{m}" for m in ("records", "segments", "types")), "kvstore.core.audit", "kvstore.core.bundles"),
    ),
    ("tests", PACKAGES),
)

PURE = (
    "kvstore.api", "kvstore.core", "kvstore.fields", "multicast.parts", "multicast.protocols",
    *(f"multicast.{m}" for m in LIBRARY_PURE),
)  # fmt: skip
IMPURE_MODULES = frozenset(
    (
        "asyncio",
        "concurrent",
        "datetime",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "uuid",
    )
)
IMPURE_CALLS = frozenset(("open", "print", "input", "hash", "exec", "eval"))


@dataclass(frozen=True)
class Module:
    """One source file. `name` is dotted; `path` is relative to the root of the project."""

    name: str
    path: str
    text: str
    tree: ast.Module

    @classmethod
    def parse(cls, path: str, text: str) -> Module:
        """SyntaxError names the path."""
        parts = path.removesuffix(".py").split("/")
        if parts[-1] == "__init__":
            parts.pop()
        return cls(".".join(parts), path, text, ast.parse(text, path))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree."""
        return list(ast.walk(self.tree))

    def at(self, node: ast.AST, problem: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {problem}"


Modules = Mapping[str, Module]


def project() -> dict[str, Module]:
    """Every Python file of the project, by dotted name."""
    modules = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = Module.parse(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
            modules[module.name] = module
    return modules


def within(name: str, package: str) -> bool:
    """Whether the module is the package or inside it."""
    return name == package or name.startswith(package + ".")


def imports(module: Module, modules: Modules) -> Iterator[tuple[ast.AST, str]]:
    """What a module imports, at any depth of its code, as dotted names: modules where we know them."""
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node, full if full in modules else base


# -- arrows ------------------------------------------------------------------------------------------------------------


def forbidden_arrows(modules: Modules) -> list[str]:
    """Imports against the table `ARROWS`."""
    found = []
    for module in modules.values():
        owner, allowed = max(((o, a) for o, a in ARROWS if within(module.name, o)), key=lambda row: len(row[0]))
        for node, target in imports(module, modules):
            if target.split(".")[0] not in PACKAGES:
                continue
            itself = within(target, owner) and owner != "multicast.protocols"
            if not itself and not any(within(target, a) for a in allowed):
                found.append(module.at(node, f"{owner} must not import {target}"))
    return found


def circles(modules: Modules) -> list[str]:
    """Files and folders of one folder that import one another in a circle, if only for types, or late."""
    arrows: dict[str, dict[str, set[str]]] = {}  # folder -> file or folder in it -> what of the same folder it needs
    for module in modules.values():
        for _, target in imports(module, modules):
            if target in modules and target != module.name:
                here, there = module.path.split("/"), modules[target].path.split("/")
                depth = next(i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
                beside = arrows.setdefault("/".join(here[:depth]), {})
                beside.setdefault("/".join(here[: depth + 1]), set()).add("/".join(there[: depth + 1]))
    found = []
    for beside in arrows.values():
        for start in sorted(beside):
            way = _way_back(start, beside)
            if way and start == min(way):
                found.append(f"{start}: a circle of imports: {' -> '.join([*way, start])}")
    return found


def _way_back(start: str, arrows: Mapping[str, set[str]]) -> list[str]:
    """The shortest way along the arrows from `start` to itself, without its end; empty if there is none."""
    ways = [[start]]
    seen = set()
    for way in ways:
        for following in sorted(arrows.get(way[-1], ())):
            if following == start:
                return way
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def protocols_by_name(modules: Modules) -> list[str]:
    """Modules other than tests that name one protocol's module, in an import or in a string."""
    found = []
    prefix = "multicast.protocols."
    for module in modules.values():
        if within(module.name, "tests"):
            continue
        for node, target in imports(module, modules):
            if target.startswith(prefix):
                found.append(module.at(node, f"names {target}; use the registry"))
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value[:-1].startswith(prefix):
                found.append(module.at(node, f"names {node.value}; use the registry"))
    return found


# -- purity ------------------------------------------------------------------------------------------------------------


def impure(modules: Modules) -> list[str]:
    """Clocks, files, sockets, threads and unseeded randomness in the packages that must have none."""
    found = []
    for module in modules.values():
        if not any(within(module.name, p) for p in PURE):
            continue
        for node, target in imports(module, modules):
            if target.split(".")[0] in IMPURE_MODULES:
                found.append(module.at(node, f"a pure module imports {target}"))
        defines_hash = any(isinstance(n, ast.FunctionDef) and n.name == "__hash__" for n in module.nodes)
        allowed = {"hash"} if defines_hash else set()
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "random":
                found += [
                    module.at(node, f"random.{a.name}: randomness is given, seeded, to pure modules")
                    for a in node.names
                    if a.name != "Random"
                ]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
                if node.attr != "Random":
                    found.append(module.at(node, f"random.{node.attr}: randomness is given, seeded, to pure modules"))
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in IMPURE_CALLS - allowed or called in ("random.Random", "Random"):
                    found.append(module.at(node, f"a pure module calls {called}()"))
            elif isinstance(node, ast.For) and _is_set(node.iter):
                found.append(module.at(node, "iterates a set: its order differs from run to run"))
    return found


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp)


# -- style -------------------------------------------------------------------------------------------------------------


def too_long(modules: Modules) -> list[str]:
    """Files that have outgrown one subject."""
    found = []
    for module in modules.values():
        limit = OUTGROWN.get(module.path, FILE_LINES_MAX)
        if within(module.name, "multicast.protocols"):
            limit = PROTOCOL_LINES_MAX
        elif within(module.name, "tests"):
            limit = TESTS_LINES_MAX
        if (lines := len(module.text.splitlines())) > limit:
            found.append(f"{module.path}: {lines} lines, at most {limit}")
    return found


def undocumented(modules: Modules) -> list[str]:
    """Public modules, classes and functions without a docstring. A class of nothing but fields needs none."""
    found = []
    for module in modules.values():
        if within(module.name, "tests") or not module.text.strip():
            continue
        if ast.get_docstring(module.tree) is None:
            found.append(f"{module.path}:1: the module has no docstring")
        for node in module.tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name.startswith("_"):
                continue
            only_fields = isinstance(node, ast.ClassDef) and all(
                isinstance(n, ast.AnnAssign | ast.Pass) for n in node.body
            )
            if ast.get_docstring(node) is None and not only_fields:
                found.append(module.at(node, f"{node.name} has no docstring"))
    return found


def forbidden(modules: Modules) -> list[str]:
    """Postponed work, unsafe deserialisation, swallowed errors, tests that wait by sleeping."""
    marks = tuple(first + second for first, second in (("TO", "DO"), ("FIX", "ME"), ("XX", "X")))
    unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    found = []
    for module in modules.values():
        for number, line in enumerate(module.text.splitlines(), 1):
            found += [f"{module.path}:{number}: {mark}" for mark in marks if mark in line]
        for node, target in imports(module, modules):
            if target.split(".")[0] in unsafe:
                found.append(module.at(node, f"imports {target}"))
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler) and _catches_all(node) and _does_nothing(node.body):
                found.append(module.at(node, "swallows every error"))
            elif _sleeps(node) and within(module.name, "tests"):
                found.append(module.at(node, "a test sleeps; wait for a condition with a deadline"))
    return found


def _sleeps(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _name(node.func) == "sleep" and ast.unparse(node.func) == "time.sleep"


def _catches_all(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")


def _does_nothing(body: list[ast.stmt]) -> bool:
    return all(isinstance(n, ast.Pass) or (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)) for n in body)


def asserts_nothing(modules: Modules) -> list[str]:
    """Tests that cannot fail: neither they nor the helpers they call assert or expect anything."""
    functions = [
        (module, node, _expects(node))
        for module in modules.values()
        if within(module.name, "tests")
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    checking = {"assert", "raises", "warns", "fail", "run_state_machine_as_test"}
    known = 0
    while known != len(checking):  # helpers may call helpers
        known = len(checking)
        checking |= {node.name for _, node, expects in functions if expects & checking}
    return [
        module.at(node, f"{node.name} asserts nothing")
        for module, node, expects in functions
        if node.name.startswith("test_") and not expects & checking
    ]


def _expects(function: ast.AST) -> set[str]:
    """The names of what it calls; `assert`, where it does."""
    nodes = list(ast.walk(function))
    names = {name for node in nodes if isinstance(node, ast.Call) and (name := _name(node.func))}
    return names | {"assert"} if any(isinstance(node, ast.Assert) for node in nodes) else names


def _name(called: ast.expr) -> str:
    """The last part of what is called, if it has a name."""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


# -- words -------------------------------------------------------------------------------------------------------------

FOLDERS = {
    "parts": "multicast.parts", "protocols": "multicast.protocols", "runtime": "multicast.runtime",
    "simulation": "multicast.simulation", "core": "kvstore.core", "storage": "kvstore.storage",
    "checks": "spark_etl.checks", "blackbox": "spark_etl.blackbox", "certify": "spark_etl.certify",
}  # fmt: skip
"""Packages that are called by their last name."""
Classes = Mapping[str, list[ast.ClassDef]]
_DOTTED = re.compile(r"(?<![\w./-])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_QUOTED = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
_FILE = re.compile(r"(?<![\w./-])(?:[\w-]+/)+[\w-]+\.(?:py|md)\b")
_IN_FILE = re.compile(r"`([\w/-]+\.py):([A-Za-z_]\w*)(?:\.(\w+))?`")

ROOMS = (
    "multicast", "multicast.parts", "multicast.runtime", "multicast.simulation", "multicast.simulation.experiments",
    "multicast.simulation.latency", "kvstore.core", "workloads.bench",
    *(f"spark_etl.{room}" for room in ("audit", "bench", "checks", "frames", "ingest", "page", "search")),
)  # fmt: skip
"""Packages whose docstring has a line for everything that is in them: `    name   what it is`."""


def unlisted(modules: Modules) -> list[str]:
    """Modules and packages without a line in the map of their package, and lines without a module."""
    found = []
    for room in (modules[name] for name in ROOMS if name in modules):
        rows = set(re.findall(r"^    (\w+)  +\S", ast.get_docstring(room.tree, clean=False) or "", re.M))
        inside = {
            name.removeprefix(room.name + ".").split(".")[0] for name in modules if name.startswith(room.name + ".")
        }
        inside.discard("__main__")
        found += [f"{room.path}:1: {name} is in the map, or there, but not both" for name in sorted(rows ^ inside)]
    return found


def stale_references(modules: Modules) -> list[str]:
    """Docstrings and comments that name modules, files, classes or members which do not exist."""
    classes = classes_by_name(modules)
    found = []
    for module in modules.values():
        package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
        for line, text in _prose(module):
            names = stale(text, package, modules, classes)
            found += [f"{module.path}:{line}: there is no {name}" for name in names]
    return found


def stale(text: str, package: str, modules: Modules, classes: Classes) -> list[str]:
    """What a text in `package` refers to and is not there: `package.module.name`, `module.name` and `Class.member` in
    backticks, paths of files, and `file.py:Class.member` with its path."""
    names = [name for name in _DOTTED.findall(text) if name.split(".")[0] in (*PACKAGES, *FOLDERS)]
    names += [name for name in _QUOTED.findall(text) if name not in names]
    found = [name for name in names if _is_stale(name, package, modules, classes)]
    here = ("", *(f"{folder}/" for folder in ("multicast", "multicast/simulation", "kvstore", "spark_etl", "tests")))
    found += [path for path in _FILE.findall(text) if not any((ROOT / (h + path)).exists() for h in here)]
    for path, name, member in _IN_FILE.findall(text):
        files = [ROOT / (h + path) for h in here if (ROOT / (h + path)).exists()]
        if files and not any(_is_in_file(file, name, member, classes) for file in files):
            found.append(f"{path}:{name}" + (f".{member}" if member else ""))
    return found


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _is_in_file(path: Path, name: str, member: str, classes: Classes) -> bool:
    tree = _parsed(path)
    named = [node for node in _classes_in(tree) if node.name == name]
    return any(member in _members(node, classes) for node in named) if member else name in _names(tree)


def _is_stale(name: str, package: str, modules: Modules, classes: Classes) -> bool:
    first, *rest = name.split(".")
    if rest[-1] in ("py", "md", "json", "html", "jsonl"):
        return False
    if first[0].isupper():
        return first in classes and not any(rest[0] in _members(node, classes) for node in classes[first])
    known = [_leads_to(name, where, modules) for where in (package, FOLDERS.get(first, "").rpartition(".")[0])]
    return False in known and True not in known


def _leads_to(name: str, package: str, modules: Modules) -> bool | None:
    """Whether `package` has something of this name; None if it has not even the beginning."""
    path = [*package.split("."), *name.split(".")] if package else name.split(".")
    depth = next((n for n in range(len(path), 0, -1) if ".".join(path[:n]) in modules), 0)
    if depth <= len(path) - len(name.split(".")):
        return None
    if depth == len(path):
        return True
    tree = modules[".".join(path[:depth])].tree  # lower case may be an object of a class there, called like the module
    return path[depth] in _names(tree).union(*map(_names, _classes_in(tree)))


def classes_by_name(modules: Modules) -> Classes:
    """All classes of the project; several may have one name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for module in modules.values():
        for node in _classes_in(module.tree):
            found.setdefault(node.name, []).append(node)
    return found


def _classes_in(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef)]


def _members(node: ast.ClassDef, classes: Classes) -> set[str]:
    """Methods, fields and attributes of self, inherited ones too."""
    names = set(_own_members(node))
    for base in node.bases:
        called = ast.unparse(base).split("[")[0].rpartition(".")[2]
        for parent in classes.get(called, ()):
            names |= _members(parent, classes)
    return names


@cache
def _own_members(node: ast.ClassDef) -> frozenset[str]:
    return _names(node) | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


@cache
def _names(scope: ast.Module | ast.ClassDef) -> frozenset[str]:
    """What is defined or imported there."""
    names = set()
    for node in scope.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return frozenset(names)


def _prose(module: Module) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(module.text.splitlines(), 1):
        if (start := line.find("# ")) >= 0:
            yield number, line[start:]
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
