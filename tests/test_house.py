"""The project keeps the rules of the house, and each rule notices a planted violation."""

from __future__ import annotations

import ast
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest, house
from tests.house import ROOT, Module, Modules

RULES: tuple[Callable[[Modules], list[str]], ...] = (
    house.forbidden_arrows,
    house.circles,
    house.protocols_by_name,
    house.impure,
    house.too_long,
    house.undocumented,
    house.forbidden,
    house.asserts_nothing,
    house.unlisted,
    house.stale_references,
)


@pytest.fixture(scope="module")
def project() -> Modules:
    """It stays, so who looks for garbage after a test that has started a process need not look there."""
    gc.disable()  # of what is parsed nothing goes
    modules = house.project()
    gc.enable()
    gc.freeze()
    return modules


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_project_keeps(rule: Callable[[Modules], list[str]], project: Modules) -> None:
    violations = rule(project)
    assert not violations, "\n" + "\n".join(violations)


def test_every_package_is_looked_at(project: Modules) -> None:
    assert {name.split(".")[0] for name in project} == set(house.PACKAGES)
    assert {p.parent.name for p in ROOT.glob("*/__init__.py")} == set(house.PACKAGES)


# -- planted violations ------------------------------------------------------------------------------------------------

MAP = '"""Both:\n\n    audit     it\n    replica   that\n"""'

