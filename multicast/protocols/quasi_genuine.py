"""Quasi-genuine FIFO total order multicast with barriers (2011 draft, Algorithms 1, 2 and 3).

Theory of operation. A sender stamps m with its clock, (rtc, 0), and has it decided by consensus in *its own* group,
which need not be a destination. Decided messages of a group get rising stamps (rtc, seq): one that is decided too late
for its stamp gets the next one after the last (parts.stream). So a group's log is a stream of stamps, and "my last
stamp is b" is a promise, a *barrier*: nothing up to b will follow. Whoever has decided a message sends it, with the
barrier, to its destinations, which deliver in the order of (rtc, seq, source group): m once the barriers of all groups
that may send to them, their own among them, have reached m's stamp (parts.channels). A group with nothing to say must
be made to speak: it decides a *null message*, which only raises its last stamp, when a barrier is requested (liveness
"request", Algorithm 3: together with m, from all groups that could block m) or when it was silent for a while
("periodic", Algorithm 2).

    message    from -> to                                       durable before it leaves
    Cast       sender -> leader of its group                    the sender's life (parts.casts; and Ready)
    Paxos*     inside a group (parts.paxos)                     see there
    Early      sender -> members of destinations and blockers   the sender's life (`optimistic`)
    Ordered    leader -> members of a destination               -  (what is decided is on a quorum's disks)
    Proposed   leader -> members of a destination               -  (`direct_learners`; counts with acceptors' votes)
    Barrier    leader -> members of a destination               -  (as Ordered)
    Want       leader -> members of a blocking group            -
    Ask        member -> a member of a source group             -
    Repair     member -> who asked                              -
    Ack        member -> members of a source group              everything received so far, up to the number in it
    and those of parts.transfer (State), parts.reminders and parts.delivered

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
5. A barrier is a maximum, and counts once all messages that precede it are here (parts.channels).
6. A leader bounds a stamp to `stamp_ahead_us_max` beyond its own clock: a fast clock would hold everybody up. The
   clocks of senders and leaders are those of `MulticastProtocol.real_clock`, so that no minority of clocks is fast. A
   destination that is blocked nevertheless asks for the barrier that it lacks, with Algorithm 2, too; and what is
   stamped further ahead of the leader's clock than a threshold, as after all clocks were set back, requests it.
7. Algorithm 2 begins at the present time, and its null is never older than one threshold: after a pause one null
   suffices.
8. The leader alone forwards. It repeats the barrier until a quorum of the destination has everything; whoever finds a
   gap, or is blocked, asks any member of the source group (parts.channels).
9. FIFO holds for each sender's life whatever is lost (parts.casts). Copies that come by way of another group are
   dropped (parts.copies).
10. Garbage: messages and instances (parts.stream) go when receipts for them are there (parts.channels).
11. A leader whose ballot is over forwards nothing any more, but what it has announced to direct learners stays valid:
   it counts only if acceptors have accepted it in that ballot, and all before it.
12. Section 3.2 says that under A2 line 30 is never executed, but lets members propose a message when they receive it:
   one that is stamped lower may arrive later, though in time. Section 3.3's rule, to propose when the clock has passed
   the stamp plus w, is needed there as well, and for nulls, too.
13. A process that lost its disk comes back as its group's consensus says (parts.paxos). What was *decided* with its
   vote is safe by that: stamps, and barriers, which are nothing but the last stamp of the group's decided log, no
   promise of the process that sent them. What it had acknowledged is not; it must have that again, too
   (parts.reminders), and until then tells and acknowledges nothing. Its next life follows the last one that it finds
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
from heapq import heappop, heappush
from typing import Any, ClassVar

import msgspec

from multicast.parts import barriers, paxos, reminders
from multicast.parts.barrier_leader import BarrierLeader
from multicast.parts.barriers import Ack, Ask, Barrier, Item, Ordered, Repair, Stamp, Want, stamp_of, timestamp_of
from multicast.parts.behind import Behind
from multicast.parts.casts import Casts, Ready, saved_life
from multicast.parts.channels import Channels
from multicast.parts.copies import CopiesLog
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import Watermark
from multicast.parts.early import Early, EarlyDeliveries
from multicast.parts.inspection import SUBMITTED, seen
from multicast.parts.learner import RemoteLearner
from multicast.parts.options import GroupOptions
from multicast.parts.paxos import Accepted, Paxos
from multicast.parts.portions import portions
from multicast.parts.reminders import Forgot, Reminder, Reminders
from multicast.parts.stream import Base, Cast, Sent, Stream, carried
from multicast.parts.transfer import StateAsk, StateTransfer
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, Overloaded, PeerError, Saved, Specification
from multicast.types import FINAL, OPTIMISTIC, AppMessage, Ballot, GroupId, ProcessId, Timestamp, Topology

_PARALLEL_MAX = 64
_EARLY_RETRIES = 20
"""After so many retries' time what was delivered early is not expected to be delivered finally any more."""

