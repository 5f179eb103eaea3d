"""What `make` says on a machine that lacks something, before it starts anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the Makefile and what it depends on, and nothing else."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(checkout: Path, target: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "MAKEFLAGS", "MAKELEVEL")}
    return subprocess.run(
        ["make", target],
        cwd=checkout,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def fake_java(checkout: Path, version: str) -> str:
    """A JAVA_HOME whose java says that it is of this version."""
    java = checkout / "jre" / "bin" / "java"
    java.parent.mkdir(parents=True)
    said = ("Picked up JAVA_TOOL_OPTIONS: -Xmx1g", f'openjdk version "{version}"')
    java.write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in said))
    java.chmod(0o755)
    return str(checkout / "jre")


@pytest.mark.parametrize("target", ["demo", "test", "audit"])
def test_a_missing_java_is_one_sentence_before_anything_else(checkout: Path, target: str) -> None:
    done = make(checkout, target, JAVA_HOME=str(checkout / "nowhere"))
    assert done.returncode != 0
    assert done.stderr.startswith("Java 17 or newer is needed for the audit")
    assert "openjdk-17-jre-headless" in done.stderr
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("version", ["11.0.22", "1.8.0_392", "16"])
def test_an_old_java_is_named(checkout: Path, version: str) -> None:
    done = make(checkout, "java", JAVA_HOME=fake_java(checkout, version))
    assert done.returncode != 0
    assert f"is version {version.split('.')[0]}." in done.stderr


@pytest.mark.parametrize("version", ["17.0.15", "21", "26-ea"])
def test_a_java_of_17_or_newer_is_taken(checkout: Path, version: str) -> None:
    done = make(checkout, "java", JAVA_HOME=fake_java(checkout, version))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_python_is_one_sentence(checkout: Path) -> None:
    tools = checkout / "tools"
    tools.mkdir()
    for name in ("make", "bash", "cksum", "cut", "rm", "touch"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    done = make(checkout, "install", PATH=str(tools))
    assert done.returncode != 0
    assert done.stderr.startswith("Python 3.11 or newer is needed")
    assert not (checkout / ".venv").exists()


def test_clean_leaves_the_clusters_that_the_first_page_makes(checkout: Path) -> None:
    (made,) = {one.split("/")[0] for one in re.findall(r"kvstore cluster init (\S+)", (ROOT / "README.md").read_text())}
    for name in (made, ".venv", "demo-run"):
        (checkout / name).mkdir()
    assert make(checkout, "clean").returncode == 0
    assert (checkout / made).is_dir() and not (checkout / ".venv").exists() and not (checkout / "demo-run").exists()


def test_help_lists_the_two_commands(checkout: Path) -> None:
    done = make(checkout, "help")
    assert done.returncode == 0
    assert "make demo" in done.stdout
    assert "make test" in done.stdout
