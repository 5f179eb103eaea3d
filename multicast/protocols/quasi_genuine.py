"""Quasi-genuine FIFO total order multicast with barriers (2011 draft, Algorithms 1, 2 and 3).

Theory of operation. A sender stamps m with its clock, (rtc, 0), and has it decided by consensus in *its own* group,
which need not be a destination. Decided messages of a group get rising stamps (rtc, seq): one that is decided too late
for its stamp gets the next one after the last. So a group's log is a stream of stamps, and "my last stamp is b" is a
promise, a *barrier*: nothing up to b will follow. Whoever has decided a message sends it, with the barrier, to its
destinations, which deliver in the order of (rtc, seq, source group): m once the barriers of all groups that may send to
them, their own among them, have reached m's stamp. A group with nothing to say must be made to speak: it decides a
*null message*, which only raises its last stamp, when a barrier is requested (liveness "request", Algorithm 3: together
with m, from all groups that could block m) or when it was silent for a while ("periodic", Algorithm 2).

    message    from -> to                                       durable before it leaves
    Cast       sender -> leader of its group                    the sender's epoch
    Paxos*     inside a group (parts.paxos)                     see there
    Early      sender -> members of destinations and blockers   the sender's epoch (`optimistic`)
    Ordered    leader -> members of a destination               -  (what is decided is on a quorum's disks)
    Proposed   leader -> members of a destination               -  (`direct_learners`; counts with acceptors' votes)
    Barrier    leader -> members of a destination               -  (the same)
    Want       leader -> members of a blocking group            -
    Ask        member -> a member of a source group             -
    Repair     member -> who asked                              -
    Ack        member -> members of a source group              everything received so far, up to the number in it
    StateAsk   member -> member of its group                    -
    State      member -> who asked                              -
    Ready      process -> itself                                its epoch
    Forgot     process without memory -> everybody              -
    Reminder   process -> who has forgotten                     -
    Stable     process -> destination groups                    -  (parts.delivered)

Collision-free latency, T_cons = 2δ from the leader's proposal: δ to the leader, T, δ to destinations and blockers, T
for the null, δ for its barrier: 3δ + 2T = 7δ, at every replica of each destination that lacks the barrier of a group
other than its own and the source. A sender that leads saves the first δ. Where only the own group's barrier is lacking
(two groups, a message from the other one) the last δ is saved, and followers may learn their own null one δ earlier.

Options of the paper. Each is correct whatever clocks and delays do; all figures below are with T = 2δ.
- `optimistic` (Section 3.2). The sender also sends m to its destinations (Early), and the requests for its barriers to
  all who may block it, at once. w(p) is `wait_us`, the same at every process: assumption A2 holds while every message
  takes less than w minus how far the receiver's clock is ahead of the sender's (w itself, if stamps differ). A
  destination delivers m, stage OPTIMISTIC, once its clock has reached m's stamp plus w: w after multicast(m), or when m
  arrives if that is later. Before that the leader of the source group does not propose m, nor does a blocking group's
  leader propose the null that m asks for, and both propose in the order of stamps. So under A2 no stamp changes, and
  the early order is the final one (but for messages with stamps equal to the microsecond). Mistakes are counted:
  `describe()["mistakes"]`, of `["early"]` early deliveries.
  Final: w + T + δ alone; w + 2T + δ if an instance is just under way, which is the published 2w + 2T where w = δ. If
  A2 does not hold and m is stamped anew, barriers are requested once more, when that is decided: 3δ + 4T at worst, if
  delays keep to w = δ and it is a clock that is off: the published 2w + 4T + δ.
- `parallel_consensus` (Section 3.3, which assumes `optimistic`): an instance does not wait for the one before it to be
  decided. Then w + T + δ, always, under A2; 2w + 2T + δ (w = δ) otherwise.
- `direct_learners` (Section 3.4): saves the δ from a decision to its destinations and to who waits for its barrier:
  δ + 2T instead of 3δ + 2T; w + T instead of w + T + δ. The leader sends what an instance will mean for another group
  (Proposed) along with its Accept, every acceptor sends Accepted to all groups that may be addressed (parts.learner).

Deviations from the algorithms, with reasons:
1. A group is its own barrier: without that, what it decides later may come before what it has delivered (line 40).
2. A barrier is compared inclusively, on (rtc, seq): a strict one blocks m on itself.
3. Only the re-stamping (line 30) is conditional; inserting and forwarding are not. A batch is taken in (stamp, sender,
   number) order, equal stamps and all (line 27). `nextProp` is the consensus part's.
4. A null message has no contents but its stamp. So those of all members of a group for one request are one message, and
   once the last stamp has reached it, nothing needs deciding: the barrier is sent at once.
5. A barrier is a maximum and names how many messages for this destination precede it; it counts once those are there.
   So a lost message cannot be passed over, and any member of the source group may repeat a barrier.
6. A leader bounds a stamp to `stamp_ahead_us_max` beyond its own clock: a fast clock would hold everybody up. The
   clocks of senders and leaders are those of `MulticastProtocol.real_clock`, so that no minority of clocks is fast. A
   destination that is blocked nevertheless asks for the barrier that it lacks, with Algorithm 2, too.
7. Algorithm 2 begins at the present time, and its null is never older than one threshold: after a pause one null
   suffices.
8. The leader alone forwards. It repeats the barrier until a quorum of the destination has everything; a destination
   that finds a gap, or is blocked, asks any member of the source group.
9. FIFO holds for each sender's life whatever is lost: a cast carries the sender's epoch (one per life) and number, and
   the group's log takes them without gaps. It takes none twice either.
10. A message may be multicast again through another group. All copies are ordered; the first one in the order is
   delivered, the others are dropped: alike everywhere, since all destinations see all copies in one order. With a
   deduplication window ids are remembered for two windows; a copy stamped later than that is delivered, expired.
11. Garbage collection. A destination's member tells (Ack) up to which number it durably has a group's messages: saved,
   or delivered. An instance is dropped by a member that has delivered the instance's messages for its own group, when
   a quorum of each destination has those for it and a quorum of the own group has the instance. A process that comes
   later gets a peer's base state, undelivered messages and barriers (State), after the host's catch-up.

12. A leader whose ballot is over forwards nothing any more, but what it has announced to direct learners stays valid:
   it counts only if acceptors have accepted it in that ballot, and all before it.
13. Section 3.2 says that under A2 line 30 is never executed, but lets members propose a message when they receive it:
   one that is stamped lower may arrive later, though in time. Section 3.3's rule, to propose when the clock has passed
   the stamp plus w, is needed there as well, and for nulls, too.
14. A process that lost its disk comes back as its group's consensus says (parts.paxos). What was *decided* with its
   vote is safe by that: stamps, and barriers, which are nothing but the last stamp of the group's decided log, no
   promise of the process that sent them. What it had acknowledged is not; it must have that again, too
   (parts.reminders), and until then tells and acknowledges nothing. Its next epoch follows the last one that it finds
   in its group's log: no cast of its old lives comes later, since the leader of the new ballot knows none that is not
   there.

What is delivered is strictly serializable with any number of groups: when m is delivered, every group has promised to
order what it is given from now on after m. That needs all groups among the senders of each, or at least all that common
messages join, over any number of steps (parts.barriers, `all_promise`); with other `senders` a store must signal
between groups as for a protocol whose `strict_groups_max` is 1.

Orderings relied on: none for safety; FIFO links make repairs rare.
"""

