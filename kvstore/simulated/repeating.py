"""What clients of a simulated cluster were told is asked again when all is over, under the same ids, through any
replica: the same must be told, nothing else may be done under these ids, and a lookup must find them. So what replicas
remember is judged by what it is for, wherever the keys have gone meanwhile. At last two look up an id that nobody has
used, at once: that must be said to both, and soon."""

from __future__ import annotations

import random
from typing import Any

from kvstore.api.model import Compare, Get, Operation, Revoke, Transaction, compares_of, lease_key, operations_of
from kvstore.core.audit import APPLIED, FAILED
from kvstore.core.messages import Answered, Execute, Lookup, Refused, decode_remembered
from kvstore.core.requests import REMEMBERED_WINDOWS
from kvstore.core.shards import TELL_US
from kvstore.simulated.clients import History, Operated, Workload
from kvstore.simulated.cluster import SimulatedCluster
from kvstore.simulated.late import Copies
from kvstore.simulated.narrow import tells_all
from multicast.types import ZERO, GroupId, ProcessId, created_us, new_message_id

REPEATED_MAX = 8
WAIT_US = 20_000_000

_Asked = tuple[Operated, Execute | Lookup]


class Repetitions:
    """Of some operations, drawn from the seed. copies: makes late ones, where there are any."""

    def __init__(self, workload: Workload, seed: str, copies: Copies | None):
        self._workload = workload
        self._copies = copies
        self._rng = random.Random(f"{seed}/repeating")
        self._own = random.Random(f"{seed}/nobody's id")
        self._open: dict[int, _Asked] = {}
        self._answers: list[tuple[_Asked, ProcessId, int, Answered | Refused]] = []

    def judge(self) -> None:
        """Ask, wait, and report in the world what is wrong. The holder of a token may have lost his rights."""
        rng, world = self._rng, self._workload.world
        found = self._workload.history.operations.values()
        owned = [op for op in found if op.unnamed is None and not op.contested and not op.transaction.by]
        known = [op for op in owned if op.result or _was_impossible(op)]
        if self._copies is not None:
            known = [op for op in known if self._copies.went_elsewhere(op)] or known
        drawn = rng.sample(known, min(REPEATED_MAX, len(known)))
        if self._copies is not None:
            self._copies.send_all(drawn)
        for operation in drawn:
            for shard in [None] if self._copies is None else world.topology.groups:
                self._ask(operation, Execute(operation.id, operation.transaction), shard)
                self._ask(operation, Lookup(operation.id), shard)
        world.run_while(lambda: bool(self._open), WAIT_US)
        for operation in drawn:
            self._ask(operation, Execute(operation.id, something_else(operation.transaction, rng)))
        world.run_while(lambda: bool(self._open), WAIT_US)
        newest = max([store.complete_to for store in self._workload.cluster.stores.values()], default=ZERO)
        for operation, request in self._open.values():
            world.report("repetitions", f"{_name(operation, request)} is not answered, when all is over")
        for (operation, request), asked, at_us, answer in self._answers:
            remembers = self._remembers(asked, operation)
            if not self._is_right(operation, request, answer, at_us, newest.time, remembers):
                world.report("repetitions", f"{_name(operation, request)} is answered {answer}, when all is over")
        if not world.violations:
            self._look_for_nothing()

    def _look_for_nothing(self) -> None:
        world, own, answers = self._workload.world, self._own, list[Any]()
        up = [pid for pid in world.topology.processes if world.node(pid).up and world.belongs(pid)]
        replica, request = own.choice(up), Lookup(new_message_id(world.now, own.getrandbits(62)))
        for _ in range(2):
            world.request(replica, request, answers.append)
        world.run_while(lambda: len(answers) < 2, WAIT_US)
        told = [one for one in answers if isinstance(one, Refused) and one.code == "unknown_or_forgotten"]
        if len(told) < 2:
            world.report("repetitions", f"two lookups of an id that nobody has used are answered {answers}")

    def _ask(self, operation: Operated, request: Execute | Lookup, shard: GroupId | None = None) -> None:
        """Some replica, of this shard or any."""
        world, number = self._workload.world, len(self._open) + len(self._answers)
        asked = self._open[number] = (operation, request)

        def answered(replica: ProcessId, answer: Any) -> None:
            if isinstance(answer, Refused) and answer.retryable:  # by what a leader has said a moment ago, and it heals
                world.after(TELL_US, ask)
            elif self._open.pop(number, None) is not None:
                self._answers.append((asked, replica, world.now, answer))

        def ask() -> None:
            members = world.topology.processes if shard is None else world.topology.groups[shard]
            replica = self._rng.choice([pid for pid in members if world.node(pid).up])
            world.request(replica, request, lambda answer: answered(replica, answer))

        ask()

    def _remembers(self, replica: ProcessId, operation: Operated) -> bool:
        """Whether this replica remembers how it ended, even now."""
        record = self._workload.cluster.stores[replica].remembered(operation.id)
        return record is not None and decode_remembered(record).status in (APPLIED, FAILED)

    def _may_be_forgotten(self, operation: Operated, newest_us: int) -> bool:
        """Replicas do not forget at one instant. newest_us: of the last timestamp in any log."""
        kept_us = REMEMBERED_WINDOWS * self._workload.cluster.options.dedup_window_us
        return 0 < kept_us < newest_us - created_us(operation.id)

    def _is_known(self, operation: Operated, newest_us: int) -> bool:
        """Whether nobody can have forgotten what it has read, and it has stayed where it was."""
        lost = operation.results_omitted or not tells_all() or self._may_be_forgotten(operation, newest_us)
        return not (self._workload.moves or lost)

    def _is_right(
        self, operation: Operated, request: Execute | Lookup, answer: Any, at_us: int, newest_us: int, remembers: bool
    ) -> bool:
        """at_us: when it was answered. newest_us: see `_may_be_forgotten`. remembers: see `_remembers`."""
        window_us, created = self._workload.cluster.options.dedup_window_us, created_us(operation.id)
        other = isinstance(request, Execute) and request.transaction != operation.transaction
        if isinstance(answer, Refused):
            if isinstance(request, Lookup) or answer.code == "unknown_or_forgotten":
                return answer.code == "unknown_or_forgotten" and self._may_be_forgotten(operation, newest_us)
            if answer.code == "id_expired" or (other and answer.code == "expired"):
                # Clocks differ by up to half a window; whether the log's time may be ahead is judged by `TrueTime`.
                return 0 < window_us < 2 * (max(at_us, newest_us) - created) and (other or not remembers)
            return (other and answer.code == "id_reused") or answer.code == "id_in_future"
        if other:
            return False
        if operation.result is None:
            return bool(answer.result.failure)
        if answer.results_omitted and isinstance(request, Execute) and self._is_known(operation, newest_us):
            return False
        return same_answer(operation, answer)


