"""Skeen's protocol: one process per group (White-Box paper, Section III, Fig. 1).

Theory of operation. Every destination stamps a message with its own clock and tells the stamp to all destinations; the
maximum of the stamps is the message's final timestamp. A message is delivered when no other could still get a lower
one: its final timestamp is below the local stamps of all messages whose final timestamp is not known yet. Having
computed a final timestamp, a process never stamps below it again.

    message     from -> to                      when
    Multicast   sender -> destinations          multicast(m)
    Propose     destination -> destinations     it has stamped m
    Final       coordinator -> destinations     with the option `coordinator`: it has all stamps of m
    Reached     process -> itself               its clock is on disk, so far
    Watermark   destination -> destinations     periodically, for garbage collection (parts.delivered)
    Known       destination -> destination      it is told a new stamp of a message that it delivered long ago
                first destination -> sender     it has delivered m, and the sender is no destination
    Asked, Lacked, Copies                       between a sender that is no destination and the destinations
                                                (parts.submissions)

As printed, with four additions. The printed protocol assumes processes that never fail; ours may be stopped and come
back: every stamp is on disk before the Propose that tells it leaves, and every Propose is on disk before the link
acknowledges it. `Propose` carries m, so a destination that never got `Multicast` (its sender died between two sends)
stamps m then; and stamps that stay unanswered are told again, asking for the answer. A sender that is no destination
keeps m until it hears that m was delivered, and asks; one that is has sent m to itself, too. None of this delays a
failure-free run. And a message is delivered only when the clock that has passed its final timestamp is on disk: a
process whose power fails after the delivery and before the sync has the message pending again, and must not stamp
another one below it, which it would then deliver first. The own stamps on disk often say so already; if not, delivery
waits for one sync. There is no fault tolerance: while one process is away, messages to it wait.

With the option `coordinator` the stamps of m go to one process, the sender if it is a destination, else the first
destination's, which tells the maximum to all (Final): 3k messages for k destinations instead of k + k², for one delay
more (collision-free 3, failure-free 6). A final timestamp is saved before it is acknowledged. What a coordinator has
gathered is not: a destination that waits for too long asks all others for their stamps, as it does without a
coordinator, and finds the maximum by itself. Copies of m with different senders may have different coordinators; that
is how they get on.

Reads (`on_read`) need no message: nobody else delivers for the group, so what this process has delivered is all. In a
later life only once all is delivered that this life began with: a delivery may have been made and read before, and lost
with the power before it was on disk. Its stamp was, so it is among that.

Orderings relied on: none between links; a process's own Propose may arrive in any order.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush
from typing import Any, ClassVar

import msgspec

from multicast.parts import submissions
from multicast.parts.clock import Clock
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import DeliveredLog, Known, Watermark
from multicast.parts.inspection import DELIVERED, seen
from multicast.parts.pending import PendingQueue
from multicast.parts.retries import Retries
from multicast.parts.submissions import Submissions
from multicast.parts.window import Window
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, PeerError, Saved, Specification
from multicast.types import ZERO, AppMessage, GroupId, MessageId, ProcessId, Timestamp, Topology

_ENTRY_PREFIX = b"m"


class Multicast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Please order this message."""

    message: AppMessage


class Propose(msgspec.Struct, array_like=True, tag=2, gc=False):
    """My group's local timestamp of m. again: I lack yours; tell it once more."""

    message: AppMessage
    local: Timestamp
    again: bool = False


