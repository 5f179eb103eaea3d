"""How commands speak: results on standard output, a user's mistake as one line on standard error; exit statuses."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import msgspec
import typer

from kvstore import __version__

FAILED = 1
OUTCOME_UNKNOWN = 2
ERROR_PREFIX = "error: "


class UserError(Exception):
    """Something that the user can put right, or must know; one line. status: the exit status."""

    def __init__(self, text: str, status: int = FAILED):
        super().__init__(text)
        self.status = status


class Output(StrEnum):
    """How results are printed."""

    text = "text"
    json = "json"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print the result.")]
Target = Annotated[
    str,
    typer.Option(
        "--cluster",
        "--endpoints",
        metavar="DIR|URL",
        envvar="KVSTORE_CLUSTER",
        help="A cluster's directory, or URLs or host:port of replicas, with commas.",
    ),
]


def make_app(help_text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )


def together(*groups: typer.Typer, asked: str = "") -> typer.Typer:
    """The command `kvstore` with the commands of these groups. asked: if there is one of this name, without the others:
    to make all of them takes as long as many a command."""
    statuses = "0 done, 1 failed, 2 outcome unknown, 3 no such key"
    app = make_app(f"A sharded, replicated key-value store. Exit status: {statuses}.")
    for group in groups:
        app.registered_commands += [command for command in group.registered_commands if command.name == asked]
        app.registered_groups += [inner for inner in group.registered_groups if inner.name == asked]
    if not (app.registered_commands or app.registered_groups):
        for group in groups:
            app.add_typer(group)

    @app.callback()
    def top(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version.")
        ] = False,
        ca: Annotated[
            str, typer.Option("--ca", envvar="KVSTORE_CA", metavar="FILE", help="Trust certificates of this authority.")
        ] = "",
        token_file: Annotated[
            Path | None, typer.Option(metavar="FILE", help="With a token in it; or it stands in KVSTORE_TOKEN.")
        ] = None,
    ) -> None:
        if ca:
            os.environ["KVSTORE_CA"] = ca
        if token_file is not None:
            os.environ["KVSTORE_TOKEN"] = token_file.read_bytes().decode(errors="replace").replace("\0", "?").strip()
        if context.invoked_subcommand != "serve":  # which has its own ways to end
            context.with_resource(_terminable())

    return app


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that goes, are as good as Ctrl-C: what is half done is taken back."""
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) == signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _say_version(asked: bool) -> None:
    if asked:
        say(f"kvstore {__version__}")
        raise typer.Exit


def instead(app: typer.Typer, name: str, sentence: str) -> None:
    """A command that others have and we have not, whatever follows it: it says what to do instead."""

    def command() -> None:
        raise UserError(sentence)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(command)


INSTEAD_OF_OPTIONS: dict[str, str] = {
    **dict.fromkeys(("-w", "--write-out"), "here it is -o json"),
    "--command-timeout": "here it is --timeout SECONDS, after the command",
    "--cacert": "here it is --ca FILE",
    "--user": "there are no users and no passwords, but tokens: `kvstore token create NAME --role ROLE`",
}
""""command --option", or only "--option" for any command, that others have and we have not -> what we say."""


def say(text: str) -> None:
    """A line of the result, or of what happens."""
    print(text, flush=True)


def remark(text: str) -> None:
    """What happens meanwhile; no part of the result."""
    _mention(sys.stderr, text)


def complain(text: str) -> None:
    """The line that says why a command has failed."""
    print(f"{ERROR_PREFIX}{text}", file=sys.stderr, flush=True)


def json_line(value: Any) -> str:
    """The value as JSON on one line."""
    return msgspec.json.encode(value).decode()


def print_json(value: Any) -> None:
    """The value as indented JSON."""
    say(msgspec.json.format(json_line(value), indent=2))


def tell(output: Output, value: Any, text: str) -> None:
    """The result of a command: the value for programs, the text for people."""
    print_json(value) if output is Output.json else say(text)


def beside(output: Output) -> Callable[[str], None]:
    """Who says what happens before there is a result: to programs it is none."""
    return remark if output is Output.json else partial(_mention, sys.stdout)


def _mention(stream: TextIO, text: str) -> None:
    """That nobody reads any more, as after `| head`, ends no change that is half done."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        unread(stream)


def unread(stream: TextIO) -> None:
    """Nobody reads this any more: what is written there goes nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as what stands in them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
