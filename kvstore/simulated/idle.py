"""When all is over, and nothing is executed that others could wait for, reads of every kind are answered, and soon; and
what names an instant that has not come yet is refused, or a shard would be moved on for it without end. And who follows
hears soon of what is written."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from kvstore.api.model import Get, Range, Transaction
from kvstore.core.bundles import NO_ID
from kvstore.core.messages import Answered, Execute, Follow, Followed, Refused
from kvstore.core.replica import CLOCK_AHEAD_US_MAX
from kvstore.core.shards import TELL_US
from kvstore.core.versions import ASKED_AT_ONCE
from kvstore.simulated.clients import Workload
from multicast.session import QUEUE_FRAMES_MAX
from multicast.simulation.endings import clocks_apart_us, waits_us
from multicast.types import ZERO, ProcessId, Timestamp, new_message_id

WAIT_US = 5_000_000
"""More than who asks one replica after the other needs."""
_AHEAD_US = 3_600_000_000
_FOLLOWED = b"followed"
_ROUND_US, _TOLD_US, _TRIES = 60_000, 300_000, 2
"""So long after the last answer the feed has begun its next round; as long as a change may take to whoever follows, who
would hear of it without looking for it in HOLD_US of `kvstore.core.changes`, where no shard's order waits for a clock;
and so often it must take longer."""


def judge(workload: Workload, seed: str) -> None:
    """Report in the world what is not answered, or late. Questions and answers of one read are more than the shortest
    queue has room for, and that loses all of them, however often they are asked again: here queues are long."""
    world = workload.world
    kept = world.conditions
    world.conditions = world.network.conditions = msgspec.structs.replace(kept, queue_frames_max=QUEUE_FRAMES_MAX)
    world.network.have_room()
    _ask_all(workload, random.Random(f"{seed}/idle"))
    world.conditions = world.network.conditions = kept
    world.network.have_room()


def _ask_all(workload: Workload, rng: random.Random) -> None:
    """One read after the other, each by some replica."""
    world = workload.world
    up = [pid for pid in world.topology.processes if world.node(pid).up and world.belongs(pid)]
    one, pair = Transaction(success=(Get(rng.choice(workload.keys)),)), tuple(map(Get, workload.accounts[:2]))
    several = Transaction(success=(*pair, Range(b"key/", 3)))
    many = Transaction(success=tuple([Get(b"many/%d" % number) for number in range(4 * ASKED_AT_ONCE)]))
    newest = max([store.complete_to for store in workload.cluster.stores.values()], default=ZERO)
    asked: list[Execute | Follow] = [
        Execute(NO_ID, one), Execute(NO_ID, several), Execute(NO_ID, one, None, "stale", 1_000),
        Execute(NO_ID, several, None, "snapshot"), Execute(NO_ID, several, newest), Execute(NO_ID, many, newest),
        Follow(None),
    ]  # fmt: skip
    for question in asked:
        if not _is_told(workload, rng.choice(up), question):
            return
    ahead = Timestamp(world.now + _AHEAD_US, 0)
    beyond: list[Execute | Follow] = [
        Execute(NO_ID, one, ahead), Follow(ahead), Execute(new_message_id(ahead.time, rng.getrandbits(62)), one)
    ]  # fmt: skip
    for question in beyond:
        replica = rng.choice(up)
        if workload.cluster.options.dedup_window_us and _time(workload, replica):
            answer = _ask(workload, replica, question)
            if not isinstance(answer, Refused) or answer.code not in ("future", "id_in_future"):
                world.report("idle", f"{question} is answered {answer}, and its time is an hour ahead")
                return
    for members in world.topology.groups.values():  # one of them may have stood still while others went on
        replica = rng.choice([pid for pid in members if pid in up])
        if not _is_told(workload, replica, Follow(None)):
            return
    if all([_is_told_late(workload, rng.choice(up), rng.choice(up)) for _ in range(_TRIES)]):
        world.report("idle", f"who follows is told of a change later than {_TOLD_US / 1e6} s after who has made it")


def _is_told_late(workload: Workload, replica: ProcessId, other: ProcessId) -> bool:
    """Whether who follows at this replica is told of what is written through the other one long after the writer."""
    world, answers = workload.world, list[Any]()
    begun = _ask(workload, replica, Follow(None))
    if not isinstance(begun, Followed):
        return False
    world.request(replica, Follow(begun.upto, _FOLLOWED, _FOLLOWED + b"\0", True), answers.append)
    world.run_for(_ROUND_US)
    if answers:
        return False
    workload.probe(other, (_FOLLOWED,))
    world.run_while(lambda: bool(workload.probes), WAIT_US)
    if not workload.probed_us:
        return False
    world.run_while(lambda: not answers, _TOLD_US + waits_us(workload.cluster.options, clocks_apart_us(world)))
    return not answers


def _is_told(workload: Workload, replica: ProcessId, question: Execute | Follow) -> bool:
    """Whether this replica says what is asked, or that it is not known any more; reported if not, and it should."""
    answer = _ask(workload, replica, question)
    code = getattr(answer, "code", "")
    told = isinstance(answer, Answered | Followed) or code == "compacted"
    at = getattr(question, "at", None) or ZERO
    complete_to = workload.cluster.stores[replica].complete_to
    ahead = at > complete_to and at.time > _time(workload, replica) + CLOCK_AHEAD_US_MAX
    if not told and not (code == "future" and ahead) and not (code == "expired" and _is_slow(workload, replica)):
        workload.world.report("idle", f"{question} is answered {answer}, when all is over")
    return told


def _is_slow(workload: Workload, replica: ProcessId) -> bool:
    """Whether its clock is so far behind another one's that what enters there may be too late at once."""
    world = workload.world
    behind_us = max([node.offset_us for node in world.nodes.values()]) - world.node(replica).offset_us
    return bool(0 < workload.cluster.options.dedup_window_us < 2 * behind_us)


def _time(workload: Workload, replica: ProcessId) -> int:
    """By this replica's clock; 0: it does not know."""
    node = workload.world.node(replica)
    return node.protocol.real_clock(node.clock())


def _ask(workload: Workload, replica: ProcessId, question: Execute | Follow) -> Any:
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
