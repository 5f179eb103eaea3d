"""When all is over, and nothing is executed that others could wait for, reads of every kind are answered, and soon."""

from __future__ import annotations

import random
from typing import Any

from kvstore.api.model import Get, Range, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Follow, Followed, Refused
from kvstore.core.shards import TELL_US
from kvstore.simulated.clients import Workload
from multicast.types import ZERO

WAIT_US = 5_000_000
"""More than who asks one replica after the other needs."""


def judge(workload: Workload, seed: str) -> None:
    """One read after the other, each by some replica; report in the world which is not answered."""
    rng, world = random.Random(f"{seed}/idle"), workload.world
    up = [pid for pid in world.topology.processes if world.node(pid).up and world.belongs(pid)]
    one, pair = Transaction(success=(Get(rng.choice(workload.keys)),)), tuple(map(Get, workload.accounts[:2]))
    several = Transaction(success=(*pair, Range(b"key/", 3)))
    newest = max([store.complete_to for store in workload.cluster.stores.values()], default=ZERO)
    asked: list[Execute | Follow] = [
        Execute(NO_ID, one), Execute(NO_ID, several), Execute(NO_ID, one, None, "stale", 1_000),
        Execute(NO_ID, several, None, "snapshot"), Execute(NO_ID, several, newest), Follow(None),
    ]  # fmt: skip
    for question in asked:
        answer = _ask(workload, rng.choice(up), question)
        if not isinstance(answer, Answered | Followed):
            world.report("idle", f"{question} is answered {answer}, when all is over")
            return


def _ask(workload: Workload, replica: int, question: Execute | Follow) -> Any:
    """Its answer; None: there is none in time. Who may try again does, but not when he was let wait."""
    world, answers = workload.world, list[Any]()

    def answered(answer: Any) -> None:
        if isinstance(answer, Refused) and answer.retryable and answer.code != "timeout":
            world.after(TELL_US, ask)
        else:
            answers.append(answer)

    def ask() -> None:
        world.request(replica, question, answered)

    ask()
    world.run_while(lambda: not answers, WAIT_US)
    return answers[0] if answers else None
