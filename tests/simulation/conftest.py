"""The simulator's command line without a process for each command."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from multicast.simulation.__main__ import main


class Done(NamedTuple):
    """A command that has ended."""

    returncode: Any
    stdout: str
    stderr: str


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """Does what `python -m multicast.simulation ARGUMENTS` does, in this process."""

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["multicast.simulation", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return Done(ended.value.code, said.out, said.err)

    before = signal.getsignal(signal.SIGTERM)
    yield call
    signal.signal(signal.SIGTERM, before)
