"""FastCast: fault-tolerant Skeen with an optimistic path (Coelho, Schiper, Pedone, DSN 2017; after the accounts of it
in the White-Box paper, Section VI, and the PrimCast paper, Section 4.1).

Theory of operation. The leader of each destination group stamps m and tells the stamp at once (Soft, "SND-SOFT"), while
it has it decided in its group. A leader with the soft stamps of all destination groups takes their maximum for the
global timestamp and has its group's clock moved to it, in a second consensus beside the first. A decided stamp is told
again (Stamp, "SND-HARD"). The maximum of the hard stamps is m's global timestamp. Usually it is what the soft ones
promised, and the second consensus is over when they arrive: m is committed. Otherwise (a leader changed meanwhile) the
group's clock is moved by another consensus: the slow path. What a group's log and its clock are, and why followers
deliver when they do, is parts.replicated; here is what goes to whom.

    message        from -> to                                     durable before it leaves
    Multicast      sender -> all processes of the destinations    -
    Soft           leader -> all processes of the destinations    -  (it binds nobody)
    Paxos*         inside a group: twice per message              see parts.paxos
    Stamp          leader -> all processes of the destinations    -  (it is decided)
    Deliver        leader -> others of its group                  -  (not with early_clock)
    the rest                                                      parts.replicated

Latency, in δ: Multicast 1; Soft 1 and consensus 2, beside consensus 2 and Stamp 1: 4 at the leader. The stamping clock
moves when the second consensus is decided, after 4: the failure-free latency is 8. With `early_clock` it moves when
that is proposed, after 2: 6.

Messages for k groups of n, those to oneself counted: kn + 2k²n + 2kn + 2kn², the accepted votes going to all members;
and k(n - 1) Delivers without `early_clock`.

When to pick it: to compare with White-Box, which is quicker with fewer messages. With `early_clock` its followers
deliver as soon as its leaders, and a convoy costs two delays only.

Errata and deviations:
1. As with fault-tolerant Skeen, a replica that delivers by hard stamps and the log violates the order, since what is
   stamped low while the clock's move is being decided comes later in the log. So followers deliver on the leader's
   word, at 5; with `early_clock` by themselves, at 4.
2. "The hard maximum equals the optimistic one" is more than is needed: any decided move of the clock to the global
   timestamp or beyond will do, be it for another message; and the slow path runs only if none is under way.
3. Replicas take a global timestamp from the hard stamps that they hear, not from their log. A new leader asks the
   other groups for them again; they can answer until the message is settled, and then this group's quorum has delivered
   it, and the leader with them (parts.replicated). A timestamp beyond the deduplication window counts only once it is
   in the log: stamps of copies of one message might be confused there.
   Such a maximum is in doubt if this group has stamped m in time. Maybe all did, those around the leader have delivered
   it by stamps that the leader has not heard, and another group, which has forgotten m since, has stamped a copy. So
   the leader stands for election again, to deliver first what any of a quorum has (parts.reign), and concludes only
   what was in doubt in an earlier reign. If m was forgotten anywhere, it had been settled before, and is among that.
4. Followers take no notice of soft stamps. They are sent to them because the published number of messages has them.
"""

from __future__ import annotations

import random
from typing import ClassVar

import msgspec

from multicast.parts import group_member, paxos, replicated
from multicast.parts.group_log import Entry
from multicast.parts.replicated import Multicast, ReplicatedOptions, ReplicatedSkeen
from multicast.protocol import Handler, Options, Outbox, PeerError, Specification
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology


class Soft(msgspec.Struct, array_like=True, tag=20, gc=False):
    """The leader of `ballot` proposes this local timestamp of m in its group."""

    id: MessageId
    ballot: Ballot
    local: Timestamp


class FastCastOptions(ReplicatedOptions, kw_only=True, forbid_unknown_fields=True):
    """See ReplicatedOptions."""


