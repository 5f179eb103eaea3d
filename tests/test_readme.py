"""Every command in the project's pages is one that its command line takes: it is parsed there, and not run."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from typer.core import TyperCommand, TyperGroup

from kvstore.api import codec
from kvstore.api.model import Range
from kvstore.api.validation import validate
from kvstore.http import request
from multicast.simulation.cli import execute
from tests.house import ROOT
from workloads import cli

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/*.md")), *sorted(ROOT.glob("*/docs/*.md"))]
PLACEHOLDERS = {"ID": "0", "BYTE": "0", "NAME": "set"}
MAKEFILE = (ROOT / "Makefile").read_text()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


class Parsed(BaseException):
    """A command line was right; nothing is done."""


class Wrong(Exception):
    """It was not."""


# -- what the pages say ------------------------------------------------------------------------------------------------


def without_comment(line: str) -> tuple[str, str]:
    """(what stands before `#`, what stands after it), outside of quotes."""
    found = re.match(r"""((?:'[^']*'|"[^"]*"|[^'"#]|(?<=\S)#)*)#?(.*)""", line, re.DOTALL)
    assert found is not None
    return found[1].strip(), found[2]


def in_blocks(text: str) -> Iterator[str]:
    """The commands of shell blocks, which may go over several lines between quotes, and of console blocks. A comment
    may be followed by a second column of commands."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        whole = ""
        for line in block.splitlines():
            whole = f"{whole}\n{line}" if whole else line
            if whole.count("'") % 2 == 0:
                command, comment = without_comment(whole)
                yield from filter(None, (command, *re.findall(r" {2,}(make \S+)", comment)))
                whole = ""
    yield from re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def in_sentences(text: str) -> Iterator[str]:
    """The commands between backquotes."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for quoted in re.findall(r"`([^`]+)`", prose):
        if re.match(r"(kvstore|python -m|make|pip|locust) ", quoted):
            yield " ".join(quoted.split())


def cases(find: Callable[[str], Iterator[str]]) -> list[Any]:
    found = {(command, page.relative_to(ROOT)) for page in PAGES for command in find(page.read_text())}
    return [pytest.param(command, id=f"{page}: {command.splitlines()[0]}") for command, page in sorted(found)]


# -- who reads them ----------------------------------------------------------------------------------------------------


def parsed_by(main: Callable[[], object], arguments: list[str]) -> None:
    """Have the real command line parse them; Wrong unless it takes them."""

    def stop(*_: Any, **__: Any) -> NoReturn:
        raise Parsed

    def group(self: TyperGroup, context: Any) -> Any:
        return invoke_group(self, context) if context._protected_args else stop()

    def parse(self: argparse.ArgumentParser, *given: Any) -> NoReturn:
        parse_args(self, *given)
        raise Parsed

    parse_args, invoke_group = argparse.ArgumentParser.parse_args, TyperGroup.invoke
    with (
        patch.object(sys, "argv", ["command", *arguments]),
        patch.object(TyperCommand, "invoke", stop),
        patch.object(TyperGroup, "invoke", group),
        patch.object(argparse.ArgumentParser, "parse_args", parse),
    ):
        try:
            main()
        except Parsed:
            return
        except SystemExit as ended:
            raise Wrong(f"exit status {ended.code}") from ended
    raise Wrong("it parsed nothing")


def kvstore(arguments: list[str]) -> None:
    parsed_by(cli.main, arguments)


def python(arguments: list[str]) -> None:
    option, module, *others = arguments
    assert option == "-m"
    if module == "pytest":
        assert all((ROOT / part).exists() for part in others if part.startswith("tests/"))
    else:
        package = (ROOT / module.replace(".", "/")).is_dir()
        program = importlib.import_module(f"{module}.__main__" if package else module)
        parsed_by(getattr(program, "main", None) or partial(execute, program.app), others)


def make(arguments: list[str]) -> None:
    target, *variables = arguments
    if not re.search(rf"^{target}:.* ## ", MAKEFILE, re.MULTILINE):
        raise Wrong(f"no target {target}")
    for name in (variable.partition("=")[0] for variable in variables):
        if not re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE):
            raise Wrong(f"no variable {name}")


def pip(arguments: list[str]) -> None:
    assert arguments[0] == "install"
    extras = re.fullmatch(r"\.(?:\[(.*)\])?", arguments[-1])
    if extras is None or any(extra not in EXTRAS for extra in filter(None, (extras[1] or "").split(","))):
        raise Wrong("only this project is installed by pip, with extras that it has")


def curl(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-i", action="store_true")
    parser.add_argument("--cacert")
    parser.add_argument("-X", default="GET")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d", "--data-binary")
    parser.add_argument("url")
    asked = parser.parse_args(arguments)
    url = urlsplit(asked.url)
    fields = {name.lower(): value for name, value in (field.split(": ", 1) for field in asked.H)}
    if url.path == "/v1/txn":
        assert asked.X == "POST"
        validate(codec.parse_transaction(asked.data_binary.encode()))
    elif url.path == "/v1/kv":
        assert isinstance(request.scan_of(url.query)[0], Range)
    elif url.path == "/v1/watch":
        request.watch_of(url.query, fields)
    else:
        request.version_of(request.query_of(url.query, ("version", *request.FRESHNESS) if asked.X == "GET" else ()))
        request.conditions_of(fields, request.key_of(url.path, "", "/v1/kv/"))


def locust(arguments: list[str]) -> None:
    program = f"from locust.argument_parser import get_parser; print(get_parser().parse_args({arguments!r}).locustfile)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode or not (ROOT / done.stdout.strip()).is_file():
        raise Wrong(done.stderr)


READERS = {"kvstore": kvstore, "python": python, ".venv/bin/python": python, "make": make, "pip": pip, "curl": curl,
           "locust": locust}  # fmt: skip


def read(command: str) -> None:
    program, *arguments = shlex.split(re.sub(r" > \S+$", "", command))
    with patch.dict(os.environ):  # where `kvstore` keeps what it is told of certificates and tokens
        READERS[program]([PLACEHOLDERS.get(argument, argument) for argument in arguments])


@pytest.mark.parametrize("command", cases(in_blocks))
def test_a_command_of_a_block_is_understood(command: str) -> None:
    read(command)


@pytest.mark.parametrize("command", cases(in_sentences))
def test_a_command_that_is_mentioned_is_understood(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It may stand without its arguments."""
    try:
        read(command)
    except Wrong:
        assert re.search("Missing (argument|option)|the following arguments are required", capsys.readouterr().err)


@pytest.mark.parametrize(
    "command",
    [
        "kvstore cluster init run/first --shard 2",
        "kvstore gett greeting --cluster run/first",
        "kvstore cluster status",
        "python -m multicast.simulation run --protocol skeen --seedz 0:1",
        "python -m workloads.bank run/first --minutes 10",
        "python -m spark_etl audit",
        "make tests",
        "make sim PROTOKOL=skeen",
        "pip install kvstore",
        "pip install '.[sever]'",
        "locust -f workloads/locustfile.py --headed",
    ],
)
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises(Wrong):
        read(command)