def same_answer(operation: Operated, second: Answered) -> bool:
    """Whether a repetition was told the same, as far as the result was not too large."""
    told = operation.result
    if told is None or operation.results_omitted or second.results_omitted:
        return told is None or (told.version, told.succeeded) == (second.result.version, second.result.succeeded)
    return told == second.result


def omitted(cluster: SimulatedCluster, history: History, moved: bool) -> list[str]:
    """Who was not told what he had read, though all of it is small and nobody can have forgotten it."""
    if not tells_all():
        return []
    kept_us = REMEMBERED_WINDOWS * cluster.options.dedup_window_us
    answered = [op for op in history.operations.values() if op.results_omitted and op.completed_us is not None]
    lost = [op for op in answered if not kept_us or (op.completed_us or 0) - op.invoked_us < kept_us // 2]
    return [f"{op.id.hex()} ({op.f}) was answered without what it has read" for op in lost if not moved]


def _was_impossible(operation: Operated) -> bool:
    """Whether its client was told so."""
    return operation.failed and not operation.refused


def something_else(transaction: Transaction, rng: random.Random) -> Transaction:
    """Of one of its keys, so in one of its shards: only these know its id."""
    parts = (*compares_of(transaction), *operations_of(transaction))
    return Transaction(success=(Get(rng.choice([_key_of(part) for part in parts])), Get(b"key/1")))


def _key_of(part: Compare | Operation) -> bytes:
    if isinstance(part, Revoke):
        return lease_key(part.lease)
    return getattr(part, "key", b"key/0")  # a cut, a range: in all shards


def _name(operation: Operated, request: Execute | Lookup) -> str:
    what = f"{operation.f} {operation.id.hex()}, which was answered {operation.result or 'that it is impossible'},"
    if isinstance(request, Lookup):
        return f"a lookup of {what}"
    return what if request.transaction == operation.transaction else f"something else under the id of {what}"