PLANTED: tuple[tuple[Callable[[Modules], list[str]], str, str, str], ...] = (
    # rule, file, what it must notice, and its innocent neighbour
    (house.forbidden_arrows, "multicast/types.py", "import multicast.protocol", "import msgspec"),
    (
        house.forbidden_arrows,
        "multicast/protocols/one.py",
        "from multicast.protocols import two",
        "from multicast.parts import clock",
    ),
    (house.forbidden_arrows, "multicast/protocols/one.py", "from . import two", "from ..parts import clock"),
    (house.forbidden_arrows, "multicast/parts/clock.py", "import multicast.protocols.two", "from . import two"),
    (
        house.forbidden_arrows,
        "multicast/runtime/host.py",
        "from multicast.protocols.two import Two",
        "from multicast.engine import Engine",
    ),
    (
        house.forbidden_arrows,
        "multicast/simulation/world.py",
        "def f():\n    from multicast.protocols import two",
        "from multicast import registry",
    ),
    (
        house.forbidden_arrows,
        "multicast/visual/live.py",
        "from multicast.protocols import two",
        "from multicast import registry",
    ),
    (house.forbidden_arrows, "multicast/visual/live.py", "import kvstore.api.model", "import multicast.wire"),
    (house.forbidden_arrows, "multicast/simulation/world.py", "import multicast.visual.live", "import multicast.wire"),
    (house.forbidden_arrows, "multicast/journal.py", "import kvstore.api.model", "from multicast import records"),
    (house.forbidden_arrows, "kvstore/core/replica.py", "import kvstore.storage", "import kvstore.api.model"),
    (house.forbidden_arrows, "kvstore/http/app.py", "import client_sdk", "import kvstore.api.model"),
    (house.forbidden_arrows, "kvstore/host.py", "import workloads", "import multicast.runtime"),
    (house.forbidden_arrows, "client_sdk/client.py", "from kvstore import config", "from kvstore.api import model"),
    (house.forbidden_arrows, "client_sdk/client.py", "import kvstore.core.audit", "import kvstore.api.shard_map"),
    (house.forbidden_arrows, "workloads/bank.py", "from kvstore.core import replica", "from kvstore.core import audit"),
    (house.forbidden_arrows, "spark_etl/stages.py", "from multicast import journal", "from multicast import records"),
    (house.forbidden_arrows, "spark_etl/stages.py", "import kvstore.api.model", "import kvstore.core.audit"),
    (house.forbidden_arrows, "kvstore/cli.py", "import client_sdk", "import kvstore.config"),
    (house.forbidden_arrows, "workloads/cli.py", "import tests.house", "import client_sdk"),
    (house.circles, "kvstore/cluster.py", "from kvstore.config import load", "from kvstore.core import audit"),
    (house.circles, "kvstore/cluster.py", "def f():\n    from kvstore import config", "import kvstore.core.audit"),
    (
        house.circles,
        "kvstore/cluster.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvstore.config import A",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kvstore.core.audit import A",
    ),
    (
        house.protocols_by_name,
        "multicast/runtime/host.py",
        "NAME = 'multicast.protocols.two'",
        "NAME = 'multicast.protocols'",
    ),
    (house.protocols_by_name, "kvstore/host.py", "import multicast.protocols.two", "import multicast.registry"),
    (house.impure, "kvstore/core/replica.py", "import asyncio", "import zlib"),
    (house.impure, "kvstore/core/replica.py", "from time import monotonic", "from bisect import bisect"),
    (house.impure, "multicast/parts/clock.py", "import socket", "import heapq"),
    (house.impure, "multicast/protocols/one.py", "def f():\n    import os.path", "import struct"),
    (house.impure, "multicast/engine.py", "def f():\n    return open('x')", "def f(box):\n    return box.open('x')"),
    (house.impure, "multicast/session.py", "import random\nx = random.random()", "import random\nx: random.Random"),
    (house.impure, "multicast/wire.py", "from random import randint", "from random import Random"),
    (house.impure, "multicast/parts/clock.py", "import random\nx = random.Random(1)", "def f(rng):\n    rng.random()"),
    (house.impure, "multicast/types.py", "x = hash('a')", "x = len('a')"),
    (house.impure, "multicast/types.py", "for x in set('ab'):\n    pass", "for x in sorted(set('ab')):\n    pass"),
    (house.too_long, "kvstore/host.py", "x = 1\n" * 501, "x = 1\n" * 500),
    (house.too_long, "multicast/protocols/one.py", "x = 1\n" * 801, "x = 1\n" * 800),
    (house.too_long, "tests/test_one.py", "x = 1\n" * 701, "x = 1\n" * 700),
    (house.undocumented, "kvstore/host.py", "x = 1", "'''Why.'''\nx = 1"),
    (house.undocumented, "kvstore/host.py", "'''Why.'''\ndef f(): ...", "'''Why.'''\ndef _f(): ..."),
    (house.undocumented, "kvstore/host.py", "'''Why.'''\nclass A:\n    x = 1", "'''Why.'''\nclass A:\n    x: int"),
    (house.forbidden, "kvstore/host.py", "# TO" + "DO: later", "# to do so is right"),
    (house.forbidden, "kvstore/host.py", "import pickle", "import json"),
    (
        house.forbidden,
        "kvstore/host.py",
        "try:\n    f()\nexcept Exception:\n    pass",
        "try:\n    f()\nexcept OSError:\n    pass",
    ),
    (house.forbidden, "tests/test_x.py", "import time\ntime.sleep(1)", "import time\ntime.monotonic()"),
    (house.asserts_nothing, "tests/test_x.py", "def test_x():\n    f()", "def test_x():\n    assert f()"),
    (
        house.asserts_nothing,
        "tests/test_x.py",
        "def f(): ...\ndef test_x():\n    f()",
        "def g():\n    assert x\ndef f():\n    g()\ndef test_x():\n    f()",
    ),
    (house.asserts_nothing, "tests/test_x.py", "def test_x():\n    f()", "def test_x():\n    with raises(E): f()"),
    (house.unlisted, "kvstore/core/__init__.py", MAP.replace("    replica   that\n", ""), MAP),
    (house.unlisted, "kvstore/core/__init__.py", MAP.replace("it\n", "it\n    audits   it\n"), MAP),
    (house.stale_references, "multicast/types.py", "'See kvstore.config.three.'", "'See kvstore.config.'"),
    (house.stale_references, "multicast/types.py", "'See kvstore/three.py.'", "'See kvstore/config.py.'"),
    (house.stale_references, "multicast/types.py", "'`kvstore/config.py:three`'", "'`kvstore/config.py:load`'"),
    (house.stale_references, "multicast/types.py", "class A:\n    '`A.b`'", "class A:\n    '`A.b`'\n    b: int"),
)