_Wanted = list[tuple[GroupId, Stamp]]


class Proposed(msgspec.Struct, array_like=True, tag=13, gc=False):
    """What this instance means for the receiver's group if it is decided in this ballot. decided: up to where the
    leader knows all instances to be decided as it proposed them."""

    ballot: Ballot
    instance: int
    decided: int
    ordered: Ordered


class State(msgspec.Struct, array_like=True, tag=10, gc=False):
    """What holds after delivery number `position`. channels: (source group, messages received, barrier). items: (source
    group, number, message): received and not delivered. In portions: this is `number` of `count`."""

    bulk: ClassVar[bool] = True
    position: int
    base: Base
    channels: list[tuple[GroupId, int, Stamp]]
    items: list[tuple[GroupId, int, Item]]
    number: int
    count: int


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

    alike: ClassVar[tuple[str, ...]] = (*GroupOptions.alike, "senders")

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


class QuasiGenuine(MulticastProtocol):
    """One process. `stream` is its group's log, `channels` are what comes from others, `leader` is what it knows
    while it leads."""

    specification = Specification(
        name="quasi_genuine",
        summary="Quasi-genuine barriers: every group promises past each message; strictly serializable as it is",
        paper="A Quasi-Genuine FIFO Total Order Multicast Primitive, 2011 (draft)",
        options=QuasiGenuineOptions,
        messages=(
            Cast, Early, Ordered, Proposed, Barrier, Want, Ask, Repair, Ack, StateAsk, State, Ready, Watermark,
            *reminders.MESSAGES, *paxos.MESSAGES,
        ),
        housekeeping=(Ask, Repair, Ack, StateAsk, State, Ready, Watermark, *reminders.MESSAGES, *paxos.HOUSEKEEPING),
        vouching=(Ack, Ready, *paxos.VOUCHING),
        fault_tolerant=True,
        survives_lost_disk=True,
        genuine=False,
        fifo=True,
        stages=(OPTIMISTIC, FINAL),
        strict_groups_max=None,
        latency=(7, 7),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        members = topology.groups[self.group]
        self.senders_to = barriers.senders_to(topology, o.senders)
        self._receivers = tuple(g for g in topology.groups if self.group in self.senders_to[g])
        self.log = CopiesLog(self_id, topology, o.stability_us, o.dedup_window_us)
        parallel = max(_PARALLEL_MAX, o.instances_max) if o.parallel_consensus else o.instances_max
        self.paxos = Paxos(self_id, members, o, rng, parallel)
        self.election = self.paxos.election
        self.election.detector.reach.need_quorums(topology)
        self.paxos.instances.carried = carried
        self.learners: dict[GroupId, RemoteLearner[Ordered]] = {}
        if o.direct_learners:
            self.paxos.learners = topology.members(self._receivers)
            self.paxos.proposals = []
            self.learners = {g: RemoteLearner(topology.quorum(g)) for g in self.senders_to[self.group]}
        self.stream = Stream(topology, self.group, self._receivers, o.optimistic)
        self._deadlines = deadlines = Deadlines({
            "early": self._forget_early, "ahead_wants": self._take_ahead_wants,
            "receipts": self._tell_and_truncate, "hint": self._hint, "nulls": self._break_silence,
            "return": self._recollect,
        })  # fmt: skip
        self.channels = Channels(
            self.group, topology, (self.group, *self.senders_to[self.group]), self.log, o.retry_us, deadlines,
            self._leader_of, self.is_member,
        )  # fmt: skip
        self._casts = Casts(self_id, o.retry_us, deadlines, lambda: self.paxos.promised.leader, self._send_early)
        self._transfer = StateTransfer(
            self_id, members, o.retry_us, deadlines, State, position=lambda: self.log.position,
            is_needed=lambda: self.paxos.stranded or self.channels.are_cut_off, give=self._states, adopt=self._adopt,
        )  # fmt: skip
        self.leader: BarrierLeader | None = None
        self._ballot = Ballot(0, 0)
        self._held: list[Cast] = []
        self._leaders = {g: leader for g, (leader, *_) in topology.groups.items()}
        self.early = EarlyDeliveries(o.wait_us, o.pending_max, o.dedup_window_us)
        self._ahead_wants: list[tuple[int, _Wanted]] = []
        self._behind = Behind(self_id, topology, self.log, o.retry_us, rng, deadlines)
        self._reminders = Reminders(self_id, topology, o.retry_us)
        self._passed_some = False
        self.handlers = {
            **dict.fromkeys(paxos.MESSAGES, Handler(self._on_paxos, own_group=True)),
            **dict.fromkeys((Ordered, Barrier, Repair), Handler(self._on_channel)),
            Accepted: Handler(self._on_accepted), Proposed: Handler(self._on_proposed),
            Want: Handler(self._on_want), Ask: Handler(self._on_ask), Ack: Handler(self._on_ack),
            Cast: Handler(self._on_cast, own_group=True), **self._casts.handlers, Early: Handler(self._on_early),
            Forgot: Handler(self._on_forgot), Reminder: Handler(self._on_reminder), **self._transfer.handlers,
            Watermark: Handler(self._on_watermark),
        }  # fmt: skip

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        values = saved.values
        self.log.recover(values, saved.position)
        self.channels.restore(values, out)
        self.stream.restore(values)
        self.paxos.on_start(values, now, out, saved.lost)
        self.paxos.held = amnesiac = self.paxos.amnesiac
        if amnesiac:
            self._reminders.begin(now, self.rng)
        else:
            self._casts.begin(saved_life(values) + 1, out)
        if self.options.optimistic:
            self._deadlines.by("early", now)
        self._after_paxos(now, out)
        if not saved.first and not amnesiac:
            self.channels.tell_again(self.stream.base.instance, out)
        self._deliver(out)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        """Lines 5-7."""
        waiting, lacking = self.channels.waiting, self.stream.lacking(message.destinations)
        self.refuse_beyond_limit(max(len(self._casts), len(waiting), lacking))
        for group in message.destinations:
            if group != self.group and group not in self._receivers:
                raise Overloaded(f"group {self.group} may not send to group {group}: see the option 'senders'")
        if not self.log.known(message.id) and message.id not in self._casts and message.id not in waiting:
            self._casts.add(message, self.real_clock(now), now, out)

    def _on_cast(self, sender: ProcessId, cast: Cast, now: int, out: Outbox) -> None:
        """Lines 9-10, at the leader. If a cast before it is missing, it is left to its sender, who repeats both."""
        if cast.sender != sender:
            raise PeerError("a cast in somebody else's name")
        leader = self._leading()
        if leader is None:
            if self.paxos.promised.leader == self.self_id and len(self._held) < self.options.early_max:
                self._held.append(cast)
            return
        leader.take_cast(cast, self.real_clock(now))

    def _leading(self) -> BarrierLeader | None:
        """What this process knows while it leads; None if it does not."""
        return self.leader if self.paxos.leading else None

    # -- optimistic delivery ------------------------------------------------------------------------------------------

    def _send_early(self, cast: Cast, out: Outbox) -> None:
        """Section 3.2: send the message to its destinations, and the requests for barriers, before its stamp is
        decided."""
        if not self.options.optimistic:
            return
        message, rtc = cast.message, cast.rtc
        stamps = dict.fromkeys(message.destinations, (rtc, 0))
        wants = self._wants(stamps, rtc)
        for group in message.destinations:
            early = Early(cast.life, cast.number, rtc, message, wants.pop(group, []))
            out.send(self.topology.groups[group], early)
        for group, waiting in wants.items():
            out.send(self.topology.groups[group], Early(cast.life, cast.number, rtc, None, waiting))

    def _on_early(self, sender: ProcessId, early: Early, now: int, out: Outbox) -> None:
        message, group = early.message, self.topology.group_of[sender]
        if message is not None and group not in self.channels.of:
            raise PeerError(f"Early from group {group}, which may not send to group {self.group}")
        if message is not None and self.options.optimistic and self.log.known(message.id) is None:
            place = (early.rtc, group, sender, early.life, early.number)
            self.early.expect(place, message, self.log.timestamp.time)
        real = self.real_clock(now)
        if not real or early.rtc <= real + self.options.stamp_ahead_us_max:
            self._take_wants(early.wants, out)
        elif early.wants and len(self._ahead_wants) < self.options.early_max:
            due = early.rtc - self.options.stamp_ahead_us_max
            heappush(self._ahead_wants, (due, early.wants))
            self._deadlines.by("ahead_wants", now + due - real)

    def _take_ahead_wants(self, now: int, out: Outbox) -> int | None:
        """Take requests that were too far ahead of this process's clock, if that is still known: nobody repeats them
        soon. Returns when to look again."""
        ahead, real = self._ahead_wants, self.real_clock(now)
        while ahead and (not real or ahead[0][0] <= real):
            self._take_wants(heappop(ahead)[1], out)
        return now + ahead[0][0] - real if ahead else None

    def _deliver_early(self, now: int, out: Outbox) -> None:
        for (rtc, group, *_), message in self.early.due(self.real_clock(now), now):
            out.deliver(message, timestamp_of((rtc, 0), group), OPTIMISTIC)

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
        leader = self._leading()
        due = None if leader is None else leader.due_at
        return earliest(
            None if early is None else now + early - real, None if due is None else now + max(1, due - real)
        )

    def _forget_early(self, now: int, out: Outbox) -> int:
        period: int = self.options.retry_us
        self.early.forget(now - _EARLY_RETRIES * period)
        return now + period

    # -- the group's log ----------------------------------------------------------------------------------------------

    def _on_paxos(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        self.paxos.on_message(sender, message, now, out)
        self._after_paxos(now, out)

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice a new leader."""
        part = self.paxos
        if part.promised != self._ballot:
            self._ballot = part.promised
            self.leader = None
            self._held.clear()
            self._casts.send_again(now, out)
        begins = part.leading and self.leader is None
        if begins:  # what is decided with that is forwarded, too
            self._new_leader()
        decided = part.instances.take()
        for instance, values in decided:
            self._on_decide(instance, values, now, out)
        if decided:
            self._casts.send_more(out)
            self._deliver(out)
            self._ack_later(now)
        if begins:
            self._begin_to_lead(now, out)
        if part.stranded:
            self._transfer.ask(now, out)

    def _begin_to_lead(self, now: int, out: Outbox) -> None:
        leader = self._new_leader()
        leader.told = dict.fromkeys((self.group, *self._receivers), self.real_clock(now))
        for group in self._receivers:
            if self.stream.quorum_has(group) < self.stream.number(group):
                self._send_barrier(group, self.topology.groups[group], out)
        self._deadlines.restart("hint", now + self.options.retry_us)
        held, self._held = self._held, []
        for cast in held:
            self._on_cast(cast.sender, cast, now, out)
        if self.options.liveness == "periodic":
            self._deadlines.by("nulls", now)

    def _new_leader(self) -> BarrierLeader:
        o = self.options
        wait_us = o.wait_us if o.optimistic else 0
        self.leader = BarrierLeader(self.stream, wait_us, o.stamp_ahead_us_max, self.paxos.propose, o.direct_learners)
        return self.leader

    def _on_decide(self, instance: int, values: list[bytes], now: int, out: Outbox) -> None:
        """Lines 26-39. The same at every member, but for what the leader sends."""
        sent, requested = self.stream.decide(instance, values)
        own = sent.get(self.group, [])
        for number, item in enumerate(own, self.stream.number(self.group) + 1 - len(own)):
            self.channels.receive(self.group, number, item)
        self._casts.forget(self._own_last(), now)
        leader = self._leading()
        if leader is not None:
            self._forward(leader, sent, requested, leader.was_announced(instance, values), now, out)

    def _own_last(self) -> tuple[int, int]:
        """(life, number) of this process's last cast that is decided."""
        return self.stream.base.casts.get(self.self_id, (0, 0))

    def _forward(
        self, leader: BarrierLeader, sent: Sent, requested: dict[GroupId, Stamp], announced: bool, now: int, out: Outbox
    ) -> None:
        """Lines 34-37: send decided messages to their destinations, requests to those who may block them, and barriers
        to those who wait for one. announced: the proposal has told all this already, to all who can learn it."""
        wants = self._wants(requested, self.real_clock(now))
        for group in self._receivers:
            waiting = wants.pop(group, [])
            if not announced and group in sent:
                ordered = self._ordered(leader, group, self.stream.base, sent[group], waiting)
                out.send(self.topology.groups[group], ordered)
            elif not announced and waiting:
                out.send(self.topology.groups[group], Want(waiting))
        for group, waiting in wants.items():
            out.send(self.topology.groups[group], Want(waiting))
        self._answer_wants(leader, out)
        if sent:
            self._deadlines.by("hint", now + self.options.retry_us)

    def _ordered(
        self, leader: BarrierLeader, group: GroupId, base: Base, items: list[Item], wants: _Wanted
    ) -> Ordered:
        """What a group is sent of decided messages; it is a barrier, too."""
        first = base.numbers.get(group, 0) - len(items) + 1
        leader.tells(group, base.last)
        return Ordered(first, items, base.last, wants)

    def _wants(self, requested: dict[GroupId, Stamp], real: int) -> dict[GroupId, _Wanted]:
        """With Algorithm 3: blocking group -> the destinations that need its barrier, and up to where. With Algorithm 2
        only what clocks, as `real`, would not reach for long: stamps may be far ahead of them, if they were set
        back."""
        wants: dict[GroupId, _Wanted] = {}
        by_clock = real + self.options.barrier_threshold_us if self.options.liveness == "periodic" else -1
        for group, stamp in sorted(requested.items()):
            if stamp[0] <= by_clock:
                continue
            for blocker in (group, *self.senders_to[group]):
                if blocker != self.group:
                    wants.setdefault(blocker, []).append((group, stamp))
        return wants

    # -- direct learners (Section 3.4) --------------------------------------------------------------------------------

    def _announce(
        self, leader: BarrierLeader, proposals: list[tuple[int, list[bytes]]], now: int, out: Outbox
    ) -> None:
        """At the leader: tell other groups what the instances just proposed will mean for them."""
        for instance, values in proposals:
            announced = leader.announce(instance, values)
            if announced is None:
                break
            base, sent, requested = announced
            wants = self._wants(requested, self.real_clock(now))
            for group in self._receivers:
                items, waiting = sent.get(group, []), wants.get(group, [])
                if items or waiting or leader.wanted.reached(group, base.last):
                    ordered = self._ordered(leader, group, base, items, waiting)
                    proposed = Proposed(self.paxos.promised, instance, self.stream.base.instance, ordered)
                    out.send(self.topology.groups[group], proposed)
        proposals.clear()

    def _on_accepted(self, sender: ProcessId, accepted: Accepted, now: int, out: Outbox) -> None:
        """An acceptor, of the own group or of another one, has accepted."""
        if self.topology.group_of[sender] == self.group:
            self._on_paxos(sender, accepted, now, out)
            return
        learner = self._learner(sender, accepted)
        for ordered in learner.accepted(sender, accepted.ballot, accepted.instances):
            self._on_channel(learner.ballot.leader, ordered, now, out)

    def _on_proposed(self, sender: ProcessId, proposed: Proposed, now: int, out: Outbox) -> None:
        """The leader of another group has proposed."""
        learner = self._learner(sender, proposed)
        if proposed.ballot.leader != sender:
            raise PeerError("a proposal in somebody else's ballot")
        for ordered in learner.tell(proposed.ballot, proposed.instance, proposed.decided, proposed.ordered):
            self._on_channel(learner.ballot.leader, ordered, now, out)

    def _learner(self, sender: ProcessId, message: Any) -> RemoteLearner[Ordered]:
        group = self.topology.group_of[sender]
        if group not in self.learners:
            raise PeerError(f"{type(message).__name__} from group {group}, which this process does not learn from")
        return self.learners[group]

    # -- barriers -----------------------------------------------------------------------------------------------------

    def _on_want(self, sender: ProcessId, want: Want, now: int, out: Outbox) -> None:
        self._take_wants(want.wants, out)

    def _take_wants(self, wants: _Wanted, out: Outbox) -> None:
        """Lines 15-20, at the leader."""
        leader = self._leading()
        if leader is None:
            return
        for group, stamp in wants:
            if group != self.group and group not in self._receivers:
                raise PeerError(f"group {group} wants a barrier of group {self.group}, which may not send to it")
            leader.want(group, stamp)
        self._answer_wants(leader, out)

    def _answer_wants(self, leader: BarrierLeader, out: Outbox) -> None:
        for group in leader.wanted.groups():
            if leader.answers(group) and group != self.group:
                self._send_barrier(group, self.topology.groups[group], out)

    def _send_barrier(self, group: GroupId, to: tuple[ProcessId, ...], out: Outbox) -> None:
        out.send(to, Barrier(self.stream.base.last, self.stream.number(group)))

    def _break_silence(self, now: int, out: Outbox) -> int | None:
        """Algorithm 2, at the leader."""
        leader, real = self._leading(), self.real_clock(now)
        threshold: int = self.options.barrier_threshold_us
        if leader is None or not real:
            return None if leader is None else now + threshold
        wait = leader.break_silence(real, threshold)
        self._answer_wants(leader, out)
        return now + wait

    def _hint(self, now: int, out: Outbox) -> int | None:
        """At the leader: repeat the barrier to destinations that have lacked something for longer than a period, so
        that they ask for it."""
        leader, stream = self._leading(), self.stream
        if leader is None:
            return None
        for group in self._receivers:
            if leader.overdue(group):
                self._send_barrier(group, stream.behind(group), out)
        waiting = any(stream.quorum_has(group) < stream.number(group) for group in self._receivers)
        return now + int(self.options.retry_us) if waiting else None

    # -- receiving, delivery ------------------------------------------------------------------------------------------

    def _on_channel(self, sender: ProcessId, message: Ordered | Barrier | Repair, now: int, out: Outbox) -> None:
        """Lines 11-14: messages and barriers of another group."""
        group = self.topology.group_of[sender]
        if group == self.group or group not in self.channels.of:
            kind = type(message).__name__
            raise PeerError(f"{kind} from group {group}, which may not send to group {self.group}")
        self.channels.take(group, sender, message, now, out)
        if type(message) is not Repair:
            self._leaders[group] = sender
        elif self.channels.of[group].is_cut_off:
            self._transfer.ask(now, out)
        if self.channels.owes_receipt(group):
            self._ack_later(now)
        if isinstance(message, Ordered) and message.wants:
            self._take_wants(message.wants, out)
        self._deliver(out)

    def _deliver(self, out: Outbox) -> None:
        """Lines 40-45: deliver what no group can precede any more."""
        self.channels.raise_lowest(self.stream.base.last)
        while (first := self.channels.pop(out)) is not None:
            timestamp, pending = first
            self._passed_some = True
            if timestamp > self.log.timestamp and not self.log.is_repeated(pending.message.id, timestamp):
                self._delivered(pending.message, timestamp, out)
                out.deliver(pending.message, timestamp)

    def _delivered(self, message: AppMessage, timestamp: Timestamp, out: Outbox) -> None:
        """What a delivery and an installation have in common."""
        self.early.final(message.id)
        self.log.delivered(message, timestamp, out)

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        self._delivered(message, timestamp, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        self._deliver(out)
        self._transfer.adopt_if_due(now, out)

    # -- repairs ------------------------------------------------------------------------------------------------------

    def _on_ask(self, sender: ProcessId, ask: Ask, now: int, out: Outbox) -> None:
        group = self.topology.group_of[sender]
        if group not in self._receivers:
            raise PeerError(f"group {group} asks group {self.group}, which may not send to it")
        out.send((sender,), self.stream.repair(group, ask.received, self.options.portion_bytes))
        if ask.stamp > self.stream.base.last:
            if self.paxos.leading:
                self._take_wants([(group, ask.stamp)], out)
            elif self.paxos.promised.leader != self.self_id:
                out.send((self.paxos.promised.leader,), Want([(group, ask.stamp)]))

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        self.log.on_watermark(sender, told, out)
        self._behind.notice(sender, told.watermark, now)

    # -- a process that comes too late --------------------------------------------------------------------------------

    def _states(self) -> list[State]:
        """The state of this process, in portions."""
        if self.paxos.amnesiac:
            return []
        channels, items = self.channels.state()
        lists = portions(items, lambda item: len(item[2].message.payload), self.options.portion_bytes)
        return [
            State(self.log.position, self.stream.kept, channels, some, number, len(lists))
            for number, some in enumerate(lists)
        ]

    def _adopt(self, state: State, now: int, out: Outbox) -> None:
        if state.base.instance > self.stream.base.instance:
            self.stream.adopt(state.base, out)
            self.paxos.jump(state.base.instance, now, out)
            self._casts.forget(self._own_last(), now)
            self._after_paxos(now, out)
            if (leader := self._leading()) is not None:
                self._answer_wants(leader, out)
        self.channels.adopt(state.channels, state.items)
        self._deliver(out)
        self._ack_later(now)

    # -- a process that has lost its disk (deviation 13) --------------------------------------------------------------

    def _on_forgot(self, sender: ProcessId, forgot: Forgot, now: int, out: Outbox) -> None:
        if self.paxos.amnesiac:
            return
        watermark = self.log.watermark_of(sender)
        if self.topology.group_of[sender] == self.group:
            watermark = max(watermark, self.log.watermark)
        out.send((sender,), Reminder(forgot.question, self.stream.vouched_by(sender), watermark))

    def _on_reminder(self, sender: ProcessId, reminder: Reminder, now: int, out: Outbox) -> None:
        self._reminders.add(sender, reminder)

    def _recollect(self, now: int, out: Outbox) -> int | None:
        """Ask for what is missing, or become a member again."""
        if not self.paxos.amnesiac:
            return None
        told = self._reminders
        behind = told.watermark > self.log.timestamp
        lacking = self.channels.lacking(told.numbers)
        if not behind and not lacking and told.complete and self.paxos.may_return:
            self.paxos.finish_return(now, out)
            self._casts.begin(self._own_last()[0] + 1, out)
            self.channels.tell_receipts(self.stream.base.instance, out)
            return None
        if told.tick(now, out):
            if behind:
                out.catch_up(self._transfer.next_peer())
            for group in lacking:
                self.channels.ask_in_turn(group, now, out)
        return told.wake_at

    # -- garbage ------------------------------------------------------------------------------------------------------

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self.log.durable(position, out)

    def _ack_later(self, now: int) -> None:
        self._deadlines.by("receipts", now + self.options.stability_us)

    def _tell_and_truncate(self, now: int, out: Outbox) -> None:
        self.channels.tell_receipts(self.stream.base.instance, out)
        dropped = self.stream.truncate(self.channels.waiting.items, out)
        if dropped:
            self.paxos.instances.truncate(dropped, out)

    def _on_ack(self, sender: ProcessId, ack: Ack, now: int, out: Outbox) -> None:
        if self.stream.acknowledge(sender, ack.number) and self.stream.droppable:
            self._ack_later(now)
        if self.topology.group_of[sender] == self.group:
            self.paxos.see(ack.number, now)

    # -- timers -------------------------------------------------------------------------------------------------------

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        group = self.topology.group_of[peer]
        self.log.forget_reports(peer)
        self._transfer.forget(peer)
        if group == self.group:
            self.paxos.on_peer_reset(peer, now)
            if peer == self.paxos.promised.leader:
                self._casts.send_again(now, out)
        self.channels.on_peer_reset(peer, out)
        if self.paxos.leading and group in self._receivers and peer in self.stream.behind(group):
            self._send_barrier(group, (peer,), out)

    def end_batch(self, now: int, out: Outbox) -> None:
        self._end_paxos_batch(now, out)
        self.log.end_batch(out)

    def _end_paxos_batch(self, now: int, out: Outbox) -> None:
        leader = self._leading()
        if leader is not None:
            leader.propose_due(self.real_clock(now))
        self.paxos.end_batch(now, out)
        if leader is not None and self.paxos.proposals:
            self._announce(leader, self.paxos.proposals, now, out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        self.channels.watch(now)
        if self._passed_some and self.stream.droppable:
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

    # -- for people ---------------------------------------------------------------------------------------------------

    def reads_real_clock(self) -> bool:
        return True

    def strict_groups_max(self) -> int | None:
        return None if barriers.all_promise(self.senders_to) else 1

    def waits_for(self) -> tuple[GroupId, ...]:
        return self.senders_to[self.group]

    def leader_of(self, group: GroupId) -> ProcessId | None:
        return self._leader_of(group)

    def _leader_of(self, group: GroupId) -> ProcessId:
        return self.paxos.promised.leader if group == self.group else self._leaders[group]

    def role(self) -> str:
        return "recovering" if self.paxos.amnesiac else self.paxos.role()

    def describe(self) -> dict[str, Any]:
        last = self.stream.base.last
        return {
            **self.paxos.describe(),
            "last": f"{last[0]}/{last[1]}",
            "pending": len(self.channels.waiting),
            "submitted": len(self._casts),
            "outgoing": self.stream.outgoing,
            "unsettled": self.log.unsettled,
            "early": self.early.early,
            "mistakes": self.early.mistakes,
        }

    def inspect(self) -> dict[str, Any]:
        messages = {c.message.id.hex(): seen(SUBMITTED, Timestamp(c.rtc, 0)) for c in self._casts}
        of = self.channels.of
        for timestamp, pending in sorted(self.channels.waiting.items.items(), reverse=True):
            late = {g: c.barrier for g, c in of.items() if c.barrier < stamp_of(timestamp)}
            why = [{"group": group, "barrier": list(barrier)} for group, barrier in late.items()]
            messages[pending.message.id.hex()] = seen("decided", None, timestamp, why, source=pending.source)
        channels = {str(g): {"received": c.received, "barrier": list(c.barrier)} for g, c in of.items()}
        return {**super().inspect(), **self.paxos.inspect(), "channels": channels, "messages": messages}