class FastCast(ReplicatedSkeen):
    """One process. softs: at a leader, id -> group -> (ballot, stamp) of the latest Soft. doubts: messages of whose
    timestamp it is in doubt -> its ballot when it first was (erratum 3)."""

    specification: ClassVar[Specification] = Specification(
        name="fastcast",
        summary="FastCast: Skeen over consensus with an optimistic path of four message delays",
        paper="Coelho, Schiper, Pedone, Fast Atomic Multicast, DSN 2017, as retold in the PrimCast paper, Section 4.1",
        options=FastCastOptions,
        messages=(Soft, *replicated.ORDERING, *replicated.HOUSEKEEPING, *paxos.MESSAGES),
        housekeeping=(*replicated.HOUSEKEEPING, *paxos.HOUSEKEEPING),
        vouching=(*group_member.VOUCHING, *paxos.VOUCHING),
        fault_tolerant=True,
        survives_lost_disk=True,
        leader_reads=True,
        genuine=True,
        strict_groups_max=1,
        latency=(4, 5),
    )

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self.softs: dict[MessageId, dict[GroupId, tuple[Ballot, Timestamp]]] = {}
        self.doubts: dict[MessageId, Ballot] = {}
        self._in_doubt = False
        self._deadlines.add("doubts", self._end_doubts)
        self.handlers[Soft] = Handler(self._on_soft)

    def _entry_points(self, message: AppMessage) -> tuple[ProcessId, ...]:
        return self.topology.members(message.destinations)

    def _on_multicast(self, sender: ProcessId, multicast: Multicast, now: int, out: Outbox) -> None:
        """Who does not lead says nothing of the leader: the message was sent to all members, so it has it, too. (Who
        asks later what became of it may not reach the leader, and is told.)"""
        if self.member.acting:
            super()._on_multicast(sender, multicast, now, out)
        else:
            self._check(multicast.message)
            self.member.hold(sender, multicast.message)

    # -- the optimistic path ------------------------------------------------------------------------------------------

    def _on_proposed(self, entry: Entry, out: Outbox) -> None:
        """SND-SOFT: tell the proposed stamp before it is decided."""
        soft = Soft(entry.message.id, self.member.reign.ballot, entry.local)
        out.send(self.topology.members(entry.message.destinations), soft)

    def _on_soft(self, sender: ProcessId, soft: Soft, now: int, out: Outbox) -> None:
        group = self.topology.group_of[sender]
        if soft.ballot.leader != sender:
            raise PeerError("a stamp of somebody else's ballot")
        self._learn_leader(group, soft.ballot, now)
        entry, known = self.member.entry_of(soft.id), self.log.known(soft.id)
        if not self.member.acting or (entry is None and known is not None) or (entry is not None and entry.position):
            return
        held = self.softs.get(soft.id)
        if held is None:
            held = self.softs[soft.id] = {}
            self._expect(soft.id, now)
        if group not in held or held[group][0] < soft.ballot:
            held[group] = (soft.ballot, soft.local)
        if entry is not None and not entry.raised and len(held) == len(entry.message.destinations):
            entry.raised = True
            self.member.advance(entry, max(stamp for _, stamp in held.values()), False)

    # -- hard stamps --------------------------------------------------------------------------------------------------

    def _tell_stamp(self, entry: Entry, out: Outbox) -> None:
        """SND-HARD: tell the decided stamp."""
        out.send(self.topology.members(entry.message.destinations), self._stamp_of(entry))

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        """All hard stamps are known. If a move of the clock to their maximum is decided, commit; if one is under way,
        wait for it; else begin one, which is the slow path."""
        late = self.member.log.window.is_late(entry.message.id, final.time)
        if late and self._doubts(entry):
            return
        if not late and entry.final is None:
            self.member.log.set_final(entry, final)
        moved_to = max(self.member.reign.raised_to, self.member.log.clock)
        if self.member.acting and not entry.concluded and (late or final.time > moved_to):
            entry.concluded = True
            self.member.advance(entry, final, True)

    def _doubts(self, entry: Entry) -> bool:
        """Whether a message with a late timestamp may have been delivered in time here, unknown to this leader."""
        if not self.member.acting or self.member.log.window.is_late(entry.message.id, entry.local.time):
            return False
        ballot = self.member.reign.ballot
        in_doubt = self.doubts.setdefault(entry.message.id, ballot) == ballot
        self._in_doubt |= in_doubt
        return in_doubt

    def end_batch(self, now: int, out: Outbox) -> None:
        if self._in_doubt:
            self._in_doubt = False
            self._deadlines.by("doubts", now + self.options.heartbeat_us)  # there may be many
        super().end_batch(now, out)

    def _end_doubts(self, now: int, out: Outbox) -> None:
        if self.member.reign.ballot in self.doubts.values():
            self.member.lead_anew(now, out)

    def _forget(self, message_id: MessageId) -> None:
        super()._forget(message_id)
        self.softs.pop(message_id, None)
        self.doubts.pop(message_id, None)