from __future__ import annotations

import random
from collections import deque
from heapq import heappop, heappush
from itertools import islice
from typing import Any, ClassVar

import msgspec

from multicast.parts import barriers, paxos, reminders
from multicast.parts.barriers import NEVER, Base, Channel, Item, Stamp, stamp_of, timestamp_of
from multicast.parts.behind import Behind
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import Stable
from multicast.parts.early import EarlyDeliveries
from multicast.parts.inspection import SUBMITTED, seen
from multicast.parts.learner import RemoteLearner
from multicast.parts.options import GroupOptions
from multicast.parts.paxos import Accepted, Paxos
from multicast.parts.portions import portions
from multicast.parts.reminders import Forgot, Reminder, Reminders
from multicast.parts.transfer import StateAsk, StateTransfer
from multicast.protocol import MulticastProtocol, Options, Outbox, Overloaded, PeerError, Saved, Specification
from multicast.types import FINAL, OPTIMISTIC, AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology

_BASE_KEY, _EPOCH_KEY = b"s", b"e"
_CHANNEL_PREFIX, _ITEM_PREFIX, _DELIVERED_PREFIX = b"c", b"i", b"m"
_CASTS_MIN, _CASTS_MAX = 8, 32
"""How many casts are sent again at once."""
_PARALLEL_MAX = 64
_EARLY_RETRIES = 20
"""After so many retries' time what was delivered early is not expected to be delivered finally any more."""


class Cast(msgspec.Struct, array_like=True, tag=1, gc=False):
    """Decide this message. epoch: the sender's life. number: counts its casts in this life."""

    sender: ProcessId
    epoch: int
    number: int
    rtc: int
    message: AppMessage


class Null(msgspec.Struct, array_like=True, tag=2, gc=False):
    """A null message, as decided. It is the same as any other of this group and stamp."""

    stamp: Stamp


class Ordered(msgspec.Struct, array_like=True, tag=3, gc=False):
    """The sender's group has decided these, numbers `first`, `first` + 1, ... of those for the receiver's group.
    barrier: it decides nothing up to here any more. wants: (group, stamp): that group waits for the receivers' group's
    barrier."""

    first: int
    items: list[Item]
    barrier: Stamp
    wants: list[tuple[GroupId, Stamp]]


class Proposed(msgspec.Struct, array_like=True, tag=13, gc=False):
    """What this instance means for the receiver's group if it is decided in this ballot. decided: up to where the
    leader knows all instances to be decided as it proposed them."""

    ballot: Ballot
    instance: int
    decided: int
    ordered: Ordered


class Early(msgspec.Struct, array_like=True, tag=12, gc=False):
    """A cast, to its destinations: expect this message at that stamp. To a blocking group: no message. wants: as in
    `Ordered`."""

    epoch: int
    number: int
    rtc: int
    message: AppMessage | None
    wants: list[tuple[GroupId, Stamp]]


class Barrier(msgspec.Struct, array_like=True, tag=4, gc=False):
    """The sender's group decides nothing up to `stamp` any more; `upto` messages for the receiver's group precede
    it."""

    stamp: Stamp
    upto: int


class Want(msgspec.Struct, array_like=True, tag=5, gc=False):
    """As in `Ordered`."""

    wants: list[tuple[GroupId, Stamp]]


class Ask(msgspec.Struct, array_like=True, tag=6, gc=False):
    """I have your group's messages for mine up to number `received`, and wait for its barrier to reach `stamp`."""

    received: int
    stamp: Stamp


