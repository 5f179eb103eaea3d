"""A group that acts as one process of Skeen's protocol: the log of its stamps, and what is to be delivered by it.

Theory of operation. The log, decided by consensus (parts.paxos), holds commands. *Assign*(m, lts) gives m the group's
local timestamp, *Advance*(m, gts) moves the group's clock to a global timestamp. The group's state (clock, assigned
messages, certain global timestamps) is a function of the log alone, so that any member can go on from it. Only the
leader proposes. It stamps from a clock of its own, which starts at the log's and is always above every stamp in the
log. A message with a known global timestamp is due when the log's clock has reached it, and no message with a lower
local timestamp lacks its global one (parts.pending).

Who may deliver what is due. Let m have global timestamp 6, and let the leader's stamping clock move to 6 when the
Advance to it is decided. m' arrives between proposal and decision, is stamped 2, and comes *later* in the log than the
Advance. The leader knows of m' and delivers it first; whoever applies the log by itself would deliver m first. So one
of two rules:
- early_clock: the clock moves when the Advance is *proposed*. Then local timestamps rise in the order of the log, and
  after an Advance to 6 nothing below 6 can follow: all members deliver by the log alone.
- otherwise only the leader delivers by the log and by what it has in flight (parts.reign), and the others on its word
  (`Deliver`). A deposed leader that does not know it yet may go on doing so: what it delivers at t has raised the log's
  clock to t in a decided instance, which every later leader applies before it stamps anything. It stops when it sees a
  command of a higher ballot in the log, since its knowledge of what is in flight ends there.

Void commands. Consensus on single instances does not keep a deposed leader's commands out of the log: one that was
accepted by few may be unknown to the next leader and be found, and proposed again, by the one after that. So every
command names the ballot of the leader that made it, a command below the highest ballot seen so far in the log is void,
and a new leader's first command, *Begin*, does nothing else than to make it so.

Garbage. An entry goes when its message is settled (parts.delivered): a quorum of each destination group has delivered
it, so by the rule above every later leader has. A delivery may be installed from a peer's journal before its Assign is
applied here (`Entry.logged`); then its entry stays until it is.

Entries are kept by local timestamp, not by id: with a deduplication window ids are forgotten after two windows, so a
copy that comes later is assigned anew, and delivered expired, maybe while the first one is not settled everywhere.

Durable: the state is saved with each instance, in the batch that applies it: `g` -> instance, clock, highest ballot;
`m` + local timestamp -> an entry. Deliveries: the journal and parts.delivered; their note is the local timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, ClassVar

import msgspec

from multicast.parts.delivered import DeliveredLog
from multicast.parts.pending import PendingQueue
from multicast.parts.portions import portions
from multicast.parts.window import Window
from multicast.protocol import Outbox, Saved
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp

_BASE_KEY = b"g"
_ENTRY_PREFIX = b"m"


class Begin(msgspec.Struct, array_like=True, tag=0, gc=False):
    """Command: from here on nothing of a lower ballot counts."""

    ballot: Ballot


class Assign(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Command: m has this local timestamp. ballot: of the leader that proposed it."""

    ballot: Ballot
    local: Timestamp
    message: AppMessage


class Advance(msgspec.Struct, array_like=True, tag=2, gc=False):
    """Command: move the clock to `final`. certain: it is the global timestamp of the message assigned `local`."""

    ballot: Ballot
    local: Timestamp
    final: Timestamp
    certain: bool


Command = Begin | Assign | Advance


class SavedEntry(msgspec.Struct, array_like=True, gc=False):
    """An assigned message. final: if it is certain. logged: its Assign was applied here; False: installed before, as
    the delivery at this position."""

    message: AppMessage
    local: Timestamp
    final: Timestamp | None
    logged: bool
    position: int = 0


class State(msgspec.Struct, array_like=True, tag=9, gc=False):
    """The log up to `instance` amounts to this clock, this highest ballot and these entries, but for what is delivered
    up to `position`. unlogged: local timestamps of such deliveries whose Assigns come after that instance. items: some
    of the entries, portion `number` of `count` (parts.transfer)."""

    bulk: ClassVar[bool] = True
    position: int
    instance: int
    clock: int
    seen: Ballot
    unlogged: list[Timestamp]
    items: list[SavedEntry]
    number: int
    count: int


