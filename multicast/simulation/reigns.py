"""What a process knows of one ballot goes with it: nothing of an earlier one counts in the next.

A candidate's votes are for the ballot that it stands for. Who leads counts on what it has proposed itself, in this
ballot: on a null or a cast that is under way, on what it has announced. A follower appends what the leader of its
present epoch proposes, and nothing once it has promised another; what was delivered is not pending in it again, and
what is undelivered in the T with which it begins it acknowledges.
Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multicast.parts.group_log import Advance, _decode_command
from multicast.parts.stream import Cast, Null, _decode_value
from multicast.records import Delivered
from multicast.simulation.checkers import Checker
from multicast.types import ZERO, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]

_FIRST_NUMBER = 1


class Reigns(Checker):
    """Of every protocol that elects leaders."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self.topology = topology

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        election: Any = node.protocol.election
        if election is None or not election._votes:
            return
        for sender, vote in election._votes.items():
            if vote.ballot != election.promised:
                self.wrong(node, f"counts process {sender}'s vote for {tuple(vote.ballot)}")

    def wrong(self, node: Node, text: str) -> None:
        election: Any = node.protocol.election
        self.report("reign", f"process {node.pid} in {tuple(election.promised)} {text}")


class ReplicatedReigns(Reigns):
    """A leader knows what waits, and what is in flight, in its group."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._judged: dict[ProcessId, Ballot] = {}

    def on_life(self, node: Node) -> None:
        self._judged.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        member: Any = node.protocol.member  # type: ignore[attr-defined]
        if not member.reign.acting:
            return
        if self._judged.get(node.pid) != member.reign.ballot:
            self._judged[node.pid] = member.reign.ballot
            waiting = {e.local.encode() for e in (*member.log.undelivered(), *member.reign.in_flight.values())}
            if waiting != member.log.queue._proposed.keys() | member.log.queue._committed.keys():
                self.wrong(node, f"begins with another queue than {len(waiting)} messages that wait")
            self._judge_raised(node, member, sends)
        if handler != "on_install":
            return
        entry = member.entry_of(args[1].id)
        proposed = {e.local for e in member.reign.in_flight.values()}
        if entry is not None and not entry.logged and entry.local not in proposed:
            self.wrong(node, f"leads on, and its group delivers {entry.local}, which it has not stamped")


    def _judge_raised(self, node: Node, member: Any, sends: Sends) -> None:
        """It counts on no move of the clock but those that are decided, or that it has proposed itself."""
        accepts = [m for _, m, _ in sends if type(m).__name__ == "Accept" and m.ballot == member.reign.ballot]
        values = [*member.paxos._queue, *(value for accept in accepts for value in accept.values)]
        moves = [c.final.time for c in map(_decode_command, values) if type(c) is Advance]
        if member.reign.raised_to > max(member.log.clock, *moves, 0):
            self.wrong(node, f"counts on a move of the clock to {member.reign.raised_to}, which is not under way")


class WhiteBoxReigns(Reigns):
    """A leader whose group delivers a message under another stamp than its own leads no more."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._stamped: dict[ProcessId, dict[bytes, tuple[Ballot, Timestamp]]] = {}

    def on_life(self, node: Node) -> None:
        self._stamped[node.pid] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        protocol: Any = node.protocol
        leadership = protocol.leadership
        stamped = self._stamped[node.pid]
        for _, message, _ in sends:
            if type(message).__name__ == "Accept" and message.ballot == leadership.joined:
                stamped[message.id] = (message.ballot, message.local)
        if handler == "on_install" and protocol.election.state == "leader" and args[1].id in stamped:
            ballot, local = stamped[args[1].id]
            if ballot == leadership.joined and local != Timestamp.decode(args[3]):
                self.wrong(node, f"leads on, and its group delivers {args[1].id.hex()}, which it has stamped {local}")