# -- words -------------------------------------------------------------------------------------------------------------


def test_pages_refer_to_what_exists(project: Modules) -> None:
    classes = house.classes_by_name(project)
    keys = {"spark_etl.schema_version"}  # in the metadata of a file
    stale = []
    for page in sorted(page for folder in house.PACKAGES for page in (ROOT / folder).rglob("*.md")):
        text, package = page.read_text(encoding="utf-8"), ".".join(page.relative_to(ROOT).parts[:-1])
        names = house.stale(text, package, project, classes)
        names += [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not (page.parent / link).exists()]
        stale += [f"{page.relative_to(ROOT)}: there is no {name}" for name in names if name not in keys]
    assert not stale, "\n" + "\n".join(stale)


def test_every_word_of_the_glossary_says_where_it_is_defined() -> None:
    text = (ROOT / "multicast" / "GLOSSARY.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) > 50
    assert [row for row in rows if row[0] != "| word" and (len(row) != 3 or not row[2].startswith("`"))] == []


def test_the_map_of_parts_says_which_protocols_lead_to_them(project: Modules) -> None:
    text = ast.get_docstring(project["multicast.parts"].tree) or ""
    legend = dict(re.findall(r"(\w[\w ]+): ([\w, ]+)\.", text.rpartition("\n\n")[2].replace("\n", " ")))

    def protocols(names: str) -> set[str]:
        return {p for name in names.split(", ") for p in (protocols(legend[name]) if name in legend else {name})}

    arrows = {m.name: {target for _, target in house.imports(m, project)} for m in project.values()}
    owners: dict[str, set[str]] = {}
    for protocol in (name for name in arrows if house.within(name, "multicast.protocols")):
        ways = [protocol]
        for module in ways:
            ways += sorted(t for t in arrows[module] - set(ways) if house.within(t, "multicast.parts"))
        for part in ways[1:]:
            owners.setdefault(part.rpartition(".")[2], set()).add(protocol.rpartition(".")[2])
    rows = re.findall(r"^    (\w+)  .*\(([^()]+)\)$", text, re.M)
    wrong = [f"{part} ({', '.join(sorted(owners[part]))})" for part, names in rows if protocols(names) != owners[part]]
    assert not wrong, "it should say: " + "; ".join(wrong)
    assert {part for part, _ in rows} == set(owners)


def sources(path: str, text: str) -> Modules:
    """The module to judge, among others that it may name; kvstore.config imports kvstore.cluster and kvstore.core."""
    others = (
        *("multicast/protocols/two.py", "multicast/parts/clock.py", "multicast/parts/two.py", "multicast/records.py"),
        *("multicast/journal.py", "multicast/registry.py", "multicast/wire.py", "multicast/visual/live.py"),
        *("kvstore/api/model.py",),
        *("kvstore/core/audit.py", "kvstore/core/replica.py"),
    )
    modules = [Module.parse(p, "'''Nothing.'''") for p in others if p != path]
    modules.append(Module.parse("kvstore/config.py", "'''Some.'''\nimport kvstore.cluster\nimport kvstore.core.audit"))
    return {m.name: m for m in (*modules, Module.parse(path, text))}


def test_folders_may_not_stand_in_a_circle_although_no_files_do() -> None:
    files = {
        "multicast/one/a.py": "import multicast.two.a",
        "multicast/two/b.py": "import multicast.one.b",
        "multicast/one/b.py": "",
        "multicast/two/a.py": "",
    }
    modules = {module.name: module for path, text in files.items() for module in [Module.parse(path, text)]}
    way = "multicast/one -> multicast/two -> multicast/one"
    assert house.circles(modules) == [f"multicast/one: a circle of imports: {way}"]
    del modules["multicast.two.b"]
    assert house.circles(modules) == []


@pytest.mark.parametrize(
    ("rule", "path", "violation", "neighbour"), PLANTED, ids=[f"{r.__name__}-{i}" for i, (r, *_) in enumerate(PLANTED)]
)
def test_a_planted_violation_is_noticed(
    rule: Callable[[Modules], list[str]], path: str, violation: str, neighbour: str
) -> None:
    found = rule(sources(path, violation))
    assert [line.split(":")[0] for line in found] == [path]
    assert rule(sources(path, neighbour)) == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, *_ in PLANTED} == set(RULES)


