"""The interface between a multicast protocol and whatever runs it. What deliveries are for is `multicast.application`.

A protocol is a state machine without IO: inputs come in as method calls, effects go out through an `Outbox`. `now` is
an integer count of microseconds, steady in a life, for timers; `real_clock(now)` is for stamps; `rng` a seeded
`random.Random`. There is no other clock or randomness. The same object runs in the simulator (`multicast.simulation`)
and over TCP (`multicast.runtime`); both drive it through `multicast.engine.Engine`, the host's side of this contract:

- One FIFO per link. `send` never overtakes an earlier message to the same peer, whichever lane. But messages of a type
  that says `bulk` wait while much else does, and are overtaken by all but each other; and those of a type that says
  `overtakes`, signs of life that vouch for nothing, do not wait behind what waits for the disk.
- A vote, acknowledgement, promise, barrier or reported clock is `send_durable`: it leaves only after every earlier
  `put` is on disk. A process counts its own vote only when it comes back to it through that lane.
- Messages to oneself come back like any others. A durable one waits for the disk; any other is handled in the same
  turn of the engine, before durable ones that were sent earlier and still wait.
- The final deliveries of a group are numbered 1, 2, 3, ...; a replica never skips one. A process that missed some asks
  for them with `Outbox.catch_up` and gets each through `on_install`, from a peer's journal.
- A link loses messages only when one of its ends restarts or its queue overflows; then `on_peer_reset`.
- A process is started once per life. A restarted process never leads in a ballot from before its restart.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from multicast.discipline import Discipline
from multicast.membership import GroupIs, Membership
from multicast.types import FINAL, AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology


class PeerError(Exception):
    """A peer sent what no correct peer sends. The host closes that link and goes on; our own bugs crash instead."""


class Stranger(PeerError):
    """It is of a group of which nobody has told yet, or tells of one: an added one. The link comes again."""


class Overloaded(Exception):
    """`on_submit` refuses: too many messages are pending. Nothing was multicast; try again later."""


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What every protocol can be told; a protocol adds its own by subclassing.

    clock: "logical" counts events, "hybrid" is max(clock + 1, real time) (PrimCast, Section 5; Kulkarni et al. 2014).
    clock_skew_us_max: how far a wall clock may be off from what most show and still give stamps and fit a leader; 0:
        every clock is believed. clock_probe_us: how often processes compare their clocks. See `multicast.discipline`.
    dedup_window_us: how long after its creation an id may be delivered with effect, microseconds; 0: for ever, and
        then ids are remembered for ever too. Needs UUIDv7 ids and the hybrid clock.
    pending_max: undelivered messages at one process beyond which `on_submit` raises Overloaded.
    portion_bytes: about how much one message carries of what may be large: a state, a log, a repair, a batch of values.
        The rest follows in further ones.
    early_max: how many messages, votes or instances a process keeps that came before their turn (of instances a few in
        any case). It drops what exceeds that, and asks for it when it is due.
    drawn: (no option) the values from which the simulator draws an option for a random run. It draws what is above, and
        the pace of every `*_us`, by itself.
    alike: (no option) the options by which all processes have to go alike, at all times: what is delivered, or with
        which effect, depends on them.
    """

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {}
    alike: ClassVar[tuple[str, ...]] = ("dedup_window_us",)

    clock: str = "logical"
    clock_skew_us_max: int = 500_000
    clock_probe_us: int = 1_000_000
    dedup_window_us: int = 0
    pending_max: int = 100_000
    portion_bytes: int = 4 * 1024 * 1024
    early_max: int = 100_000

    def __post_init__(self) -> None:
        if self.clock not in ("logical", "hybrid"):
            raise ValueError(f"clock is 'logical' or 'hybrid', not {self.clock!r}")
        if self.clock_skew_us_max < 0 or self.clock_probe_us < 1:
            raise ValueError("clock_skew_us_max must be at least 0 and clock_probe_us at least 1")
        if self.dedup_window_us < 0:
            raise ValueError("dedup_window_us must be at least 0")
        if min(self.pending_max, self.portion_bytes, self.early_max) < 1:
            raise ValueError("pending_max, portion_bytes and early_max must be at least 1")
        if self.dedup_window_us and self.clock != "hybrid":
            raise ValueError("dedup_window_us needs clock 'hybrid': ids carry wall-clock times")

    def told_alike(self) -> dict[str, str]:
        """The options that are `alike`, as processes tell one another."""
        return {name: str(getattr(self, name)) for name in self.alike}

    @classmethod
    def draw(cls, rng: random.Random, topology: Topology) -> dict[str, Any]:
        """Option values for a random run; what is not in it keeps its default. For values that depend on the topology
        or on each other, extend it."""
        return {name: rng.choice(values) for name, values in cls.drawn.items()}