class Entry:
    """A message with a local timestamp that is not settled.

    final: its global timestamp, if it is known. position: of its delivery here, 0 before. logged: see `SavedEntry`.
    settled: it goes once it is logged. raised, concluded: an Advance for it was proposed in this reign, to an estimate
    or to the certain timestamp.
    """

    __slots__ = ("concluded", "final", "local", "logged", "message", "position", "raised", "settled")

    def __init__(self, message: AppMessage, local: Timestamp, logged: bool):
        self.message = message
        self.local = local
        self.final: Timestamp | None = None
        self.position = 0
        self.logged = logged
        self.settled = False
        self.raised = False
        self.concluded = False

    def saved(self) -> SavedEntry:
        return SavedEntry(self.message, self.local, self.final, self.logged, 0 if self.logged else self.position)


class Deliver(msgspec.Struct, array_like=True, tag=4, gc=False):
    """Deliveries of the group: (position, local, final)."""

    items: list[tuple[int, Timestamp, Timestamp]]


encode_command = _encode = msgspec.msgpack.Encoder().encode
_decode_command = msgspec.msgpack.Decoder(Command).decode
_decode_entry = msgspec.msgpack.Decoder(SavedEntry).decode
_decode_base = msgspec.msgpack.Decoder(tuple[int, int, Ballot]).decode


def carried(values: list[bytes]) -> list[AppMessage]:
    """The messages in commands that are decided together."""
    return [command.message for command in map(_decode_command, values) if type(command) is Assign]