class Repair(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Messages as in `Ordered`, `upto` as in `Barrier`. low: the lowest number that is still kept. more: there are more
    than fit; ask again."""

    first: int
    items: list[Item]
    barrier: Stamp
    upto: int
    low: int
    more: bool


class Ack(msgspec.Struct, array_like=True, tag=8, gc=False):
    """I durably have your group's messages for mine up to this number (to the own group: its instances)."""

    number: int


class State(msgspec.Struct, array_like=True, tag=10, gc=False):
    """What holds after delivery number `position`. channels: (source group, messages received, barrier). items: (source
    group, number, message): received and not delivered. In portions: number `part` of `parts`."""

    position: int
    base: Base
    channels: list[tuple[GroupId, int, Stamp]]
    items: list[tuple[GroupId, int, Item]]
    part: int
    parts: int


class Ready(msgspec.Struct, array_like=True, tag=11, gc=False):
    """To oneself: the epoch is on disk, casts may leave."""


class QuasiGenuineOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """Microseconds all. Stamps are wall-clock microseconds, whatever `clock` says.

    liveness: "request" (Algorithm 3) or "periodic" (Algorithm 2). barrier_threshold_us: silence after which a group
    sends a barrier, if periodic. senders: who may send to whom, e.g. "0<1,2 1<0 2<" (to 0: 1 and 2; to 1: 0; to 2:
    nobody else); empty: all to all; a forbidden message is refused. stamp_ahead_us_max: how far a stamp may be ahead
    of the leader's clock. instances_max: consensus instances under way at once in a group; 1 as published.
    parallel_consensus: Section 3.3: as many as 64 (or instances_max, if that is more). optimistic: Section 3.2: deliver
    early, too; wait_us: then w(p), which should exceed every message's delay plus the difference of any two clocks.
    direct_learners: Section 3.4: acceptors tell other groups, too. The rest: `GroupOptions`.
    """

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {
        "liveness": ("request", "request", "periodic"),
        "instances_max": (1, 1, 4),
        "parallel_consensus": (False, False, True),
        "optimistic": (False, False, True),
        "direct_learners": (False, False, True),
        "stamp_ahead_us_max": (500_000, 1_000_000),
    }

    liveness: str = "request"
    barrier_threshold_us: int = 50_000
    senders: str = ""
    stamp_ahead_us_max: int = 1_000_000
    instances_max: int = 1
    parallel_consensus: bool = False
    optimistic: bool = False
    wait_us: int = 20_000
    direct_learners: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.liveness not in ("request", "periodic"):
            raise ValueError(f"liveness is 'request' or 'periodic', not {self.liveness!r}")
        if min(self.barrier_threshold_us, self.instances_max) < 1:
            raise ValueError("barrier_threshold_us and instances_max must be at least 1")
        if min(self.stamp_ahead_us_max, self.wait_us) < 0:
            raise ValueError("stamp_ahead_us_max and wait_us must be at least 0")
        barriers.parse_senders(self.senders)

    @classmethod
    def draw(cls, rng: random.Random, topology: Topology) -> dict[str, Any]:
        drawn = super().draw(rng, topology)
        if rng.random() < 0.2:
            others = {g: [o for o in topology.groups if o != g and rng.random() < 0.6] for g in topology.groups}
            drawn["senders"] = " ".join(f"{g}<{','.join(map(str, os))}" for g, os in others.items())
        return drawn


_Due = tuple[Stamp, int, ProcessId, int, int, bytes]
"""A value that waits to be proposed, in the order of stamps and of `_sort_key`."""

_Record = tuple[Base, Timestamp | None]
"""An instance that is kept: the base after it; the timestamp of its last message for the own group."""

_encode = msgspec.msgpack.Encoder().encode
_decode_value = msgspec.msgpack.Decoder(Cast | Null).decode
_decode_base = msgspec.msgpack.Decoder(Base).decode
_decode_item = msgspec.msgpack.Decoder(Item).decode
_decode_channel = msgspec.msgpack.Decoder(tuple[int, Stamp]).decode
_decode_groups = msgspec.msgpack.Decoder(tuple[GroupId, ...]).decode


def _item_key(source: GroupId, number: int) -> bytes:
    return _ITEM_PREFIX + source.to_bytes(2, "big") + number.to_bytes(8, "big")


def _channel_key(source: GroupId) -> bytes:
    return _CHANNEL_PREFIX + source.to_bytes(2, "big")


class QuasiGenuine(MulticastProtocol):
    """One process. `base` is what its group's log amounts to so far, `waiting` is barPending."""

    specification = Specification(
        name="quasi_genuine",
        summary="Quasi-genuine barriers: every group promises past each message; strictly serializable as it is",
        paper="A Quasi-Genuine FIFO Total Order Multicast Primitive, 2011 (draft)",
        options=QuasiGenuineOptions,
        messages=(
            Cast, Early, Ordered, Proposed, Barrier, Want, Ask, Repair, Ack, StateAsk, State, Ready, Stable,
            *reminders.MESSAGES, *paxos.MESSAGES,
        ),
        housekeeping=(
            Ask, Repair, Ack, StateAsk, State, Ready, Stable, *reminders.MESSAGES, *paxos.HOUSEKEEPING,
        ),
        fault_tolerant=True,
        survives_lost_disk=True,
        genuine=False,
        fifo=True,
        stages=(OPTIMISTIC, FINAL),
        strict_groups_max=None,
        latency=(7, 7),
    )
    paxos_class = Paxos

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        self.members = topology.groups[self.group]
        self.senders_to = barriers.senders_to(topology, o.senders)
        self.log = barriers.CopiesLog(self_id, topology, o.stability_us, o.dedup_window_us)
        times = (o.heartbeat_us, o.election_timeout_us)
        parallel = max(_PARALLEL_MAX, o.instances_max) if o.parallel_consensus else o.instances_max
        self.paxos = self.paxos_class(self_id, self.members, rng, *times, parallel, 0, o.portion_bytes, o.early_max)
        self.base = Base()
        self._kept_base = Base()
        self.channels = {g: Channel() for g in (self.group, *self.senders_to[self.group])}
        self.waiting = barriers.WaitingMessages()
        self._floor: Stamp = NEVER
        self._receivers = tuple(g for g in topology.groups if self.group in self.senders_to[g])
        self._wait_us: int = o.wait_us if o.optimistic else 0
        self.early = EarlyDeliveries(o.wait_us, o.pending_max)
        self._due: list[_Due] = []
        self._due_nulls: set[Stamp] = set()
        self.learners: dict[GroupId, RemoteLearner[Ordered]] = {}
        self._ahead_base: Base | None = None
        self._announced: deque[tuple[int, list[bytes]]] = deque()
        if o.direct_learners:
            self.paxos.learners = topology.members(self._receivers)
            self.paxos.proposals = []
            self.learners = {g: RemoteLearner(topology.quorum(g)) for g in self.senders_to[self.group]}
        self._outgoing: dict[GroupId, deque[Item]] = {g: deque() for g in self._receivers}
        self._records: deque[_Record] = deque()
        self._acks: dict[ProcessId, int] = dict.fromkeys(topology.processes, 0)
        self._casts: deque[Cast] = deque()
        self._cast_ids: set[MessageId] = set()
        self._cast_number = self._cast_at = self._stamp = self._epoch = 0
        self._sent, self._cast_window = 0, _CASTS_MIN
        self._ready = False
        self._ballot = Ballot(0, 0)
        self._led: Ballot | None = None
        self._expected: dict[ProcessId, tuple[int, int]] = {}
        self._held: list[Cast] = []
        self._wanted = barriers.Wants()
        self._null: Stamp = NEVER
        self._told: dict[GroupId, int] = {}
        self._hints: dict[GroupId, int] = {}
        self._ahead_wants: list[tuple[int, list[tuple[GroupId, Stamp]]]] = []
        self._leaders = {g: members[0] for g, members in topology.groups.items()}
        self._passed_some = False
        self._head: Timestamp | None = None
        self._behind = Behind(o.retry_us, rng)
        self._reminders = Reminders(self_id, topology, o.retry_us)
        self._deadlines = Deadlines({
            "blocked": self._ask_if_blocked, "behind": self._fetch_if_behind, "early": self._forget_early,
            "ahead_wants": self._take_ahead_wants, "casts": self._repeat_casts, "receipts": self._tell_and_truncate,
            "hint": self._hint, "nulls": self._nulls_due, "return": self._recollect,
        })  # fmt: skip
        self._transfer = StateTransfer(
            self_id, self.members, o.retry_us, self._deadlines, State, position=lambda: self.log.position,
            is_needed=self._is_stranded, give=self._states, adopt=self._adopt,
        )  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        values = saved.values
        destinations = {
            k[1:]: _decode_groups(v) for k, v in values.items() if k[:1] == _DELIVERED_PREFIX and len(k) == 17
        }
        self.log.restore(values, saved.position, lambda message_id, _: destinations.get(message_id))
        for source, channel in self.channels.items():
            if _channel_key(source) in values:
                channel.received, channel.barrier = _decode_channel(values[_channel_key(source)])
                channel.acked = channel.received
        for key, value in values.items():
            if key[:1] == _ITEM_PREFIX and len(key) == 11:
                source, number = int.from_bytes(key[1:3], "big"), int.from_bytes(key[3:], "big")
                if not self._receive(source, number, _decode_item(value), True):
                    out.delete(key)
        if _BASE_KEY in values:
            self._kept_base = _decode_base(values[_BASE_KEY])
            self.base = self._kept_base.copy()
        self.paxos.on_start(values, now, out, saved.lost)
        self.paxos.held = self.paxos.amnesiac
        if self.paxos.amnesiac:
            self._reminders.begin(now, self.rng)
        else:
            self._begin_epoch(int.from_bytes(values.get(_EPOCH_KEY, b""), "big") + 1, out)
        if self.options.optimistic:
            self._deadlines.by("early", now)
        self._after_paxos(now, out)
        if not self.paxos.amnesiac:
            self.channels[self.group].acked = self.base.instance
        if not saved.first:
            for group in self.channels:
                self._send_ack(group, self.topology.groups[group], out)
        self._raise_floor(out)

    def _begin_epoch(self, epoch: int, out: Outbox) -> None:
        self._epoch = epoch
        out.put(_EPOCH_KEY, epoch.to_bytes(8, "big"))
        out.send_durable((self.self_id,), Ready())

    # -- dispatch -----------------------------------------------------------------------------------------------------

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        kind = type(message)
        group = self.topology.group_of[sender]
        if group != self.group and kind in (Accepted, Proposed):
            self._learn(sender, group, message, now, out)
        elif kind in paxos.MESSAGES:
            self.paxos.on_message(sender, message, now, out)
            self._after_paxos(now, out)
        elif kind is Stable:
            self._drop(self.log.on_stable_message(sender, message, out), out)
            self._notice_ahead(sender, message.watermark, now)
        elif kind is Ack:
            self._on_ack(sender, message.number, now)
        elif kind is Ask:
            self._on_ask(sender, message, now, out)
        elif kind is Want:
            self._on_wants(message.wants, now, out)
        elif kind is Early:
            self._on_early(sender, message, now, out)
        elif kind is Forgot:
            self._remind(sender, group, message.question, out)
        elif kind is Reminder:
            self._reminders.add(sender, message)
            self._deadlines.by("return", now)
        elif kind in (Ordered, Barrier, Repair):
            if group == self.group or group not in self.channels:
                raise PeerError(f"{kind.__name__} from group {group}, which may not send to group {self.group}")
            self._on_channel(sender, group, message, now, out)
        elif group != self.group:
            raise PeerError(f"{kind.__name__} from group {group}")
        elif kind is Cast:
            self._on_cast(sender, message, now)
        elif kind in self._transfer.handlers:
            self._transfer.handlers[kind].call(sender, message, now, out)
        else:
            self._ready = True
            self._send_casts(now, out)
            for cast in self._casts:
                self._send_early(cast, out)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """Lines 5-7."""
        self.refuse_beyond_limit(max(len(self._casts), len(self.waiting)))
        for group in message.destinations:
            if group != self.group and group not in self._receivers:
                raise Overloaded(f"group {self.group} may not send to group {group}: see the option 'senders'")
        if self.log.known(message.id) or message.id in self._cast_ids or message.id in self.waiting:
            return
        self._stamp = max(self.real_clock(now), self._stamp + 1)
        self._cast_number += 1
        cast = Cast(self.self_id, self._epoch, self._cast_number, self._stamp, message)
        if not self._casts:
            self._cast_at = now
            self._deadlines.by("casts", now + self.options.retry_us)
        self._casts.append(cast)
        self._cast_ids.add(message.id)
        if self._ready:
            if self._sent == len(self._casts) - 1:
                self._sent += 1
                out.send((self.paxos.promised.leader,), cast)
            self._send_early(cast, out)

    def _send_casts(self, now: int, out: Outbox) -> None:
        """To a leader that may lack them all: in order, few at first, so that no link's queue overflows with them; for
        each that is decided two more."""
        self._cast_at = now
        self._sent, self._cast_window = 0, _CASTS_MIN
        self._send_more_casts(out)

    def _send_more_casts(self, out: Outbox) -> None:
        if self._ready and self._sent < self._cast_window:
            more = list(islice(self._casts, self._sent, self._cast_window))
            self._sent += len(more)
            for cast in more:
                out.send((self.paxos.promised.leader,), cast)

    def _on_cast(self, sender: ProcessId, cast: Cast, now: int) -> None:
        """Lines 9-10, at the leader. A gap is left to the sender, who repeats."""
        if cast.sender != sender:
            raise PeerError("a cast in somebody else's name")
        if not self.paxos.leading:
            if self.paxos.promised.leader == self.self_id and len(self._held) < self.options.early_max:
                self._held.append(cast)
            return
        expected = self.base.casts if self.paxos.idle and not self._due else self._expected
        if self._follows(expected.get(sender), cast):
            self._expected[sender] = (cast.epoch, cast.number)
            real = self.real_clock(now)
            rtc = min(cast.rtc, real + self.options.stamp_ahead_us_max) if real else cast.rtc
            value = Cast(sender, cast.epoch, cast.number, rtc, cast.message)
            self._propose(((rtc, 0), 0, sender, cast.epoch, cast.number, _encode(value)))

    def _propose(self, due: _Due) -> None:
        """Line 25; optimistically, what is stamped lower may still be on its way (deviation 13)."""
        if self._wait_us:
            heappush(self._due, due)
        else:
            self.paxos.propose(due[-1])

    def _propose_due(self, now: int) -> None:
        """Without a clock to go by, and far beyond it, A2 does not hold: nothing is waited for."""
        due, real = self._due, self.real_clock(now)
        ahead_max = self.options.stamp_ahead_us_max
        while due and not (real and real < due[0][0][0] + self._wait_us <= real + self._wait_us + ahead_max):
            stamp, kind, *_, value = heappop(due)
            if kind == 1:
                self._due_nulls.discard(stamp)
                self._null = max(self._null, stamp)
            self.paxos.propose(value)

    # -- optimistic delivery ------------------------------------------------------------------------------------------

    def _send_early(self, cast: Cast, out: Outbox) -> None:
        """Section 3.2: the message to its destinations, and the requests for barriers, before its stamp is decided."""
        if not self.options.optimistic:
            return
        message, rtc = cast.message, cast.rtc
        stamps = dict.fromkeys(message.destinations, (rtc, 0))
        wants = self._wants(stamps) if self.options.liveness == "request" else {}
        for group in message.destinations:
            early = Early(cast.epoch, cast.number, rtc, message, wants.pop(group, []))
            out.send(self.topology.groups[group], early)
        for group, waiting in wants.items():
            out.send(self.topology.groups[group], Early(cast.epoch, cast.number, rtc, None, waiting))

    def _on_early(self, sender: ProcessId, early: Early, now: int, out: Outbox) -> None:
        message, group = early.message, self.topology.group_of[sender]
        if message is not None and group not in self.channels:
            raise PeerError(f"Early from group {group}, which may not send to group {self.group}")
        if message is not None and self.options.optimistic and self.log.known(message.id) is None:
            place = (early.rtc, group, sender, early.epoch, early.number)
            self.early.expect(place, message)
        real = self.real_clock(now)
        if not real or early.rtc <= real + self.options.stamp_ahead_us_max:
            self._on_wants(early.wants, now, out)
        elif early.wants and len(self._ahead_wants) < self.options.early_max:
            due = early.rtc - self.options.stamp_ahead_us_max
            heappush(self._ahead_wants, (due, early.wants))
            self._deadlines.by("ahead_wants", now + due - real)

    def _take_ahead_wants(self, now: int, out: Outbox) -> int | None:
        """Requests that were too far ahead of this process's clock: nobody repeats them soon. When to look again."""
        ahead, real = self._ahead_wants, self.real_clock(now)
        while ahead and ahead[0][0] <= real:
            self._on_wants(heappop(ahead)[1], now, out)
        return now + ahead[0][0] - real if ahead else None

    def _deliver_early(self, now: int, out: Outbox) -> None:
        for (rtc, group, *_), message in self.early.due(self.real_clock(now)):
            out.deliver(message, timestamp_of((rtc, 0), group), OPTIMISTIC)

    # -- the group's log ----------------------------------------------------------------------------------------------

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        part = self.paxos
        if part.promised != self._ballot:
            self._ballot = part.promised
            self._leaders[self.group] = part.promised.leader
            self._held.clear()
            self._due.clear()
            self._due_nulls.clear()
            self._ahead_base = None
            self._send_casts(now, out)
        decided = part.take()
        if decided:
            for instance, values in decided:
                self._on_decide(instance, values, now, out)
            if self._sent < len(self._casts):
                self._send_more_casts(out)
            self._raise_floor(out)
            self._ack_later(now)
        if part.leading and self._led != part.promised:
            self._led = part.promised
            self._begin_to_lead(now, out)
        if part.stranded:
            self._transfer.ask(now, out)

    def _begin_to_lead(self, now: int, out: Outbox) -> None:
        self._expected = dict(self.base.casts)
        self._wanted.clear()
        self._hints.clear()
        self._null = NEVER
        if self.options.direct_learners:
            self._ahead_base = self.base.copy()
            self._announced.clear()
        self._told = dict.fromkeys((self.group, *self._receivers), self._silent_at_first(self.real_clock(now)))
        for group in self._receivers:
            if self._quorum_has(group) < self.base.numbers.get(group, 0):
                self._send_barrier(group, self.topology.groups[group], out)
        self._deadlines.restart("hint", now + self.options.retry_us)
        held, self._held = self._held, []
        for cast in held:
            self._on_cast(cast.sender, cast, now)
        if self.options.liveness == "periodic":
            self._deadlines.by("nulls", now)

    def _on_decide(self, instance: int, values: list[bytes], now: int, out: Outbox) -> None:
        """Lines 26-39. The same at every member, but for what the leader sends."""
        base = self.base
        base.instance += 1
        assert base.instance == instance, "instances are taken in order"
        sent, requested = self._apply(base, values)
        own: Timestamp | None = None
        for group, items in sent.items():
            if group == self.group:
                for number, item in enumerate(items, base.numbers[group] + 1 - len(items)):
                    own = timestamp_of(item.stamp, group)
                    self._receive(group, number, item)
            else:
                self._outgoing[group] += items
        self._records.append((base.copy(), own))
        self._forget_casts(now)
        if self.paxos.leading:
            self._forward(sent, requested, self._was_announced(instance, values), now, out)

    def _apply(self, base: Base, values: list[bytes]) -> tuple[dict[GroupId, list[Item]], dict[GroupId, Stamp]]:
        """What a batch does to a log. Returns what is new for each group, and the stamps up to which it needs barriers
        that its sender has not requested already."""
        sent: dict[GroupId, list[Item]] = {}
        requested: dict[GroupId, Stamp] = {}
        for stamp, value in sorted(map(_in_order, map(_decode_value, values)), key=_sort_key):
            if type(value) is Null:
                base.last = max(base.last, stamp)
            if isinstance(value, Null) or not self._follows(base.casts.get(value.sender), value):
                continue
            base.casts[value.sender] = (value.epoch, value.number)
            item = Item(self._next_stamp(base, stamp), value.message)
            base.last = max(base.last, item.stamp)
            for group in value.message.destinations:
                sent.setdefault(group, []).append(item)
                base.numbers[group] = base.numbers.get(group, 0) + 1
                if not self.options.optimistic or item.stamp != stamp:
                    requested[group] = item.stamp
        return sent, requested

    def _follows(self, last: tuple[int, int] | None, cast: Cast) -> bool:
        """Whether the cast is its sender's next one after `last` = (epoch, number)."""
        if last is None or cast.epoch > last[0]:
            return cast.number == 1
        return cast.epoch == last[0] and cast.number == last[1] + 1

    def _next_stamp(self, base: Base, stamp: Stamp) -> Stamp:
        """Lines 29-30."""
        last = base.last
        return stamp if stamp > last else (last[0], last[1] + 1)

    def _forget_casts(self, now: int) -> None:
        """This process's casts that are decided need not be repeated."""
        epoch, number = self.base.casts.get(self.self_id, (0, 0))
        casts = self._casts
        while casts and epoch == self._epoch and casts[0].number <= number:
            self._cast_ids.discard(casts.popleft().message.id)
            self._cast_at = now
            self._sent = max(self._sent - 1, 0)
            self._cast_window = min(self._cast_window + 1, _CASTS_MAX)

    def _forward(
        self, sent: dict[GroupId, list[Item]], requested: dict[GroupId, Stamp], announced: bool, now: int, out: Outbox
    ) -> None:
        """Lines 34-37: decided messages to their destinations, requests to those who may block them, and barriers to
        those who wait for one. announced: it was told with the proposal, to all who can learn it."""
        wants = self._wants(requested) if self.options.liveness == "request" else {}
        for group in self._receivers:
            waiting = wants.pop(group, [])
            if not announced and group in sent:
                out.send(self.topology.groups[group], self._ordered(group, self.base, sent[group], waiting))
            elif not announced and waiting:
                out.send(self.topology.groups[group], Want(waiting))
        for group, waiting in wants.items():
            out.send(self.topology.groups[group], Want(waiting))
        self._answer_wants(out)
        if sent:
            self._deadlines.by("hint", now + self.options.retry_us)

    def _ordered(
        self, group: GroupId, base: Base, items: list[Item], wants: list[tuple[GroupId, Stamp]]
    ) -> Ordered:
        """To be sent to a group: it is a barrier, too."""
        first = base.numbers.get(group, 0) - len(items) + 1
        self._wanted.drop(group, base.last)
        self._told[group] = max(self._told.get(group, 0), base.last[0])
        return Ordered(first, items, base.last, wants)

    def _wants(self, requested: dict[GroupId, Stamp]) -> dict[GroupId, list[tuple[GroupId, Stamp]]]:
        """Blocking group -> the destinations that need its barrier, and up to where."""
        wants: dict[GroupId, list[tuple[GroupId, Stamp]]] = {}
        for group, stamp in sorted(requested.items()):
            for blocker in (group, *self.senders_to[group]):
                if blocker != self.group:
                    wants.setdefault(blocker, []).append((group, stamp))
        return wants

    # -- direct learners (Section 3.4) --------------------------------------------------------------------------------

    def _announce(self, out: Outbox) -> None:
        """At the leader: tell other groups what the instances just proposed will mean for them."""
        proposals = self.paxos.proposals
        if not proposals:
            return
        base = self._ahead_base
        for instance, values in proposals:
            if base is None or base.instance + 1 != instance:
                self._ahead_base = base = None
                break
            self._announced.append((instance, values))
            base.instance = instance
            sent, requested = self._apply(base, values)
            wants = self._wants(requested) if self.options.liveness == "request" else {}
            for group in self._receivers:
                items, waiting = sent.get(group, []), wants.get(group, [])
                if items or waiting or self._wanted.reached(group, base.last):
                    ordered = self._ordered(group, base, items, waiting)
                    proposed = Proposed(self.paxos.promised, instance, self.base.instance, ordered)
                    out.send(self.topology.groups[group], proposed)
        proposals.clear()

    def _was_announced(self, instance: int, values: list[bytes]) -> bool:
        """Whether this decision is what this leader announced. Once it is not, a higher ballot has begun."""
        while self._announced and self._announced[0][0] < instance:
            self._announced.popleft()
        if self._ahead_base is None or not self._announced:
            self._ahead_base = None
            return False
        same = self._announced.popleft() == (instance, values)
        if not same:
            self._ahead_base = None
        return same

    def _learn(self, sender: ProcessId, group: GroupId, message: Any, now: int, out: Outbox) -> None:
        """An acceptor or the leader of another group tells."""
        learner = self.learners.get(group)
        if learner is None:
            raise PeerError(f"{type(message).__name__} from group {group}, which this process does not learn from")
        if type(message) is Accepted:
            learned = learner.accepted(sender, message.ballot, message.instances)
        elif message.ballot.leader != sender:
            raise PeerError("a proposal in somebody else's ballot")
        else:
            learned = learner.tell(message.ballot, message.instance, message.decided, message.ordered)
        for ordered in learned:
            self._on_channel(learner.ballot.leader, group, ordered, now, out)

    # -- barriers -----------------------------------------------------------------------------------------------------

    def _on_wants(self, wants: list[tuple[GroupId, Stamp]], now: int, out: Outbox) -> None:
        """Lines 15-20, at the leader."""
        if not self.paxos.leading:
            return
        for group, stamp in wants:
            if group != self.group and group not in self._receivers:
                raise PeerError(f"group {group} wants a barrier of group {self.group}, which may not send to it")
            self._want(group, stamp)
        self._answer_wants(out)

    def _want(self, group: GroupId, stamp: Stamp) -> None:
        self._wanted.add(group, stamp)
        if stamp > max(self.base.last, self._null) and stamp not in self._due_nulls:
            if self._wait_us:
                self._due_nulls.add(stamp)
            else:
                self._null = stamp
            self._propose((stamp, 1, 0, 0, 0, _encode(Null(stamp))))

    def _answer_wants(self, out: Outbox) -> None:
        for group in self._wanted.groups():
            if self._wanted.drop(group, self.base.last):
                self._told[group] = max(self._told.get(group, 0), self.base.last[0])
                if group != self.group:
                    self._send_barrier(group, self.topology.groups[group], out)

    def _send_barrier(self, group: GroupId, to: tuple[ProcessId, ...], out: Outbox) -> None:
        out.send(to, Barrier(self.base.last, self.base.numbers.get(group, 0)))

    def _nulls_due(self, now: int, out: Outbox) -> int | None:
        """Algorithm 2, lines 6-11, at the leader."""
        if not self.paxos.leading:
            return None
        threshold: int = self.options.barrier_threshold_us
        wake, real = now + threshold, self.real_clock(now)
        if not real:
            return wake
        for group, told in list(self._told.items()):
            told = max(told, self.base.last[0]) if group == self.group else told
            if group in self._wanted:
                continue
            if real - told >= threshold:
                self._want(group, self._silent_since(told, real))
            else:
                wake = min(wake, now + told + threshold - real)
        self._answer_wants(out)
        return wake

    def _silent_at_first(self, now: int) -> int:
        """Line 3 of Algorithm 2 (deviation 7)."""
        return now

    def _silent_since(self, told: int, now: int) -> Stamp:
        """Line 8 of Algorithm 2 (deviation 7)."""
        threshold = self.options.barrier_threshold_us
        return (max(told + threshold, now - threshold), 0)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_channel(self, sender: ProcessId, group: GroupId, message: Any, now: int, out: Outbox) -> None:
        """Lines 11-14: messages and barriers of another group."""
        channel = self.channels[group]
        upto: int
        if type(message) is Barrier:
            upto, stamp = message.upto, message.stamp
        else:
            for number, item in enumerate(message.items, message.first):
                if number == channel.received + 1:
                    self._receive(group, number, item)
                    channel.received = number
            stamp = message.barrier
            upto = message.first + len(message.items) - 1 if type(message) is Ordered else message.upto
        if type(message) is Repair:
            channel.asked_at = 0
            if message.more and channel.received >= upto:
                self._ask(group, sender, now, out)
            if message.low > channel.received + 1:
                channel.low = message.low
                self._transfer.ask(now, out)
        else:
            self._leaders[group] = sender
        if self._covers(channel, upto):
            self._raise_barrier(channel, stamp)
            if type(message) is Barrier and channel.acked == channel.received:
                self._send_ack(group, (sender,), out)
        elif channel.low <= channel.received + 1:
            self._ask(group, sender, now, out)
        if channel.received > channel.acked:
            self._ack_later(now)
        if type(message) is Ordered and message.wants:
            self._on_wants(message.wants, now, out)
        self._raise_floor(out)

    def _covers(self, channel: Channel, upto: int) -> bool:
        """Whether everything that precedes the barrier is here."""
        return channel.received >= upto

    def _raise_barrier(self, channel: Channel, stamp: Stamp) -> None:
        channel.barrier = max(channel.barrier, stamp)

    def _receive(self, group: GroupId, number: int, item: Item, saved: bool = False) -> bool:
        """False if this process has delivered beyond it."""
        timestamp = timestamp_of(item.stamp, group)
        if timestamp <= self.log.timestamp:
            return False
        added = self.waiting.add(timestamp, barriers.Pending(group, number, item.message, saved))
        if added and group != self.group and not saved:
            self.channels[group].unsaved.append((number, timestamp))
        return True

    # -- delivery -----------------------------------------------------------------------------------------------------

    def _raise_floor(self, out: Outbox) -> None:
        """Lines 40-45: deliver what no group can precede any more."""
        self.channels[self.group].barrier = self.base.last
        self._floor = self._lowest_barrier()
        while (head := self.waiting.head) is not None:
            if head > self.log.timestamp and not self._passed(head):
                return
            timestamp, pending = self.waiting.pop()
            self._passed_some = True
            if pending.saved:
                out.delete(_item_key(pending.source, pending.number))
            if timestamp > self.log.timestamp and not self.log.is_repeated(pending.message.id, timestamp):
                self._delivered(pending.message, timestamp, out)
                out.deliver(pending.message, timestamp)

    def _lowest_barrier(self) -> Stamp:
        return min(channel.barrier for channel in self.channels.values())

    def _passed(self, timestamp: Timestamp) -> bool:
        """Whether all barriers have reached this message (deviation 2)."""
        return stamp_of(timestamp) <= self._floor

    def _delivered(self, message: AppMessage, timestamp: Timestamp, out: Outbox) -> None:
        """Common to a delivery and an installation."""
        self.early.final(message.id)
        self.log.add(message.id, message.destinations, timestamp, out)
        out.put(_DELIVERED_PREFIX + message.id, _encode(message.destinations))

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        self._delivered(message, timestamp, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        self._raise_floor(out)
        self._transfer.adopt_if_due(now, out)

    # -- repairs ------------------------------------------------------------------------------------------------------

    def _ask(self, group: GroupId, peer: ProcessId, now: int, out: Outbox) -> None:
        """For what is missing from a group, not too often."""
        channel = self.channels[group]
        if channel.asked_at and now - channel.asked_at < self.options.retry_us:
            return
        channel.asked_at = now
        head = self.waiting.head
        stamp = stamp_of(head) if head is not None else NEVER
        out.send((peer,), Ask(channel.received, stamp))

    def _on_ask(self, sender: ProcessId, ask: Ask, now: int, out: Outbox) -> None:
        group = self.topology.group_of[sender]
        if group not in self._receivers:
            raise PeerError(f"group {group} asks group {self.group}, which may not send to it")
        kept = self._outgoing[group]
        upto = self.base.numbers.get(group, 0)
        low = upto - len(kept) + 1
        first = max(low, ask.received + 1)
        some = islice(kept, first - low, None)
        items, *rest = portions(some, lambda item: len(item.message.payload), self.options.portion_bytes)
        if rest:
            out.send((sender,), Repair(first, items, items[-1].stamp, first + len(items) - 1, low, True))
        else:
            out.send((sender,), Repair(first, items, self.base.last, upto, low, False))
        if ask.stamp > self.base.last:
            if self.paxos.leading:
                self._on_wants([(group, ask.stamp)], now, out)
            elif self.paxos.promised.leader != self.self_id:
                out.send((self.paxos.promised.leader,), Want([(group, ask.stamp)]))

    def _watch_head(self, now: int) -> None:
        """Whatever comes to be the first pending message is given a period."""
        head = self.waiting.head
        if head != self._head:
            self._head = head
            self._deadlines.restart("blocked", now + self.options.retry_us)

    def _ask_if_blocked(self, now: int, out: Outbox) -> int | None:
        """The first pending message has waited for too long: ask the groups whose barriers it lacks."""
        if self._head is None:
            return None
        stamp = stamp_of(self._head)
        for group, channel in self.channels.items():
            if channel.barrier < stamp:
                self._ask_in_turn(group, channel, stamp, now, out)
        return now + int(self.options.retry_us)

    def _ask_in_turn(self, group: GroupId, channel: Channel, stamp: Stamp, now: int, out: Outbox) -> None:
        if group == self.group:
            out.send((self.paxos.promised.leader,), Want([(group, stamp)]))
            return
        members = self.topology.groups[group]
        peer = members[channel.turn // 2 % len(members)] if channel.turn % 2 else self._leaders[group]
        channel.turn += 1
        channel.asked_at = 0
        self._ask(group, peer, now, out)

    def _hint(self, now: int, out: Outbox) -> int | None:
        """At the leader: destinations that do not have everything for longer than a period hear the barrier again, so
        that they ask."""
        if not self.paxos.leading:
            return None
        waiting = False
        for group in self._receivers:
            number = self.base.numbers.get(group, 0)
            if self._quorum_has(group) < self._hints.get(group, 0):
                behind = tuple(p for p in self.topology.groups[group] if self._acks[p] < number)
                self._send_barrier(group, behind, out)
            waiting = waiting or self._quorum_has(group) < number
            self._hints[group] = number
        return now + self.options.retry_us if waiting else None

    def _notice_ahead(self, sender: ProcessId, watermark: Timestamp, now: int) -> None:
        if self.topology.group_of[sender] == self.group:
            self._behind.notice(sender, watermark, self.log.timestamp, now)
            if self._behind.wake_at:
                self._deadlines.by("behind", self._behind.wake_at)

    def _fetch_if_behind(self, now: int, out: Outbox) -> int | None:
        return self._behind.tick(self.log.timestamp, now, out)

    # -- a process that comes too late --------------------------------------------------------------------------------

    def _is_stranded(self) -> bool:
        return self.paxos.stranded or any(c.low > c.received + 1 for c in self.channels.values())

    def _states(self) -> list[State]:
        """What this process has, in portions."""
        if self.paxos.amnesiac:
            return []
        channels = [(g, c.received, c.barrier) for g, c in self.channels.items() if g != self.group]
        items = [
            (p.source, p.number, Item(stamp_of(t), p.message))
            for t, p in self.waiting.items.items()
            if p.source != self.group
        ]
        parts = portions(items, lambda item: len(item[2].message.payload), self.options.portion_bytes)
        return [
            State(self.log.position, self._kept_base, channels, some, part, len(parts))
            for part, some in enumerate(parts)
        ]

    def _adopt(self, state: State, now: int, out: Outbox) -> None:
        if state.base.instance > self.base.instance:
            self._kept_base = state.base
            self.base = state.base.copy()
            self._records.clear()
            for kept in self._outgoing.values():
                kept.clear()
            self._save_base(state.base, out)
            self.paxos.jump(state.base.instance, now, out)
            self._forget_casts(now)
            self._after_paxos(now, out)
        self._adopt_channels(state)
        self._raise_floor(out)
        self._ack_later(now)

    def _adopt_channels(self, state: State) -> None:
        before = {group: channel.received for group, channel in self.channels.items()}
        for group, number, item in state.items:
            if number > before[group]:
                self._receive(group, number, item)
        for group, received, barrier in state.channels:
            channel = self.channels[group]
            channel.received = max(channel.received, received)
            self._raise_barrier(channel, barrier)

    # -- a process that has lost its disk (deviation 14) --------------------------------------------------------------

    def _remind(self, sender: ProcessId, group: GroupId, question: int, out: Outbox) -> None:
        if self.paxos.amnesiac:
            return
        number, watermark = 0, self.log.mark_of(sender)
        if group == self.group:
            watermark = max(watermark, self.log.watermark)
        elif group in self._receivers:
            dropped = self.base.numbers.get(group, 0) - len(self._outgoing[group])
            number = max(self._acks[sender], dropped)
        out.send((sender,), Reminder(question, number, watermark))

    def _recollect(self, now: int, out: Outbox) -> int | None:
        """Ask for what is missing, or become a member again."""
        if not self.paxos.amnesiac:
            return None
        told = self._reminders
        behind = told.watermark > self.log.timestamp
        lacking = [(g, c) for g, c in self.channels.items() if g != self.group and c.received < told.numbers[g]]
        if not behind and not lacking and told.complete and self.paxos.may_return:
            self.paxos.finish_return(now, out)
            self._begin_epoch(self.base.casts.get(self.self_id, (0, 0))[0] + 1, out)
            for cast in self._casts:
                cast.epoch = self._epoch
            self._tell_receipts(out)
            return None
        if told.tick(now, out):
            if behind:
                out.catch_up(self._transfer.next_peer())
            for group, channel in lacking:
                self._ask_in_turn(group, channel, NEVER, now, out)
        return told.wake_at

    # -- garbage ------------------------------------------------------------------------------------------------------

    def on_stable(self, position: int, now: int, out: Outbox) -> None:
        self._drop(self.log.stable(position, out), out)

    def _drop(self, settled: list[MessageId], out: Outbox) -> None:
        for message_id in settled:
            out.delete(_DELIVERED_PREFIX + message_id)

    def _ack_later(self, now: int) -> None:
        self._deadlines.by("receipts", now + self.options.stability_us)

    def _tell_and_truncate(self, now: int, out: Outbox) -> None:
        self._tell_receipts(out)
        self._truncate(out)

    def _tell_receipts(self, out: Outbox) -> None:
        """Save what was received and is not delivered; then say so (deviation 11)."""
        if self.paxos.amnesiac:
            return
        for group, channel in self.channels.items():
            number = self.base.instance if group == self.group else channel.received
            if number > channel.acked:
                if group != self.group:
                    self._save_channel(group, channel, out)
                channel.acked = number
                self._send_ack(group, self.topology.groups[group], out)

    def _save_channel(self, group: GroupId, channel: Channel, out: Outbox) -> None:
        for number, timestamp in channel.unsaved:
            pending = self.waiting.items.get(timestamp)
            if pending is not None and not pending.saved:
                pending.saved = True
                out.put(_item_key(group, number), _encode(Item(stamp_of(timestamp), pending.message)))
        channel.unsaved.clear()
        out.put(_channel_key(group), _encode((channel.received, channel.barrier)))

    def _send_ack(self, group: GroupId, to: tuple[ProcessId, ...], out: Outbox) -> None:
        if not self.paxos.amnesiac:
            out.send_durable(to, Ack(self.channels[group].acked))

    def _on_ack(self, sender: ProcessId, number: int, now: int) -> None:
        if number > self._acks[sender]:
            self._acks[sender] = number
            if self._records:
                self._ack_later(now)

    def _quorum_has(self, group: GroupId) -> int:
        """What a quorum of the group has acknowledged."""
        acks = sorted((self._acks[p] for p in self.topology.groups[group]), reverse=True)
        return acks[self.topology.quorum(group) - 1]

    def _truncate(self, out: Outbox) -> None:
        """Drop the instances that nobody needs any more (deviation 11)."""
        has = {group: self._quorum_has(group) for group in (self.group, *self._receivers)}
        records = self._records
        last: Base | None = None
        while records:
            after, own = records[0]
            if (
                after.instance > has[self.group]
                or (own is not None and own in self.waiting.items)
                or any(after.numbers.get(group, 0) > has[group] for group in self._receivers)
            ):
                break
            last = after
            records.popleft()
        if last is None:
            return
        self._kept_base = last
        self._save_base(last, out)
        self.paxos.truncate(last.instance, out)
        for group, kept in self._outgoing.items():
            while len(kept) > self.base.numbers.get(group, 0) - last.numbers.get(group, 0):
                kept.popleft()

    def _save_base(self, base: Base, out: Outbox) -> None:
        out.put(_BASE_KEY, _encode(base))

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        group = self.topology.group_of[peer]
        self.log.forget_reports(peer)
        self._transfer.forget(peer)
        if group == self.group:
            self.paxos.on_peer_reset(peer, now)
            if peer == self.paxos.promised.leader:
                self._send_casts(now, out)
        if group in self.channels:
            self.channels[group].asked_at = 0
            self._send_ack(group, (peer,), out)
        if self.paxos.leading and group in self._receivers and self._acks[peer] < self.base.numbers.get(group, 0):
            self._send_barrier(group, (peer,), out)

    def end_batch(self, now: int, out: Outbox) -> None:
        self._end_paxos_batch(now, out)
        self.log.end_batch(out)

    def _end_paxos_batch(self, now: int, out: Outbox) -> None:
        if self._due:
            self._propose_due(now)
        self.paxos.end_batch(now, out)
        if self.paxos.proposals:
            self._announce(out)

    def on_clock(self, off: bool, now: int) -> None:
        super().on_clock(off, now)
        self.paxos.on_clock(off, now)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self._watch_head(now)
        if self._passed_some and self._records:
            self._ack_later(now)
        self._passed_some = False
        if self.paxos.amnesiac:
            self._deadlines.by("return", now)
        paxos_wake = self.paxos.tick(now, out)
        log_wake = None if self.paxos.amnesiac else self.log.tick(now, out)
        if self._deadlines.due(now):
            self._deadlines.run(now, out)
            self._end_paxos_batch(now, out)
        return earliest(paxos_wake, log_wake, self._deadlines.wake_at, self._optimistic_wake(now, out))

    def _optimistic_wake(self, now: int, out: Outbox) -> int | None:
        """Deliver early what is due. What waits for the real clock is looked at again when that will have come so far,
        if it does not jump."""
        real = self.real_clock(now)
        if not real:
            return None
        early = self.early.wake_at
        if early is not None and early <= real:
            self._deliver_early(now, out)
            early = self.early.wake_at
        due = self._due[0][0][0] + self._wait_us if self._due else None
        return earliest(
            None if early is None else now + early - real, None if due is None else now + max(1, due - real)
        )

    def _forget_early(self, now: int, out: Outbox) -> int:
        period: int = self.options.retry_us
        self.early.forget(self.real_clock(now) - _EARLY_RETRIES * period)
        return now + period

    def _repeat_casts(self, now: int, out: Outbox) -> int | None:
        if not self._casts:
            return None
        if now - self._cast_at >= self.options.retry_us:
            self._send_casts(now, out)
        return self._cast_at + int(self.options.retry_us)

    # -- for people ---------------------------------------------------------------------------------------------------

    def reads_real_clock(self) -> bool:
        return True

    def strict_groups_max(self) -> int | None:
        return None if barriers.all_promise(self.senders_to) else 1

    def is_member(self) -> bool:
        return not self.paxos.amnesiac

    def leader_of(self, group: GroupId) -> ProcessId | None:
        return self._leaders[group]

    def role(self) -> str:
        return "recovering" if self.paxos.amnesiac else self.paxos.status

    def describe(self) -> dict[str, Any]:
        return {
            **self.paxos.describe(),
            "last": f"{self.base.last[0]}/{self.base.last[1]}",
            "pending": len(self.waiting),
            "submitted": len(self._casts),
            "outgoing": sum(map(len, self._outgoing.values())),
            "unsettled": self.log.unsettled,
            "early": self.early.early,
            "mistakes": self.early.mistakes,
        }

    def inspect(self) -> dict[str, Any]:
        messages = {c.message.id.hex(): seen(SUBMITTED, Timestamp(c.rtc, 0)) for c in self._casts}
        for timestamp, pending in sorted(self.waiting.items.items(), reverse=True):
            late = {g: c.barrier for g, c in self.channels.items() if c.barrier < stamp_of(timestamp)}
            why = [{"group": group, "barrier": list(barrier)} for group, barrier in late.items()]
            messages[pending.message.id.hex()] = seen("decided", None, timestamp, why, source=pending.source)
        channels = {str(g): {"received": c.received, "barrier": list(c.barrier)} for g, c in self.channels.items()}
        return {**super().inspect(), **self.paxos.inspect(), "channels": channels, "messages": messages}


def _in_order(value: Cast | Null) -> tuple[Stamp, Cast | Null]:
    return (value.stamp, value) if type(value) is Null else ((value.rtc, 0), value)  # type: ignore[union-attr]


def _sort_key(entry: tuple[Stamp, Cast | Null]) -> tuple[Any, ...]:
    """Line 27, with equal stamps in a fixed order that is FIFO."""
    stamp, value = entry
    return (stamp, 0, value.sender, value.epoch, value.number) if isinstance(value, Cast) else (stamp, 1)