class Specification(msgspec.Struct, frozen=True, kw_only=True):
    """What hosts, tests and people may know of a protocol without knowing the protocol.

    name: as in configurations and on command lines. summary: one line for help texts. paper: where it is from.
    options: its `Options` subclass. messages: every message type it sends, each with its own integer tag.
    housekeeping: those of them that do not order messages (heartbeats, garbage collection); not counted per multicast.
    vouching: those of them that say what their sender has put: they are always `send_durable`.
    fault_tolerant: a minority of every group may crash. False: one process per group, and it must come back.
    survives_lost_disk: a process whose disk was lost comes back as a member (`Saved.lost`), one per group at a time.
    changes_members: processes can be added to its groups and removed from them (`multicast.membership`).
    genuine: only the sender and the destinations of a message take part in ordering it.
    fifo: what a process multicasts in one life is delivered in the order in which it did so, wherever both are.
    stages: which stages it delivers. leader_reads: it answers `MulticastProtocol.on_read` with a position if it can.
    strict_groups_max: with how many groups delivery alone is strictly serializable, with default options; None: with
        any number. `MulticastProtocol.strict_groups_max` says it for the options at hand.
    latency: collision-free latency as published, in message delays: (first in each group, every replica).
    """

    name: str
    summary: str
    paper: str
    options: type[Options]
    messages: tuple[type, ...]
    housekeeping: tuple[type, ...] = ()
    vouching: tuple[type, ...] = ()
    fault_tolerant: bool
    survives_lost_disk: bool = False
    changes_members: bool = False
    genuine: bool
    fifo: bool = False
    stages: tuple[int, ...] = (FINAL,)
    leader_reads: bool = False
    strict_groups_max: int | None = 1
    latency: tuple[int, int] | None = None


class Saved(msgspec.Struct):
    """What a process finds on its own disk when it starts.

    values: every key that it had put and not deleted. position: its last final delivery, 0 before the first.
    first: nothing was ever written here; this is the first life of the process.
    lost: nothing is here, though the process took part before: its disk is gone, and with it what it has promised.
        Then it is not first. It must put something at once, so that a later life knows it: `lost` is said once.
    """

    values: dict[bytes, bytes]
    position: int = 0
    first: bool = True
    lost: bool = False


class Bulk(bytes):
    """An encoded message that others may overtake: one of many with which a large state travels (parts.portions)."""


Change = tuple[bytes, bytes | None, Sequence[AppMessage]]
"""Key, value, carries: see `Outbox.put`. Value None: `Outbox.delete`."""


class Outbox:
    """The effects of one batch, in order. The engine makes it, hands it to every call, and carries the effects out.

    asks: there is something in it besides sends and changes."""

    __slots__ = ("asks", "catch_ups", "changes", "deliveries", "readable", "sends", "settlements")

    def __init__(self) -> None:
        self.asks = False
        self.sends: list[tuple[tuple[ProcessId, ...], Any, bool]] = []
        self.changes: list[Change] = []
        self.deliveries: list[tuple[AppMessage, Timestamp, int, bytes]] = []
        self.settlements: list[tuple[MessageId, Timestamp, tuple[GroupId, ...]]] = []
        self.catch_ups: list[ProcessId] = []
        self.readable: list[tuple[int, int | None]] = []

    def send(self, to: Sequence[ProcessId], message: Any) -> None:
        """Send to each of `to`, oneself allowed. Does not itself wait for the disk."""
        self.sends.append((tuple(to), message, False))

    def send_durable(self, to: Sequence[ProcessId], message: Any) -> None:
        """Send to each of `to` once every earlier put is on disk."""
        self.sends.append((tuple(to), message, True))

    def put(self, key: bytes, value: bytes, carries: Sequence[AppMessage] = ()) -> None:
        """Keep `value` under `key`; found again in `Saved.values` after a restart. carries: messages whose payloads it
        contains, in this order: then their deliveries need not write them again."""
        self.changes.append((key, value, carries))

    def delete(self, key: bytes) -> None:
        """Forget `key`."""
        self.changes.append((key, None, ()))

    def deliver(self, message: AppMessage, timestamp: Timestamp, stage: int = FINAL, note: bytes = b"") -> None:
        """Hand `message` to the application. Final deliveries have rising timestamps; the engine numbers them.
        `note` goes into the journal for `on_install`."""
        self.asks = True
        self.deliveries.append((message, timestamp, stage, note))

    def settled(self, message_id: MessageId, timestamp: Timestamp, groups: tuple[GroupId, ...]) -> None:
        """A quorum of each of these groups, all its destinations, durably holds the outcome of what was delivered with
        this message at `timestamp`, and of everything before that: nobody will ask for it."""
        self.asks = True
        self.settlements.append((message_id, timestamp, groups))

    def may_read(self, token: int, position: int | None) -> None:
        """The answer to `MulticastProtocol.on_read`."""
        self.asks = True
        self.readable.append((token, position))

    def catch_up(self, peer: ProcessId) -> None:
        """This process misses final deliveries that `peer` (of its own group) has: fetch them from its journal."""
        self.asks = True
        self.catch_ups.append(peer)