class PrimCastReigns(Reigns):
    """Epochs. What a process has delivered it need not know of any more, but it is not in its T as undelivered."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._delivered: dict[tuple[GroupId, MessageId], tuple[int, Timestamp]] = {}
        self._looked: dict[ProcessId, tuple[int, int]] = {}
        self._judged: dict[ProcessId, Ballot] = {}
        self._begun: dict[ProcessId, Ballot] = {}

    def on_life(self, node: Node) -> None:
        self._judged.pop(node.pid, None)
        self._begun.pop(node.pid, None)

    def on_deliver(self, node: Node, delivery: Delivered, replay: bool) -> None:
        group = self.topology.group_of[node.pid]
        self._delivered[group, delivery.message.id] = delivery.position, delivery.timestamp

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        protocol: Any = node.protocol
        leadership, t = protocol.leadership, protocol.t
        for stamp in t._expected.values():
            if not stamp.epoch == leadership.joined == protocol.election.promised:
                self.wrong(node, f"is to append what was proposed in {tuple(stamp.epoch)}")
        looks = (len(protocol.entries), protocol.log.position)
        if self._looked.get(node.pid) != looks:
            self._looked[node.pid] = looks
            for entry in protocol.entries.values():
                if entry.epoch is None or entry.position:
                    continue
                position, at = self._delivered.get((entry.group, entry.id), (0, ZERO))
                was_delivered = 0 < position <= protocol.log.position and entry.ts <= at.time
                if was_delivered or protocol.copies.delivered_as(entry.id, entry.ts):
                    self.wrong(node, f"has {entry.id.hex()} in T again, which it has delivered")
        if protocol.election.takes_part and self._begun.get(node.pid) != leadership.joined:
            self._begun[node.pid] = leadership.joined
            self._judge_begin(node, protocol, sends)
        view = leadership.joined.view
        if view and protocol.election.state == "leader" and self._judged.get(node.pid) != leadership.joined:
            self._judged[node.pid] = leadership.joined
            for entry in protocol.entries.values():
                if entry.epoch is not None and not entry.position and entry.epoch.view < view:
                    self.wrong(node, f"counts on {entry.id.hex()} as stamped in an earlier view: {tuple(entry.epoch)}")


    def _judge_begin(self, node: Node, protocol: Any, sends: Sends) -> None:
        """Line 81: whoever begins to take part acknowledges what is undelivered in its T, unless it has done so."""
        pending = {key for some in protocol._acks.values() for key in some}
        acks = [message for _, message, _ in sends if type(message).__name__ == "Ack"]
        pending.update((stamp.id, stamp.epoch, stamp.ts) for ack in acks for stamp in ack.stamps)
        for entry in protocol.entries.values():
            if entry.epoch is None or entry.message is None or entry.position:
                continue
            if (entry.id, entry.epoch, entry.ts) not in pending and not entry.is_acknowledged_by(node.pid):
                self.wrong(node, f"has {entry.id.hex()} in T, and does not acknowledge it")


class BarrierReigns(Reigns):
    """What the leader of a quasi-genuine group begins with."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._judged: dict[ProcessId, Ballot] = {}
        self._proposed: dict[ProcessId, dict[int, tuple[Ballot, list[bytes]]]] = {}

    def on_life(self, node: Node) -> None:
        self._proposed[node.pid] = {}
        self._judged.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        protocol: Any = node.protocol
        proposed = self._proposed[node.pid]
        for _, message, _ in sends:
            if type(message).__name__ == "Accept":
                proposed[message.instance] = (message.ballot, message.values)
        leader, paxos = protocol._leading(), protocol.paxos
        if leader is None or self._judged.get(node.pid) == paxos.promised:
            return
        self._judged[node.pid] = paxos.promised
        for instance in [k for k, (of, _) in proposed.items() if of != paxos.promised]:
            del proposed[instance]
        self._judge(node, leader, protocol.stream.base, list(self._under_way(leader, paxos, proposed)))
        for instance, values in leader._announced:
            if proposed.get(instance) != (paxos.promised, values):
                self.wrong(node, f"counts on instance {instance}, which it has not proposed")
        if leader._ahead is not None and leader._ahead.instance > max(protocol.stream.base.instance, *proposed, 0):
            self.wrong(node, f"announces from instance {leader._ahead.instance} on")

    @staticmethod
    def _under_way(leader: Any, paxos: Any, proposed: dict[int, tuple[Ballot, list[bytes]]]) -> Iterator[Cast | Null]:
        """What is proposed and not decided, or about to be proposed."""
        for instance, (_, values) in proposed.items():
            if instance > paxos.decided:
                yield from map(_decode_value, values)
        yield from map(_decode_value, paxos._queue)
        for *_, value in leader._due:
            yield _decode_value(value)

    def _judge(self, node: Node, leader: Any, base: Any, under_way: list[Cast | Null]) -> None:
        nulls = [base.last, *(value.stamp for value in under_way if isinstance(value, Null))]
        casts = {(c.sender, c.life, c.number) for c in under_way if isinstance(c, Cast)}
        if leader._null > max(nulls):
            self.wrong(node, f"counts on a null at {leader._null}, which is not under way")
        for stamp in leader._due_nulls - set(nulls):
            self.wrong(node, f"counts on a null at {stamp}, which is not due")
        for group, stamps in leader.wanted._stamps.items():
            if stamps[-1] > max(nulls):
                self.wrong(node, f"lets group {group} wait for {stamps[-1]}, and no null is under way")
        for sender, (life, number) in leader._expected.items():
            if base.casts.get(sender) != (life, number) and (sender, life, number) not in casts:
                self.wrong(node, f"expects what follows cast {life}/{number} of {sender}, which is not under way")
