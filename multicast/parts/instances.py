"""The instances of a group's consensus as one member knows them: what it has accepted, what is chosen, what is decided.

Theory of operation. An instance is *chosen* in a ballot once a quorum has accepted its batch in that ballot. A later
ballot proposes nothing else for it (Lamport 1998). So a batch that was accepted here in that ballot or a later one is
the chosen one, and it is *decided* here once all instances before it are. Decided instances are kept, for those who
missed them, until the user drops them (`truncate`) or takes over a state in which they are contained (`jump`).

Durable: `x` + instance -> ballot and batch; `xd` -> up to where all is decided, and the lowest instance that is kept.
Not every decision is durable where it was learned: what is lost is learned again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from multicast.protocol import Outbox
from multicast.types import AppMessage, Ballot, ProcessId

PREFIX = b"x"
_MARKS_KEY = b"xd"

Values = list[bytes]
"""A batch: opaque values, decided together, in this order."""

_encode = msgspec.msgpack.Encoder().encode
_decode_entry = msgspec.msgpack.Decoder(tuple[Ballot, Values]).decode
_decode_marks = msgspec.msgpack.Decoder(tuple[int, int]).decode


def _key(instance: int) -> bytes:
    return PREFIX + instance.to_bytes(8, "big")


class Instances:
    """At one member. quorum: of the group. decided: all instances up to here are. low: the lowest one that is kept.
    accepted: instance -> the ballot in which its batch was accepted here, and the batch. carried(values): the messages
    in a batch, in its order; to be replaced by a user that puts messages into batches."""

    def __init__(self, quorum: int):
        self.carried: Callable[[Values], Sequence[AppMessage]] = lambda values: ()
        self.decided = 0
        self.low = 1
        self.accepted: dict[int, tuple[Ballot, Values]] = {}
        self._quorum = quorum
        self._voters: dict[int, dict[Ballot, set[ProcessId]]] = {}
        self._chosen: dict[int, Ballot] = {}
        self._taken: list[tuple[int, Values]] = []
        self._dirty = False

    def restore(self, values: Mapping[bytes, bytes]) -> None:
        """What was on disk. Decisions that were known before are to be taken again, from `low` on."""
        for key, value in values.items():
            if key[:1] == PREFIX and len(key) == 9:
                self.accepted[int.from_bytes(key[1:], "big")] = _decode_entry(value)
        if _MARKS_KEY in values:
            self.decided, self.low = _decode_marks(values[_MARKS_KEY])
        self._taken = [(k, self.accepted[k][1]) for k in range(self.low, self.decided + 1)]

    def end_batch(self, out: Outbox) -> None:
        if self._dirty:
            self._dirty = False
            out.put(_MARKS_KEY, _encode((self.decided, self.low)))

    def accept(self, instance: int, ballot: Ballot, values: Values, out: Outbox) -> None:
        """Accept a batch in this ballot, which is the highest one promised. A decided batch stays as it is: the sender
        may be deposed, without this member knowing it, and have proposed something else."""
        if instance > self.decided:
            self._keep(instance, ballot, values, out)
            self.decide_next()

    def _keep(self, instance: int, ballot: Ballot, values: Values, out: Outbox) -> None:
        entry = self.accepted[instance] = (ballot, values)
        out.put(_key(instance), _encode(entry), carries=self.carried(values))

    def count(self, instance: int, ballot: Ballot, sender: ProcessId) -> bool:
        """A member has accepted it. Whether it is chosen; then `decide_next`."""
        voters = self._voters.setdefault(instance, {}).setdefault(ballot, set())
        voters.add(sender)
        chosen = len(voters) >= self._quorum
        if chosen:
            self._chosen.setdefault(instance, ballot)
        return chosen

    def voters(self, instance: int, ballot: Ballot) -> set[ProcessId]:
        """Who is known to have accepted it, as long as it is not decided."""
        return self._voters.get(instance, {}).get(ballot, set())

    def decide_next(self) -> None:
        """Decide what is chosen, in order, as far as the batches are here."""
        while (ballot := self._chosen.get(self.decided + 1)) is not None:
            entry = self.accepted.get(self.decided + 1)
            if entry is None or entry[0] < ballot:
                return
            self._decide(entry[1])

    def _decide(self, values: Values) -> None:
        self.decided += 1
        self._voters.pop(self.decided, None)
        self._chosen.pop(self.decided, None)
        self._taken.append((self.decided, values))
        self._dirty = True

    def learn(self, first: int, batches: list[Values], ballot: Ballot, out: Outbox) -> None:
        """A peer says that these batches are decided, from instance `first` on. ballot: the highest one promised
        here."""
        for k, values in enumerate(batches, first):
            if k == self.decided + 1:
                held = self.accepted.get(k)
                self._keep(k, ballot if held is None else held[0], values, out)
                self._decide(values)
        self.decide_next()

    def take(self) -> list[tuple[int, Values]]:
        """What was decided since the last call: (instance, values), in order, without gaps."""
        taken = self._taken
        if taken:
            self._taken = []
        return taken

    def decisions(self, first: int, most_bytes: int) -> list[Values]:
        """The batches from a kept instance on, about so many bytes, at least one if there is one."""
        batches: list[Values] = []
        size = 0
        for k in range(first, self.decided + 1):
            values = self.accepted[k][1]
            size += sum(map(len, values))
            if batches and size > most_bytes:
                break
            batches.append(values)
        return batches

    def truncate(self, instance: int, out: Outbox) -> None:
        """Drop the decided instances up to this one."""
        if instance > self.decided:
            raise AssertionError(f"instance {instance} is not decided, the last one is {self.decided}")
        for k in range(self.low, instance + 1):
            if self.accepted.pop(k, None) is not None:
                out.delete(_key(k))
        self.low = max(self.low, instance + 1)
        self._dirty = True

    def jump(self, instance: int, out: Outbox) -> None:
        """The user's state now contains all instances up to this one, more than are decided here."""
        for k in [k for k in self.accepted if k <= instance]:
            del self.accepted[k]
            out.delete(_key(k))
        self._voters = {k: v for k, v in self._voters.items() if k > instance}
        self._chosen = {k: v for k, v in self._chosen.items() if k > instance}
        self._taken.clear()
        self.decided = instance
        self.low = instance + 1
        self._dirty = True
        self.decide_next()