class Handler(NamedTuple):
    """What is done with messages of one type. call: (sender, message, now, out); may raise PeerError. own_group: only
    members of the own group may send it. can_wait: whether nothing for which anybody waits would come of this message
    alone, so that it has time until something else happens; without it none has. can_ride: the same of one that this
    process sends: it has time until something else goes to its receivers. They change nothing."""

    call: Callable[[ProcessId, Any, int, Outbox], None]
    own_group: bool = False
    can_wait: Callable[[Any], bool] | None = None
    can_ride: Callable[[Any], bool] | None = None


class Electing(Protocol):
    """What a protocol has that elects leaders; the methods are those of `MulticastProtocol`. promised: the highest
    ballot in which this process would take part. disk_hangs: what `on_disk` was told."""

    promised: Ballot

    @property
    def has_majority(self) -> bool: ...

    @property
    def disk_hangs(self) -> bool: ...

    @property
    def is_member(self) -> bool: ...

    @property
    def promises(self) -> bool:
        """Whether it may promise: as a member, or as one that is new in its group."""

    def answering(self, now: int) -> Collection[ProcessId]: ...

    def on_clock(self, off: bool, now: int) -> None: ...

    def on_disk(self, hangs: bool, now: int) -> None: ...

    def on_connected(self, peer: ProcessId, up: bool, now: int) -> None: ...


class History(Protocol):
    """What a snapshot holds of a protocol's state: see `multicast.snapshot`. Keys and values are as in `Outbox.put`."""

    def given(self, position: int, timestamp: Timestamp) -> Iterable[tuple[bytes, bytes]]:
        """What is a function of the first `position` final deliveries, as it would be put, and of no later ones; the
        last of them has this timestamp. It may be taken little by little while the process goes on: what is forgotten
        or settled meanwhile may be among it, or not."""

    def taken(
        self, own: Mapping[bytes, bytes], given: Mapping[bytes, bytes], position: int, timestamp: Timestamp
    ) -> Mapping[bytes, bytes | None]:
        """What a process that has put `own` puts (None: deletes) where it is given that. Between two lives."""