class Final(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The maximum of the local timestamps of m."""

    id: MessageId
    final: Timestamp


class Reached(msgspec.Struct, array_like=True, tag=4, gc=False):
    """From a process to itself: its clock is on disk up to here."""

    time: int


class SkeenOptions(Options, kw_only=True, forbid_unknown_fields=True):
    """coordinator: stamps go to one process, which tells their maximum: fewer messages, one delay more. retry_us: how
    long a stamp may stay unanswered until it is told again. stability_us: how often watermarks are told."""

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {"coordinator": (False, True)}

    coordinator: bool = False
    retry_us: int = 500_000
    stability_us: int = 100_000


class _Entry(msgspec.Struct, array_like=True):
    """A message that is not settled; also its saved form. stamps: group -> local timestamp, as far as known.
    told: the own stamp is on disk, so that it counts. final: the maximum, once it is known."""

    message: AppMessage
    stamps: dict[GroupId, Timestamp]
    delivered: bool = False
    told: bool = False
    final: Timestamp | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Entry).decode


class Skeen(MulticastProtocol):
    """One process. Fig. 1's Phase is PROPOSED while a stamp is missing and COMMITTED afterwards."""

    specification = Specification(
        name="skeen",
        summary="Skeen's protocol: singleton groups, two message delays, no fault tolerance",
        paper="Gotsman, Lefort, Chockler, White-Box Atomic Multicast, DSN 2019, Section III",
        options=SkeenOptions,
        messages=(Multicast, Propose, Final, Reached, Watermark, Known, *submissions.MESSAGES),
        housekeeping=(Reached, Watermark, Known, *submissions.MESSAGES),
        vouching=(Propose, Reached),
        fault_tolerant=False,
        genuine=True,
        strict_groups_max=1,
        leader_reads=True,
        latency=(2, 2),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        for group, members in topology.groups.items():
            if len(members) != 1:
                raise ValueError(f"skeen needs groups of one process; group {group} has {len(members)}")
        self._clock = Clock(self.options.clock)
        self._clock_on_disk = 0
        self._above: list[tuple[Timestamp, MessageId]] = []
        self._reaching = 0
        self._restored: list[MessageId] = []
        self._entries: dict[MessageId, _Entry] = {}
        self._queue = PendingQueue()
        self._window = Window(self.options.dedup_window_us)
        self._log = DeliveredLog(self_id, topology, self.options.stability_us, self.options.dedup_window_us)
        self._retries: Retries[MessageId] = Retries(self.options.retry_us, rng)
        self._submissions = Submissions(
            topology, self._entry_points, self.options.retry_us, rng, delivered_at=self._delivered_at,
            lacks=lambda message_id: message_id not in self._entries, take=self._on_copy,
            on_known=self._on_known,
        )  # fmt: skip
        self._deadlines = Deadlines({"stamps": self._ask_for_stamps, "submissions": self._submissions.tick})
        self.handlers = {
            Multicast: Handler(self._on_multicast), Propose: Handler(self._on_propose), Final: Handler(self._on_final),
            Reached: Handler(self._on_reached), Watermark: Handler(self._on_watermark), Known: Handler(self._on_known),
            **self._submissions.handlers,
        }  # fmt: skip

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        return self.topology.members(message.destinations)

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        for key, value in saved.values.items():
            if key[:1] == _ENTRY_PREFIX:
                self._entries[key[1:]] = _decode(value)
        self._log.restore(saved.values, saved.position, self._destinations)
        self._clock.advance(self._log.timestamp.time)
        for message_id, entry in self._entries.items():
            known = self._log.known(message_id)
            entry.delivered = known is not None and entry.stamps[self.group] <= known[0]
            entry.told = True
            for stamp in (*entry.stamps.values(), entry.final or ZERO):
                self._clock.advance(stamp.time)
        self._clock_on_disk = self._clock.value
        for message_id, entry in self._entries.items():
            if not entry.delivered:
                self._queue.propose(message_id, entry.stamps[self.group])
                self._retries.add(message_id, now)
                self._deadlines.by("stamps", now + self.options.retry_us)
                self._commit_if_complete(message_id, entry)
        self._restored = [i for i, entry in self._entries.items() if not entry.delivered]
        self._deliver(out)

    def _destinations(self, message_id: MessageId, delivered_at: Timestamp) -> tuple[GroupId, ...] | None:
        entry = self._entries.get(message_id)
        return entry.message.destinations if entry and entry.stamps[self.group] <= delivered_at else None

    # -- ordering -----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.refuse_beyond_limit(max(len(self._queue), len(self._submissions)))
        if self.group not in message.destinations:
            self._submissions.add(message, now)
            self._deadlines.by("submissions", now + self.options.retry_us)
        out.send(self._entry_points(message), Multicast(message))

    def _check_destinations(self, message: AppMessage) -> None:
        groups = message.destinations
        if self.group not in groups or any(g not in self.topology.groups for g in groups):
            raise PeerError(f"a message for groups {groups} at group {self.group}")

    def _delivered_at(self, message_id: MessageId) -> Timestamp | None:
        """When this process delivered a message of which it has no later copy."""
        entry, known = self._entries.get(message_id), self._log.known(message_id)
        return known[0] if known is not None and (entry is None or entry.delivered) else None

    def _on_copy(self, sender: ProcessId, message: AppMessage, now: int, out: Outbox) -> None:
        self._stamp(message, now, out)

    def _on_multicast(self, sender: ProcessId, multicast: Multicast, now: int, out: Outbox) -> None:
        self._stamp(multicast.message, now, out)

    def _stamp(self, message: AppMessage, now: int, out: Outbox) -> _Entry | None:
        """Fig. 1, lines 8-12: stamp the message, unless that was done. None if it is settled already."""
        self._check_destinations(message)
        entry = self._entries.get(message.id)
        if entry is not None or self._log.known(message.id):
            return entry
        local = Timestamp(self._clock.stamp(self.real_clock(now)), self.group)
        entry = self._entries[message.id] = _Entry(message, {self.group: local})
        self._queue.propose(message.id, local)
        self._retries.add(message.id, now)
        self._deadlines.by("stamps", now + self.options.retry_us)
        self._save(entry, out)
        self._propose(entry, self._addressees(message), False, out)
        return entry

    def _addressees(self, message: AppMessage) -> tuple[ProcessId, ...]:
        """The processes to which a new stamp is told."""
        if self.options.coordinator:
            return (self._coordinator(message),)
        return self.topology.members(message.destinations)

    def _coordinator(self, message: AppMessage) -> ProcessId:
        if self.topology.group_of.get(message.origin) in message.destinations:
            return message.origin
        return self.topology.groups[message.destinations[0]][0]

    def _propose(self, entry: _Entry, to: tuple[ProcessId, ...], again: bool, out: Outbox) -> None:
        out.send_durable(to, Propose(entry.message, entry.stamps[self.group], again))

    def _on_propose(self, sender: ProcessId, propose: Propose, now: int, out: Outbox) -> None:
        """Fig. 1, lines 13-19: take another group's stamp, and commit when all are there."""
        group = self.topology.group_of[sender]
        if group not in propose.message.destinations:
            raise PeerError(f"group {group} stamps a message that is not for it")
        entry = self._stamp(propose.message, now, out)
        known = self._log.known(propose.message.id)
        if known is not None and (
            entry is None or (entry.delivered and entry.stamps.get(group, propose.local) != propose.local)
        ):
            out.send((sender,), Known(propose.message.id, known[0]))
            return
        assert entry is not None
        if propose.again and sender != self.self_id:
            self._propose(entry, (sender,), False, out)
        first = entry.stamps.setdefault(group, propose.local)
        if first != propose.local:
            # A group may drop its stamp of an expired copy, when it hears that m was delivered long ago (Known), and
            # stamp the next copy anew.
            if not self._window.is_late(propose.message.id, propose.local.time):
                raise PeerError(f"group {group} has stamped a message twice, {first} and {propose.local}")
            if entry.final is None and first < propose.local:
                entry.stamps[group] = propose.local
        self._retries.answered(propose.message.id)
        if sender == self.self_id:
            entry.told = True
            self._clock_on_disk = max(self._clock_on_disk, propose.local.time)
        else:
            self._save(entry, out)
        if not entry.delivered:
            was_known = entry.final is not None
            self._commit_if_complete(propose.message.id, entry)
            if self.options.coordinator and not was_known and entry.final is not None:
                self._tell_final(entry, out)
            self._deliver(out)

    def _tell_final(self, entry: _Entry, out: Outbox) -> None:
        if self._coordinator(entry.message) == self.self_id:
            assert entry.final is not None
            members = self.topology.members(entry.message.destinations)
            out.send(members, Final(entry.message.id, entry.final))

    def _on_final(self, sender: ProcessId, message: Final, now: int, out: Outbox) -> None:
        entry = self._entries.get(message.id)
        if entry is None or entry.delivered or message.final < entry.stamps[self.group]:
            return  # settled or delivered, or the coordinator's answer to a copy that this process has forgotten
        if entry.final is None:
            entry.final = message.final
            self._save(entry, out)
            self._commit_if_complete(message.id, entry)
            self._deliver(out)
        elif entry.final != message.final:
            raise AssertionError(f"{message.id.hex()} has final timestamps {entry.final} and {message.final}")

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        """The message was delivered elsewhere: it need not be submitted again. If this process holds it as pending
        although its deliveries are beyond that, it has forgotten the message and stamped a late copy, and drops
        that."""
        self._submissions.remove(known.id)
        entry = self._entries.get(known.id)
        if entry is not None and not entry.delivered and known.final <= self._log.timestamp:
            self._drop([known.id], out)
            self._queue.remove(known.id)
            self._log.recall(known.id, known.final, out)
            self._deliver(out)

    def _commit_if_complete(self, message_id: MessageId, entry: _Entry) -> None:
        """Fig. 1, lines 14-16: the final timestamp, once all stamps are known. The message is committed when the clock
        is on disk up to there."""
        if entry.final is None and entry.told and len(entry.stamps) == len(entry.message.destinations):
            entry.final = max(entry.stamps.values())
        if entry.final is not None:
            self._clock.advance(entry.final.time)  # line 15
            self._retries.discard(message_id)
            if entry.final.time <= self._clock_on_disk:
                self._queue.commit(message_id, entry.final)
            else:
                heappush(self._above, (entry.final, message_id))
                self._reaching = max(self._reaching, entry.final.time)

    def _on_reached(self, sender: ProcessId, reached: Reached, now: int, out: Outbox) -> None:
        if sender != self.self_id:
            raise PeerError("another process's clock")
        self._clock_on_disk = max(self._clock_on_disk, reached.time)
        while self._above and self._above[0][0].time <= self._clock_on_disk:
            final, message_id = heappop(self._above)
            entry = self._entries.get(message_id)
            if entry is not None and entry.final == final and not entry.delivered:
                self._queue.commit(message_id, final)
        self._deliver(out)

    def _deliver(self, out: Outbox) -> None:
        """Fig. 1, lines 17-19: deliver what nothing lower can precede any more."""
        while (due := self._queue.pop()) is not None:
            final, message_id = due
            entry = self._entries[message_id]
            entry.delivered = True
            self._log.add(message_id, entry.message.destinations, final, out)
            out.deliver(entry.message, final)
            self._tell_sender(entry.message, final, out)

    def _tell_sender(self, message: AppMessage, final: Timestamp, out: Outbox) -> None:
        """Tell a sender that is no destination, and so cannot see the delivery. Only the first destination does; by
        then all have the message."""
        origin = self.topology.group_of.get(message.origin)
        if self.group == message.destinations[0] and origin is not None and origin not in message.destinations:
            out.send((message.origin,), Known(message.id, final))

    def _save(self, entry: _Entry, out: Outbox) -> None:
        out.put(_ENTRY_PREFIX + entry.message.id, _encode(entry), carries=(entry.message,))

    # -- reads --------------------------------------------------------------------------------------------------------

    def on_read(self, token: int, now: int, out: Outbox) -> None:
        restored = self._restored
        while restored and (restored[-1] not in self._entries or self._entries[restored[-1]].delivered):
            restored.pop()
        out.may_read(token, self._log.position if not restored else None)

    # -- garbage, timers ----------------------------------------------------------------------------------------------

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self._drop(self._log.durable(position, out), out)

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        self._drop(self._log.on_watermark(sender, told, out), out)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        for message_id in settled:
            del self._entries[message_id]
            out.delete(_ENTRY_PREFIX + message_id)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self._log.forget_reports(peer)

    def end_batch(self, now: int, out: Outbox) -> None:
        if self._reaching:  # the stamps that make up the maximum are saved with this batch
            out.send_durable((self.self_id,), Reached(self._reaching))
            self._reaching = 0
        self._log.end_batch(out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        return earliest(self._log.tick(now, out), self._deadlines.run(now, out))

    def _ask_for_stamps(self, now: int, out: Outbox) -> int:
        for message_id in self._retries.due(now):
            entry = self._entries.get(message_id)
            if entry is None or entry.final is not None:
                self._retries.discard(message_id)
                continue
            missing = [g for g in entry.message.destinations if g not in entry.stamps]
            if not entry.told:
                missing.append(self.group)
            self._propose(entry, self.topology.members(missing), True, out)
        return self._retries.wake(now)

    # -- for people ---------------------------------------------------------------------------------------------------

    def waits_for(self) -> tuple[GroupId, ...]:
        lowest = self._queue.lowest_proposed()
        entry = self._entries.get(lowest[1]) if lowest is not None else None
        return tuple(g for g in entry.message.destinations if g not in entry.stamps) if entry is not None else ()

    def describe(self) -> dict[str, Any]:
        return {"clock": self._clock.value, "pending": len(self._queue), "unsettled": self._log.unsettled}

    def inspect(self) -> dict[str, Any]:
        blocked = self._queue.blockers()
        messages = {}
        for message_id, entry in self._entries.items():
            phase = DELIVERED if entry.delivered else "proposed" if entry.final is None else "committed"
            messages[message_id.hex()] = seen(
                phase, entry.stamps[self.group], entry.final, blocked.get(message_id, ()), entry.stamps
            )
        return {**super().inspect(), "messages": messages}
