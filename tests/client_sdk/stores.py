"""The two places where a client's promises hold: a cluster of processes, and a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_sdk import KvError
from client_sdk.connections import Transport
from client_sdk.testing import MemoryStore
from tests.kvstore.live import running_cluster


class Place:
    """Where to. target: of clients. urls: for whoever speaks HTTP himself; none in memory."""

    def __init__(self, target: list[str] | MemoryStore):
        self.target: Any = target
        self.urls = [] if isinstance(target, Transport) else target

    def let_pass(self, seconds: float) -> None:
        """In memory so much time passes at once. Elsewhere it passes by itself, while one waits for what it does."""
        if isinstance(self.target, MemoryStore):
            self.target.advance(seconds)


LOSERS_TTL = 10.0
"""Of who does not get it: so long others wait for him, at most, if he could not say in time that he waits no more."""


def is_a_timeout(wait: Callable[[float], object]) -> None:
    """That others are before for longer than one waits. In so short a time it may be that nobody has answered, either:
    that is another error, and says nothing."""
    for seconds in (0.05, 1.0, 20.0):
        try:
            wait(seconds)
        except TimeoutError:
            return
        except KvError:
            continue
        raise AssertionError("both have it")
    raise AssertionError("nobody answers")


@pytest.fixture(scope="module", params=["memory", "cluster"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Both, one after the other."""
    if request.param == "memory":
        with MemoryStore() as memory:
            yield Place(memory)
    else:
        yield from _cluster(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The processes only."""
    yield from _cluster(tmp_path_factory.mktemp("place"))


def _cluster(directory: Path) -> Iterator[Place]:
    with running_cluster(directory, 2, 1, "white_box") as replicas:
        yield Place([f"http://{replica.host}:{replica.port}" for replica in replicas])