class MulticastProtocol:
    """One process's side of a protocol. Subclasses override what they need.

    Handlers are called one at a time; none blocks. Assertions of a paper's per-process invariants stay on.
    handlers: message type -> its handler, for all of `specification.messages`; a protocol fills it when it is made, its
    parts bring their own. election: set by a protocol that elects leaders. leaders: of all groups, where that is known.
    history: set by one whose members can be brought up to date by a snapshot.
    clock_correction, clock_off: the host's, see `real_clock` and `on_clock`.
    """

    specification: ClassVar[Specification]

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        self.self_id = self_id
        self.topology = topology if isinstance(topology, Membership) else Membership(topology)
        self.options: Any = options
        self.rng = rng
        self.group: GroupId = topology.group_of[self_id]
        self.handlers: dict[type, Handler] = {}
        self.election: Electing | None = None
        self.leaders: Mapping[GroupId, Ballot] = {}
        self.history: History | None = None
        self.clock_correction: int | None = 0
        self.clock_off = False

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        """The first call of a life."""

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """multicast(m), by this process. It need not belong to a destination. May raise Overloaded."""
        raise NotImplementedError

    def refuse_beyond_limit(self, pending: int) -> None:
        """For `on_submit`: Overloaded if so many messages wait here that there may be no more."""
        if pending >= self.options.pending_max:
            raise Overloaded(f"{pending} messages are pending, the limit is {self.options.pending_max}")

    def on_read(self, token: int, now: int, out: Outbox) -> None:
        """From which position on is this process's state fresh? Answered once, now or later, with `out.may_read(token,
        position)`: when this was asked no process of the group had more than `position` final deliveries. None: not
        known here; whoever wants to read multicasts that."""
        out.may_read(token, None)

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        """A message of `specification.messages` arrived. May raise PeerError, and Stranger."""
        handler, group = self.handlers[type(message)], self.topology.group_of.get(sender)
        if (handler.own_group and group != self.group) or (group is None and type(message) is not GroupIs):
            wrong = PeerError if group is not None else Stranger
            raise wrong(f"{type(message).__name__} from group {group}")
        handler.call(sender, message, now, out)

    def can_wait(self, message: Any) -> bool:
        """Whether a host need not run for this message alone: see `Handler`."""
        handler = self.handlers.get(type(message))
        return handler is not None and handler.can_wait is not None and handler.can_wait(message)

    def can_ride(self, message: Any) -> bool:
        """Whether a host need not send this message alone: see `Handler`."""
        handler = self.handlers.get(type(message))
        return handler is not None and handler.can_ride is not None and handler.can_ride(message)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        """Timers. Called at the end of every batch, after `end_batch`; returns the next instant that it wants, None for
        none. If it does anything, both are called once more."""
        return None

    def end_batch(self, now: int, out: Outbox) -> None:
        """The inputs at hand have been processed: merge, save and send what leaves together. Called again in the same
        batch after whatever comes later in it."""

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        """What was under way to or from `peer` may be lost: it restarted, or a queue overflowed."""

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        """The host delivered this from a peer's journal as final delivery number `position`; do not deliver it.
        `note` is what the peer's protocol gave with its delivery."""

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        """The host durably holds the outcomes of the first `position` final deliveries."""

    def real_clock(self, now: int) -> int:
        """What stamps may take for the time: microseconds since 1970 that no minority of clocks can push, and that may
        jump; 0: not known. For timers there is `now`."""
        return 0 if self.clock_correction is None else now + self.clock_correction

    def reads_real_clock(self) -> bool:
        """Whether `real_clock` matters under these options."""
        return bool(self.options.clock == "hybrid")

    def new_discipline(self) -> Discipline | None:
        """What the host compares clocks with in this life; None if it need not."""
        limit, period = self.options.clock_skew_us_max, self.options.clock_probe_us
        if not limit or not self.reads_real_clock():
            return None
        return Discipline(self.self_id, self.topology.processes, limit, period)

    def on_clock(self, off: bool, now: int) -> None:
        """This process's wall clock is off from what most show by more than `clock_skew_us_max`, or no longer: so long
        it should not lead, if anybody else can."""
        self.clock_off = off
        if self.election is not None:
            self.election.on_clock(off, now)

    def on_connected(self, peer: ProcessId, up: bool, now: int) -> None:
        """There is a connection to `peer` again, or none any more: a hint that it lives, or does not."""
        if self.election is not None:
            self.election.on_connected(peer, up, now)

    def has_majority(self) -> bool:
        """Of a process that leads: whether a quorum of its group has answered it lately."""
        return self.election is None or self.election.has_majority

    def strict_groups_max(self) -> int | None:
        """With how many groups delivery alone is strictly serializable under these options; None: with any number."""
        return self.specification.strict_groups_max

    def is_member(self) -> bool:
        """False from `Saved.lost` until this process has been readmitted."""
        return self.election is None or self.election.is_member

    def promises(self) -> bool:
        """Whether it may promise ballots: as a member, or as one that is new in its group."""
        return self.election is None or self.election.promises

    def waits_for(self) -> Sequence[GroupId]:
        """Other groups without whose word the first undelivered message here, or what is multicast to this group next,
        is not going to be delivered, as far as that is known at this process. It costs little."""
        return ()

    def leader_of(self, group: GroupId) -> ProcessId | None:
        """Best guess of the process through which `group` is reached soonest; None if nobody is known."""
        if group in self.leaders:
            return self.leaders[group].leader
        members = self.topology.groups[group]
        return members[0] if members else None

    def role(self) -> str:
        """For people: "leader", "follower", "recovering" or what fits the protocol."""
        return "member"

    def describe(self) -> dict[str, Any]:
        """Numbers for status pages and metrics: clock, ballot, pending and the like. JSON-ready."""
        return {}

    def inspect(self) -> dict[str, Any]:
        """What is inside, for traces and debugging: `describe` and more, at the cost of looking at everything. Changes
        nothing. JSON-ready, without nulls: what is not known is left out.

        messages: id in hex -> phase; local and final timestamp; blocked_by: what must happen before a message whose
        final timestamp is known is delivered here. The words are those of `parts.inspection`.
        """
        return {"role": self.role(), **self.describe()}
