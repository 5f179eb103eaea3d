"""Reads at the leader of a shard: linearizable, and neither ordered nor journaled. Pure.

Theory of operation. A transaction of one shard that only reads, and that nobody can repeat (NO_ID), is read in the
store of the replica that leads the shard, unless a slot of it has moved away by then. The protocol says from which
delivery p on that is fresh (`MulticastProtocol.on_read`, `multicast.parts.reads`), once for all that was asked in a
batch of the engine. When everything up to p is complete here, the read is executed on what is complete, and answered
with how much that was. Where the protocol does not know p, the read is ordered as any transaction.

Why that is strictly serializable, as if it had been ordered where it was read. Read r at position c >= p, and let
x < y mean that x precedes y in some shard's log. A transaction takes effect, and is answered, no earlier than it *and
everything below it* are delivered in all their shards. That is what signals are for (`kvstore.core.signals`), so this
holds only where they are on:
    Let x take effect in shard g, and z < x in shard h. If h = g, z took effect there before. Otherwise h has signalled
    x: either z had taken effect at the signaller, or z goes to a subset of x's shards; then each of these, g among
    them or having signalled x as well, had x in its log, and z before it. So z is delivered in all its shards by then;
    and so on down the chain.
- What was answered before r began took effect before, so it and everything below it is in this shard's log up to p, as
  far as it goes there, and r has seen that. Nothing that r has not seen, at a position after c, can be below it.
- What begins after r's answer was multicast when all that r has seen had taken effect. It can be below none of that:
  everything below was delivered by then.
- Reads that follow one another see what the earlier one has seen: that one's positions were delivered before.
Besides, what r has seen took effect here, at one position: a state that the shard was in.
"""

from __future__ import annotations

from collections import deque

from kvstore.api.model import RESULT_BYTES_MAX, Result, Transaction
from kvstore.core.execution import Execution, LocalPlan
from kvstore.core.log import Log
from kvstore.core.messages import Answered, Execute
from kvstore.core.moves import Moves, moved
from kvstore.core.peers import Peers
from kvstore.core.state import State
from multicast.protocol import ApplicationOutbox

Asked = list[tuple[int, Execute]]
"""Reads, each with the token of its client."""


class Reads:
    """Those of one replica. offered: the protocol answers `on_read`, and signals are on. at_leader: how many were
    answered so."""

    def __init__(self, peers: Peers, moves: Moves, store: State, log: Log, offered: bool):
        self.at_leader = 0
        self._peers = peers
        self._moves = moves
        self._store = store
        self._log = log
        self._offered = offered
        self._new: Asked = []
        self._asked: dict[int, Asked] = {}
        self._number = 0
        self._readable: deque[tuple[int, Asked]] = deque()
        self._open = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._open

    def takes(self, transaction: Transaction) -> bool:
        """Whether a transaction that only reads may be read here."""
        return self._offered and self._peers.leads and self._moves.map.shards_of(transaction) == (self._peers.shard,)

    def add(self, token: int, request: Execute) -> None:
        """Read it, or have it ordered (`on_readable`)."""
        self._open += 1
        self._new.append((token, request))

    def end_batch(self, out: ApplicationOutbox) -> None:
        """Ask the protocol for all of this batch."""
        if self._new:
            self._number += 1
            self._asked[self._number] = self._new
            self._new = []
            out.read(self._number)

    def on_readable(self, number: int, position: int | None, out: ApplicationOutbox) -> Asked:
        """See `Application.on_readable`. Returns what must be ordered."""
        asked = self._asked.pop(number)
        if position is None:
            self._open -= len(asked)
            return asked
        self._readable.append((position, asked))
        return self.advance(out)

    def advance(self, out: ApplicationOutbox) -> Asked:
        """Something has completed: read what waited for it. Returns what another shard has by now."""
        readable, completed, elsewhere = self._readable, self._log.completed, []
        while readable and readable[0][0] <= completed:
            for token, request in readable.popleft()[1]:
                self._open -= 1
                if moved([self._moves.told(request.transaction)], (self._peers.shard,)):
                    elsewhere.append((token, request))
                else:
                    out.answer(token, self._read(request.transaction))
        return elsewhere

    def _read(self, transaction: Transaction) -> Answered:
        self.at_leader += 1
        log, plan = self._log, LocalPlan(transaction)
        execution = Execution(self._store, log.version)
        execution.run(plan.success)
        omitted = execution.read_bytes > RESULT_BYTES_MAX
        results = () if omitted else tuple([result for _, result in execution.results])
        result = Result(True, log.version, results)
        return Answered(result, False, omitted, self._peers.shard, log.completed, self._store.complete_to)
