"""What a process keeps twice agrees: an index with what it indexes, a heap with what is to be taken from it, a flag
with what it is about.

Most of that is there to be quick, so that a wrong entry costs a message its turn, or a question its repetition, only in
a rare schedule. Judged now and then when a process comes to rest. What has come in part over a link is forgotten when
that is reset: else later portions would be put to it. Like in `invariants`, variables of protocols are known by name
only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multicast.parts.accepts import ACCEPTED, COMMITTED, PROPOSED
from multicast.parts.ballots import LEADER
from multicast.parts.portions import Assembly
from multicast.protocol import MulticastProtocol
from multicast.simulation.checkers import Checker
from multicast.simulation.leftovers import consists_of
from multicast.types import ZERO, Topology, reached_by_majority

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[int, ...], Any, bool]]

_LOOK_EVERY = 8
"""Batches: what is wrong stays so for a while."""
_PAUSE_PERIODS = 5
"""No question is repeated later than that: `parts.retries` draws a quarter on four of them."""


class Books(Checker):
    """Of every protocol."""

    watches_protocol = True
    watches_idle = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._assemblies: dict[int, tuple[MulticastProtocol, list[Assembly[Any]]]] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        if handler == "on_peer_reset":
            for _ in [one for one in self._of(node) if args[0] in one._lists]:
                text = f"has portions of process {args[0]}, and the rest will not come: the link was reset"
                self.report("books", f"process {node.pid} {text}")
        if handler != "on_tick" or node.engine._batch.number % _LOOK_EVERY:
            return
        for text in _differences(node):
            self.report("books", f"process {node.pid} ({node.protocol.role()}): {text}")

    def _of(self, node: Node) -> list[Assembly[Any]]:
        """What this life puts portions together with; that is there from its beginning."""
        protocol, found = self._assemblies.get(node.pid, (None, []))
        if protocol is not node.protocol:
            found = [one for one, _ in consists_of(node.protocol) if isinstance(one, Assembly)]
            self._assemblies[node.pid] = node.protocol, found
        return found


def _differences(node: Node) -> Iterator[str]:
    protocol: Any = node.protocol
    parts = vars(protocol)
    asks = ("_retries", "_submissions", "_payloads")
    for name in asks:
        if name in parts:
            yield from _of_retries(name, getattr(parts[name], "_retries", parts[name]))
    log = parts.get("log", parts.get("_log"))
    if hasattr(log, "_unsettled_count"):
        many = sum(map(len, log._unsettled.values()))
        if log._unsettled_count != many:
            yield f"{many} deliveries are not settled, it counts {log._unsettled_count}"
        yield from _of_watermarks(protocol, log)
    if "member" in parts:
        queue = protocol.member.log.queue
        yield from _of_group_log(protocol.member.log)
        for entry in protocol.member.log.undelivered():
            if protocol.stamps.get(entry.message.id, {}).get(protocol.group) is None:
                yield f"{entry.local} is its group's stamp of a message that waits, and is not held"
    else:
        queue = parts.get("_queue")
    if hasattr(queue, "_proposed"):
        yield from _of_queue(queue)
    consensus: Any = getattr(parts.get("member", protocol), "paxos", None)
    if hasattr(consensus, "instances"):
        yield from _of_instances(consensus.instances)
    if "channels" in parts:
        yield from _of_waiting(protocol.channels.waiting)
        for pending in protocol.channels.waiting.items.values():
            acked = protocol.channels.of[pending.source].acked if pending.source != protocol.group else 0
            if pending.number <= acked and not pending.saved:
                yield f"number {pending.number} of group {pending.source} is acknowledged, and not known as saved"
        yield from _of_receipts(protocol)
        life, number = protocol._own_last()
        if any(cast.life == life and cast.number <= number for cast in protocol._casts):
            yield f"it repeats what it has cast, and up to number {number} all is decided"
    if "t" in parts:
        yield from _of_sequence(protocol)
    if protocol.specification.name == "white_box" and protocol.election.state is LEADER:
        yield from _of_leader(protocol)
    if protocol.election is not None and protocol.election.is_member:
        yield from _of_detector(node, protocol.election)


def _of_instances(instances: Any) -> Iterator[str]:
    """What is decided is not open, and what is dropped is gone."""
    for name in ("_voters", "_chosen"):
        if old := [k for k in getattr(instances, name) if k <= instances.decided]:
            yield f"instance {min(old)} is in {name}, and all up to {instances.decided} are decided"
    if old := [k for k in instances.accepted if k < instances.low]:
        yield f"instance {min(old)} is accepted, and all below {instances.low} are dropped"


def _of_retries(name: str, retries: Any) -> Iterator[str]:
    """What waits will be due, soon, and is known from when on it has waited."""
    waiting, heap = retries._waiting, {(count, key) for _, count, key in retries._heap}
    latest = retries._now + _PAUSE_PERIODS * retries.period_us
    for due, count, key in retries._heap:
        if due > latest and waiting.get(key) == count:
            yield f"{name}: {key!r} is asked about in {due - retries._now} us, with a period of {retries.period_us}"
    for key, count in waiting.items():
        if (count, key) not in heap:
            yield f"{name}: {key!r} waits, and is never due"
    if not waiting.keys() == retries._times.keys() == retries._since.keys():
        yield f"{name}: {len(waiting)} wait; {len(retries._times)} are counted, {len(retries._since)} are timed"
    if not retries._asked.keys() <= waiting.keys():
        yield f"{name}: an answer about {min(retries._asked.keys() - waiting.keys())!r} is awaited, and not wanted"
    if asked := retries._asked.items() - {(key, expiry) for expiry, key in retries._expiry}:
        yield f"{name}: an answer about {min(asked)[0]!r} is awaited for ever"


def _of_queue(queue: Any) -> Iterator[str]:
    for known, heap in ((queue._proposed, queue._local), (queue._committed, queue._global)):
        entries = set(heap)
        for message_id, timestamp in known.items():
            if (timestamp, message_id) not in entries:
                yield f"{message_id.hex()} at {timestamp} never gets its turn"
    if both := queue._proposed.keys() & queue._committed.keys():
        yield f"{min(both).hex()} has its timestamp, and keeps others waiting for one"


def _of_group_log(log: Any) -> Iterator[str]:
    locals_: dict[bytes, list[Any]] = {}
    for local, entry in log.entries.items():
        locals_.setdefault(entry.message.id, []).append(local)
    if {i: sorted(some) for i, some in log._locals.items()} != {i: sorted(some) for i, some in locals_.items()}:
        yield f"its entries are {locals_}, by their messages {log._locals}"
    uncovered = set(log._uncovered)
    for local, entry in log.entries.items():
        final = entry.final
        if final is not None and not entry.position and not log.covers(final) and (final, local) not in uncovered:
            yield f"{local} at {final} is not looked at when the clock has come so far"


def _of_watermarks(protocol: Any, log: Any) -> Iterator[str]:
    """What a majority of a group has said to have delivered, the others need not say, too, who may be dead."""
    topology = protocol.topology
    for group in topology.groups:
        told = [[log._watermarks.get(p, ZERO) for p in members] for members in topology.counting(group)]
        reached = min(map(reached_by_majority, told))
        if group == topology.group_of[protocol.self_id]:
            reached = min(reached, log.watermark)
        if log._group_watermarks[group] < reached:
            yield f"{log._group_watermarks[group]} counts as the watermark of group {group}, and most are at {reached}"


def _of_receipts(protocol: Any) -> Iterator[str]:
    """So it is with what a majority has said to have received."""
    stream, groups, leader = protocol.stream, protocol.topology.groups, protocol._leading()
    for group in () if leader is None else leader.wanted.groups():
        if leader.wanted.reached(group, stream.base.last):
            yield f"group {group} waits for a barrier that this one has reached"
    for group in (stream.group, *stream._receivers):
        reached = reached_by_majority(stream._acks[p] for p in groups[group])
        if stream.quorum_has(group) != reached:
            yield f"most of group {group} have {reached} of its messages, it counts on {stream.quorum_has(group)}"


def _of_waiting(waiting: Any) -> Iterator[str]:
    if waiting._copies != Counter(pending.message.id for pending in waiting.items.values()):
        yield f"of {len(waiting.items)} messages that wait it counts {sum(waiting._copies.values())}"
    if sorted(waiting._heap) != sorted(waiting.items):
        yield "what waits is not what gets its turn"


def _of_leader(protocol: Any) -> Iterator[str]:
    """White-Box: what is not delivered keeps what is stamped later waiting."""
    queue, entries = protocol._queue, protocol.entries
    for e in entries.values():
        if e.phase in (PROPOSED, ACCEPTED) and queue._proposed.get(e.id) != e.local:
            yield f"{e.id.hex()} stamped {e.local} waits as of {queue._proposed.get(e.id)}"
        elif e.phase == COMMITTED and not e.position and not e.sent and queue._committed.get(e.id) != e.final:
            yield f"{e.id.hex()} with timestamp {e.final} waits as of {queue._committed.get(e.id)}"
    if strange := queue._proposed.keys() - entries.keys():
        yield f"{min(strange).hex()} keeps others waiting, and is not known"


def _of_sequence(protocol: Any) -> Iterator[str]:
    """PrimCast: what T has that is not delivered keeps what is stamped later waiting, and nothing else does. It has
    that in its place, and in no other."""
    queue, entries = protocol._queue, protocol.entries.values()
    waiting = {e.id for e in entries if e.epoch is not None and e.message is not None and not e.position}
    queued = queue._proposed.keys() | queue._committed.keys()
    if odd := waiting ^ queued:
        yield f"{min(odd).hex()} is in T and not delivered: {min(odd) in waiting}, but it waits: {min(odd) in queued}"
    places = protocol.t._places
    for place, e in places.items():
        if e.place != place or protocol.entries.get(e.id) is not e:
            yield f"T has {e.id.hex()} at place {place}, which takes itself to be at {e.place}"
    for e in entries:
        if e.place >= 0 and e.place not in places:
            yield f"{e.id.hex()} takes itself to be at place {e.place} of T, where nothing is"


def _of_detector(node: Node, election: Any) -> Iterator[str]:
    detector, away = election.detector, node.engine._catch_up.away
    if detector.reach.lost.keys() != away:
        yield f"it takes {set(detector.reach.lost)} for disconnected, which are {away}"
    elif detector._timer.cut_off != (election.promised.leader in away):
        yield f"cut off from its leader: {detector._timer.cut_off}, and {away} are away"
