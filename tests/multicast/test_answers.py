"""Whatever leads to an answer for a client, the answer leaves in the batch in which it was given."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from multicast import registry
from multicast.application import Application, ApplicationOutbox
from multicast.engine import Engine
from multicast.types import ProcessId, Topology

NOW = 1_700_000_000_000_000


class Note(msgspec.Struct, array_like=True, tag=1):
    """A message of the application to itself."""

    token: int


class Answering(Application):
    """Answers a request at once, after a message, or at the next timer."""

    messages = (Note,)

    def __init__(self) -> None:
        self.due: list[int] = []

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        if request == "at once":
            out.answer(token, "done")
        elif request == "after a message":
            out.send((0,), Note(token))
        else:
            self.due.append(token)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: ApplicationOutbox) -> None:
        out.answer(message.token, "done")

    def on_tick(self, now: int, out: ApplicationOutbox) -> int | None:
        for token in self.due:
            out.answer(token, "done")
        self.due.clear()
        return None


@pytest.mark.parametrize("how", ["at once", "after a message", "at a timer"])
def test_an_answer_leaves_with_its_batch(how: str) -> None:
    protocol = registry.load("skeen")
    options = protocol.specification.options()
    engine = Engine(protocol(0, Topology.grid(1, 1), options, random.Random(1)), Answering(), incarnation=1)
    started = engine.recover([], NOW)
    engine.flushed(started.number)
    engine.request(7, how)
    assert engine.run(NOW).answers == [(7, "done")]
