"""The commands `kvstore lock` and `kvstore elect`. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated

import typer

from client_sdk.cli import open_client
from client_sdk.errors import KvError
from kvstore.api.forms import text_or_b64
from kvstore.console import Output, OutputOption, Target, UserError, json_line, make_app, say

TOKEN = "KVSTORE_LOCK_TOKEN"
"""In the environment of a command: the version that rises from one holder to the next."""
LOOK_SECONDS = 0.2
GRACE_SECONDS = 10.0

app = make_app("Locks and elections.")

TtlOption = Annotated[
    float, typer.Option("--ttl", min=1, max=86_400, help="Seconds after which others take over from who has crashed.")
]
WaitOption = Annotated[
    float | None, typer.Option("--wait", min=0.001, help="Seconds for those before; default: as long as it takes.")
]
CommandArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="To run meanwhile; its exit status is that of this command."),
]


@app.command("lock")
def lock_command(
    name: str,
    cluster: Target,
    command: CommandArgument = None,
    ttl: TtlOption = 10.0,
    wait: WaitOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Hold a lock while COMMAND runs, which finds the fencing token in KVSTORE_LOCK_TOKEN; without COMMAND print the
    token, and hold it until Ctrl-C. A command whose lock is lost is ended, status 1."""
    with open_client(cluster, ttl) as client, _patient(), client.lock(name, ttl=ttl, timeout=wait) as held:
        if command:
            return _run(command, str(held.token), lambda: held.lost)
        say(json_line({"token": str(held.token)}) if output is Output.json else str(held.token))
        _hold(lambda: held.lost)
    return 0


@app.command("elect")
def elect_command(
    name: str,
    cluster: Target,
    value: Annotated[str, typer.Argument(help="What the leader has to say.")] = "",
    command: CommandArgument = None,
    listen: Annotated[
        bool, typer.Option("--listen", "-l", help="Be no candidate: print every leader, until Ctrl-C.")
    ] = False,
    ttl: TtlOption = 10.0,
    wait: WaitOption = None,
    output: OutputOption = Output.text,
) -> int:
    """Wait until this process leads, and lead while COMMAND runs, or until Ctrl-C; then the next one does."""
    with open_client(cluster, ttl) as client, _patient(), client.election(name, ttl=ttl) as election:
        if listen:
            with suppress(KeyboardInterrupt):
                for leader in election.observe():
                    token, said = str(leader.create_version), leader.value.decode(errors="backslashreplace")
                    told = {**text_or_b64("value", leader.value), "token": token}
                    say(json_line(told) if output is Output.json else f"{token}\t{said}")
            return 0
        token = str(election.campaign(os.fsencode(value), wait))
        try:
            if command:
                return _run(command, token, lambda: election.lost)
            say(json_line({"token": token}) if output is Output.json else token)
            _hold(lambda: election.lost)
        finally:
            with suppress(KvError):  # then the next one leads when the session's lease goes
                election.resign()
    return 0


@contextmanager
def _patient() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise UserError("--wait: others were before for so long") from None


def _hold(lost: Callable[[], bool]) -> None:
    with suppress(KeyboardInterrupt):
        while not lost():
            time.sleep(LOOK_SECONDS)
        raise UserError("it was not renewed in time: another may have it by now")


def _run(command: Sequence[str], token: str, lost: Callable[[], bool]) -> int:
    """The exit status of the command, 128 and the signal that has ended it."""
    with subprocess.Popen(command, env={**os.environ, TOKEN: token}) as process:
        try:
            while process.poll() is None:
                if lost():
                    _end(process)
                    raise UserError(f"it was not renewed in time, and another may have it: {command[0]} was ended")
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_SECONDS)
        except KeyboardInterrupt:  # a terminal tells the command, too
            _end(process)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