class GroupLog:
    """A group's log as one member has applied it.

    early_clock: see "Who may deliver". window: the deduplication window. delivered: this member's own.
    clock, instance, seen: of the log; seen is the highest ballot in it. entries: by local timestamp. queue: what is not
    delivered, by encoded local timestamps.
    """

    def __init__(self, delivered: DeliveredLog, early_clock: bool, window: Window):
        self.clock = 0
        self.instance = 0
        self.seen = Ballot(0, 0)
        self.entries: dict[Timestamp, Entry] = {}
        self._delivered = delivered
        self._early_clock = early_clock
        self.window = window
        self._locals: dict[MessageId, list[Timestamp]] = {}
        self._unlogged: set[Timestamp] = set()
        self.queue = PendingQueue()
        self._uncovered: list[tuple[Timestamp, Timestamp]] = []
        self._base_dirty = False

    # -- what is on disk ----------------------------------------------------------------------------------------------

    def restore(self, saved: Saved) -> None:
        for key, value in saved.values.items():
            if key[:1] == _ENTRY_PREFIX and len(key) == 17:
                state = _decode_entry(value)
                entry = self._add(Entry(state.message, state.local, state.logged))
                entry.final, entry.position = state.final, state.position
        self._delivered.restore(saved.values, saved.position, self._destinations)
        if _BASE_KEY in saved.values:
            self.instance, self.clock, self.seen = _decode_base(saved.values[_BASE_KEY])
        for entry in self.entries.values():
            known = self._delivered.known(entry.message.id)
            if known is not None and entry.local <= known[0]:
                later = [local for local in self._locals[entry.message.id] if entry.local < local <= known[0]]
                if later:  # an earlier copy: settled before its group stamped that one
                    entry.position, entry.settled = entry.position or saved.position, True
                else:
                    entry.final, entry.position = known
            elif not entry.logged:  # installed, settled and forgotten
                entry.position, entry.settled = entry.position or saved.position, True
        self.rebuild_queue()

    def _destinations(self, message_id: MessageId, delivered_at: Timestamp) -> tuple[GroupId, ...] | None:
        copies = [local for local in self._locals.get(message_id, ()) if local <= delivered_at]
        return self._settled_by(self.entries[max(copies)]) if copies else None

    def _settled_by(self, entry: Entry) -> tuple[GroupId, ...]:
        """The groups that must have delivered this copy: of one that its own group has stamped late another one may
        know an earlier delivery, and never deliver it again."""
        return self.window.needs(entry.message, entry.local.time, entry.local.tiebreak)

    def _save(self, entry: Entry, out: Outbox) -> None:
        out.put(_ENTRY_PREFIX + entry.local.encode(), _encode(entry.saved()), carries=(entry.message,))

    def end_batch(self, out: Outbox) -> None:
        if self._base_dirty:
            self._base_dirty = False
            out.put(_BASE_KEY, _encode((self.instance, self.clock, self.seen)))

    # -- entries ------------------------------------------------------------------------------------------------------

    def latest(self, message_id: MessageId) -> Entry | None:
        """The entry of this message that was assigned last."""
        locals_ = self._locals.get(message_id)
        return self.entries[locals_[-1]] if locals_ else None

    def undelivered(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.position]

    @property
    def is_behind(self) -> bool:
        """Whether something was delivered here whose Assign comes later in the log."""
        return bool(self._unlogged)

    def _add(self, entry: Entry) -> Entry:
        self.entries[entry.local] = entry
        if not entry.logged:
            self._unlogged.add(entry.local)
        self._locals.setdefault(entry.message.id, []).append(entry.local)
        return entry

    def _remove(self, entry: Entry, out: Outbox) -> None:
        del self.entries[entry.local]
        self._unlogged.discard(entry.local)
        kept = self._locals[entry.message.id]
        kept.remove(entry.local)
        if not kept:
            del self._locals[entry.message.id]
        out.delete(_ENTRY_PREFIX + entry.local.encode())

    def _mark_logged(self, entry: Entry, out: Outbox) -> None:
        if not entry.logged:
            entry.logged = True
            self._unlogged.discard(entry.local)
            if entry.settled:
                self._remove(entry, out)
            else:
                self._save(entry, out)

    def drop(self, settled: Iterable[MessageId], out: Outbox) -> None:
        """Nobody asks for these messages any more."""
        for message_id in settled:
            for local in list(self._locals.get(message_id, ())):
                entry = self.entries[local]
                if entry.position and entry.logged:
                    self._remove(entry, out)
                elif entry.position:
                    entry.settled = True

    # -- the log ------------------------------------------------------------------------------------------------------

    def read(self, instance: int, values: list[bytes]) -> list[Command]:
        """The next instance: those of its commands that are not void, in the order in which they are to be applied."""
        if instance != self.instance + 1:
            raise AssertionError(f"instance {instance} after {self.instance}")
        self.instance = instance
        self._base_dirty = True
        commands: list[Command] = []
        for value in values:
            command = _decode_command(value)
            if command.ballot >= self.seen:
                self.seen = command.ballot
                commands.append(command)
        return commands

    def assign(self, command: Assign, proposed: Entry | None, out: Outbox) -> Entry | None:
        """Returns the new entry, for which `raise_clock` is still to be called; None if its delivery was installed
        before. proposed: this member's own, if it made the command in its present reign."""
        if self._early_clock and command.local.time <= self.clock:
            raise AssertionError(f"assigned {command.local} when the clock was {self.clock}")
        installed = self.entries.get(command.local)
        if installed is not None:
            self._mark_logged(installed, out)
            return None
        entry = self._add(proposed or Entry(command.message, command.local, True))
        if entry.local != command.local:
            raise AssertionError(f"proposed {entry.local}, decided {command.local}")
        self.queue.propose(entry.local.encode(), entry.local)
        self._save(entry, out)
        return entry

    def advance(self, command: Advance, out: Outbox) -> None:
        entry = self.entries.get(command.local) if command.certain else None
        if entry is not None and not entry.position:
            if entry.final is None:
                self.set_final(entry, command.final)
            elif entry.final != command.final and not self.window.is_late(entry.message.id, command.final.time):
                raise AssertionError(f"{entry.message.id.hex()} has timestamps {entry.final} and {command.final}")
            self._save(entry, out)
        self.raise_clock(command.final.time)

    def raise_clock(self, to: int) -> None:
        """The log's clock: no message of a later leader is stamped up to it (early_clock: none later in the log)."""
        self.clock = max(self.clock, to)
        waiting = self._uncovered
        while waiting and self.covers(waiting[0][0]):
            final, local = heappop(waiting)
            entry = self.entries.get(local)
            if entry is not None and not entry.position:
                self.queue.commit(local.encode(), final)

    def covers(self, final: Timestamp) -> bool:
        """Whether the log's clock has reached this."""
        return final.time <= self.clock

    # -- what is due --------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self.queue)

    def block(self, entry: Entry) -> None:
        """An entry that is proposed and not decided: nothing above its stamp is due here until it is."""
        self.queue.propose(entry.local.encode(), entry.local)

    def set_final(self, entry: Entry, final: Timestamp) -> None:
        """Its global timestamp is known."""
        entry.final = final
        if self.covers(final):
            self.queue.commit(entry.local.encode(), final)
        else:
            heappush(self._uncovered, (final, entry.local))

    def lowest(self) -> Entry | None:
        """The entry with the lowest stamp whose global timestamp is not known."""
        lowest = self.queue.lowest_proposed()
        return self.entries.get(lowest[0]) if lowest is not None else None

    def rebuild_queue(self) -> None:
        """From the log alone; nothing that this member proposed counts any more."""
        self.queue = PendingQueue()
        self._uncovered.clear()
        for entry in self.undelivered():
            self.queue.propose(entry.local.encode(), entry.local)
            if entry.final is not None:
                self.set_final(entry, entry.final)

    def pop_due(self) -> Entry | None:
        """The next message that is due by the log, and is now to be delivered."""
        due = self.queue.pop()
        if due is None:
            return None
        entry = self.entries[Timestamp.decode(due[1])]
        entry.final = due[0]
        return entry

    def delivered(self, entry: Entry, out: Outbox) -> None:
        """This entry was delivered or installed as this member's next delivery."""
        assert entry.final is not None
        entry.position = self._delivered.add(entry.message.id, self._settled_by(entry), entry.final, out)
        self.queue.remove(entry.local.encode())

    def install(self, message: AppMessage, local: Timestamp, final: Timestamp, out: Outbox) -> Entry:
        """A delivery from a peer's journal: the entry that is to be `delivered`."""
        entry = self.entries.get(local)
        if entry is None:
            entry = self._add(Entry(message, local, False))
            entry.position = self._delivered.position + 1
            self._save(entry, out)
        entry.final = final
        return entry

    # -- the state as a whole -----------------------------------------------------------------------------------------

    def state(self, portion_bytes: int) -> list[State]:
        """In portions of about so many bytes."""
        pending = [SavedEntry(e.message, e.local, e.final, True) for e in self.undelivered()]
        unlogged = [e.local for e in self.entries.values() if not e.logged]
        progress = (self._delivered.position, self.instance, self.clock, self.seen, unlogged)
        lists = portions(pending, lambda entry: len(entry.message.payload), portion_bytes)
        return [State(*progress, some, number, len(lists)) for number, some in enumerate(lists)]

    def adopt(self, state: State, out: Outbox) -> list[Entry]:
        """Go on from a peer's state that is further, now that all that the peer had delivered is delivered here.
        Returns the entries that are new here."""
        given, unlogged = {entry.local: entry for entry in state.items}, set(state.unlogged)
        for entry in list(self.entries.values()):
            passed = entry.position <= state.position and entry.local not in unlogged
            if entry.position and (passed or entry.local in given):
                self._mark_logged(entry, out)
            elif not entry.position and entry.local not in given:
                self._remove(entry, out)
        added = []
        for local, told in given.items():
            known, held = self._delivered.known(told.message.id), self.entries.get(local)
            if held is not None and held.final is None:
                held.final = told.final
                self._save(held, out)
            elif held is None and (known is None or known[0] < local):
                entry = self._add(Entry(told.message, local, True))
                entry.final = told.final
                self._save(entry, out)
                added.append(entry)
        self.instance, self.clock, self.seen = state.instance, state.clock, state.seen
        self._base_dirty = True
        self.rebuild_queue()
        return added

    # -- for people ---------------------------------------------------------------------------------------------------

    def blockers(self) -> dict[bytes, list[dict[str, Any]]]:
        """`PendingQueue.blockers`, by encoded local timestamp."""
        return self.queue.blockers()