MISTAKES = ROOT / "tests" / "client_sdk" / "mistakes.py"

# -- tools -------------------------------------------------------------------------------------------------------------


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("-m", "ruff", "check", "--no-cache", "--output-format=concise", *arguments)


def test_ruff_finds_nothing() -> None:
    done = ruff(".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_notices_a_planted_violation(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("import os\n")
    done = ruff("--config", str(ROOT / "pyproject.toml"), str(tmp_path))
    assert done.returncode == 1
    assert "F401" in done.stdout


@pytest.fixture(scope="module")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Path:
    """That of the checkout, as of `make types`: of what has not changed, and imports nothing that has, mypy knows what
    it found. In the full run everything is judged anew."""
    return tmp_path_factory.mktemp("mypy") if pytestconfig.getoption("--full") else ROOT / ".mypy_cache"


@pytest.mark.timeout(900)
def test_mypy_finds_nothing(mypy_cache: Path) -> None:
    done = run("-m", "mypy", "--cache-dir", str(mypy_cache))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_mypy_notices_a_planted_violation(tmp_path: Path, mypy_cache: Path) -> None:
    (tmp_path / "planted.py").write_text("def f(x): return x\n")
    config, cache = str(ROOT / "pyproject.toml"), str(mypy_cache)
    done = run("-m", "mypy", "--config-file", config, "--cache-dir", cache, str(tmp_path / "planted.py"))
    assert done.returncode == 1
    assert "no-untyped-def" in done.stdout


@pytest.mark.timeout(900)
def test_mypy_finds_every_planted_mistake_of_a_client_and_nothing_else(mypy_cache: Path) -> None:
    done = run("-m", "mypy", "--cache-dir", str(mypy_cache), str(MISTAKES))
    found = {int(line): code for line, code in re.findall(r"mistakes\.py:(\d+): error: .*\[([a-z-]+)\]", done.stdout)}
    lines = enumerate(MISTAKES.read_text().splitlines(), 1)
    planted = {number: code[1] for number, line in lines if (code := re.search(r"  # ([a-z-]+)$", line))}
    assert found == planted and len(planted) > 10, done.stdout + done.stderr


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_left_behind_is_noticed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()", "kvstore"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, conftest.MARK: "planted"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.pid in conftest.left_behind("planted")
        process.communicate(b"\n")
    assert conftest.left_behind("planted") == {}


LEAVES = """
import socket, subprocess, sys
import pytest
from tests.conftest import opened_count, what_the_tests_of_a_file_share_is_closed, who_opens_something_closes_it

def kept(what):
    cycle = [what]
    cycle.append(cycle)

@pytest.fixture(scope="module")
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()
    kept(socket.create_server(("127.0.0.1", 0)))

def test_leaves_a_process():
    kept(subprocess.Popen([sys.executable, "-c", "pass"]))

def test_of_something_else():
    pass

def test_leaves_a_connection(listening):
    kept(socket.create_connection(listening))

def test_whose_fixture_leaves_a_socket(listening):
    pass
"""


def test_who_leaves_something_open_is_named_and_not_the_next_test(tmp_path: Path) -> None:
    path = tmp_path / "test_planted.py"
    path.write_text(LEAVES)
    ran = run("-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), str(path))
    ends = [line.split(" - ")[0] for line in ran.stdout.splitlines() if line.startswith(("PASSED", "ERROR", "FAILED"))]
    tests = [f"{kind} {line.rpartition('::')[2]}" for line in ends for kind in [line.split()[0]]]
    passed = ("leaves_a_connection", "leaves_a_process", "of_something_else", "whose_fixture_leaves_a_socket")
    left = ("leaves_a_connection", "leaves_a_process", "whose_fixture_leaves_a_socket")
    assert sorted(tests) == [*(f"ERROR test_{name}" for name in left), *(f"PASSED test_{name}" for name in passed)]
    assert "is still running" in ran.stdout and ran.stdout.count("unclosed <socket") == 2, ran.stdout


def test_a_test_that_would_start_spark_in_another_worker_is_noticed() -> None:
    files = ("spark_etl/test_audit.py", "test_house.py")
    items: list[Any] = [SimpleNamespace(nodeid=f"tests/{file}::test", fixturenames=["spark"]) for file in files]
    assert conftest.apart(items) == [item.nodeid for item in items]
    items[0].nodeid = "tests/spark_etl/test_audit.py::test_without_a_history_real_time_is_not_determined"
    assert conftest.apart(items) == ["tests/test_house.py::test"]


@pytest.mark.parametrize(
    ("test", "has"),
    [
        ("test_damage.py::test_rows_of_a_foreign_journal_are_not_judged", True),
        ("test_damage.py::test_a_flipped_byte_is_named_in_its_file_and_only_there[toto-5]", False),
        ("test_forgeries.py::test_every_damage_is_called_by_its_name_and_nobody_else_is_accused[x]", True),
        ("test_stages.py::test_what_failed_in_spark_is_told_in_a_line[Job aborted-Job aborted]", True),
        ("test_windows.py::test_rows_are_given_once_and_in_their_order", False),
    ],
    ids=["itself", "its file", "by two fixtures", "by one that all have", "nobody"],
)
def test_whoever_has_spark_is_with_the_others_that_have_it(test: str, has: bool) -> None:
    path = f"tests/spark_etl/{test}"
    assert conftest.unit(path) == (conftest.SPARK if has else path.partition("::")[0])


# -- light installation ------------------------------------------------------------------------------------------------

HEAVY = ("lmdb", "pyspark", "pyarrow", "pandas", "scipy", "typer", "rich", "structlog", "prometheus_client", "locust")
WITHOUT_EXTRAS = f"""
import sys


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Absent())
"""


def test_the_sdk_imports_without_the_extras() -> None:
    program = "from client_sdk import AsyncClient, Client\nprint(AsyncClient.__name__, Client.__name__)"
    done = run("-c", WITHOUT_EXTRAS + program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["AsyncClient", "Client"]


@pytest.mark.parametrize(
    ("package", "arguments"),
    [
        ("kvstore", ()),
        ("kvstore", ("serve", "--dir", "d", "--replica", "0")),
        ("workloads", ("--help",)),
        ("workloads", ("get", "k", "--cluster", "http://127.0.0.1:1")),
    ],
)
def test_the_command_line_without_its_extra_says_what_to_install(package: str, arguments: tuple[str, ...]) -> None:
    program = f"sys.argv = ['kvstore', *{arguments!r}]\nfrom {package}.__main__ import main\nmain()"
    done = run("-c", WITHOUT_EXTRAS + program)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "in a checkout of this project: pip install '.[server]'" in done.stderr


@pytest.mark.parametrize("package", ["kvstore", "workloads"])
def test_a_command_that_is_interrupted_while_it_is_imported_ends_without_a_trace(package: str) -> None:
    program = "import sys, types\nclass Late(types.ModuleType):\n def __getattr__(self, _): raise KeyboardInterrupt\n"
    done = run("-c", f"{program}sys.modules['typer'] = Late('typer')\nfrom {package}.__main__ import main\nmain()")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_blocking_the_extras_blocks_them() -> None:
    done = run("-c", WITHOUT_EXTRAS + "import lmdb")
    assert done.returncode == 1
    assert "No module named 'lmdb'" in done.stderr


def test_a_replica_starts_without_rich_and_whoever_wants_it_has_it() -> None:
    """It would take a quarter of a start."""
    program = "import sys\nimport kvstore.serve\nprint('rich' in sys.modules)\nimport rich.console"
    done = run("-c", program)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