class LeadersWord:
    """The leader's word (`Deliver`), where only the leader delivers by the log and by what it has in flight: what it
    says, and what the other members have heard.

    early_max: how many words a member keeps that came before their turn.
    """

    def __init__(self, early_max: int):
        self._early_max = early_max
        self._said: list[tuple[int, Timestamp, Timestamp]] = []
        self._heard: dict[int, tuple[Timestamp, Timestamp]] = {}

    def say(self, entry: Entry) -> None:
        """At the leader: it has delivered this."""
        assert entry.final is not None
        self._said.append((entry.position, entry.local, entry.final))

    def end_batch(self, others: tuple[ProcessId, ...], out: Outbox) -> None:
        """Tell the other members of the group."""
        if self._said:
            if others:
                out.send(others, Deliver(self._said))
            self._said = []

    def hear(self, deliver: Deliver, delivered: int) -> None:
        """At a member that has delivered up to position `delivered`."""
        for position, local, final in deliver.items:
            if position > delivered and len(self._heard) < self._early_max:
                self._heard[position] = (local, final)

    def forget(self, position: int) -> None:
        """The delivery at this position has been made."""
        self._heard.pop(position, None)

    def at(self, position: int) -> tuple[Timestamp, Timestamp] | None:
        """Local and global timestamp of what was delivered there, if it was heard."""
        return self._heard.get(position)

    def lacks(self, position: int) -> bool:
        """Whether the word for this position seems lost: later ones are here."""
        return bool(self._heard) and position not in self._heard
