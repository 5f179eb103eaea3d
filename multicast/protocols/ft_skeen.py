"""Fault-tolerant Skeen: every group plays one process of Skeen's protocol by means of consensus (White-Box paper, IV).

Theory of operation. The leader of each destination group stamps m with its clock and has (m, lts) decided in its group;
the leaders tell one another these local timestamps; each has (m, gts), the maximum of them, decided together with the
group's clock moving to it; then m may be delivered, in the order of the global timestamps, once nothing lower can come.
All of this, and why followers deliver when they do, is parts.replicated; here is what goes to whom.

    message        from -> to                                   durable before it leaves
    Multicast      sender -> leaders of the destinations        -
    Paxos*         inside a group: twice per message            see parts.paxos
    Stamp          leader -> leaders of the destinations        -  (it is decided)
    Deliver        leader -> others of its group                -  (not with early_clock)
    the rest                                                    parts.replicated

Latency, in δ: Multicast 1, consensus 2, Stamp 1, consensus 2: 6 at the leader. The stamping clock moves when the gts is
decided, after 6: the failure-free latency is 12. With `early_clock` it moves at the proposal, after 4: 10.

Messages for k groups of n, those to oneself counted: k + k² + 2(kn + kn²), the accepted votes going to all members; and
k(n - 1) Delivers without `early_clock`.

When to pick it: as the baseline of the others. It asks nothing of consensus but decisions, and pays for that.

Errata and deviations:
1. The figures of 6 at every replica and of 12 with a convoy do not go together. If a message that reaches the leader
   until 6δ may still be ordered before m, nobody but the leader can know before 7δ that none did; and a replica that
   delivers when it learns the decision of gts violates the order. So followers deliver one δ after the leader, at 7.
   With `early_clock` they deliver as soon as they learn the decision: at 6, or at 5 for n = 3, a follower's own vote
   and the leader's being a quorum.
2. "Use state-machine replication to make a group simulate a process" (Section IV), taken at its word, gives stamps in
   the order of the log, hence 10 and not 12: that is `early_clock`.
3. Whoever leads next must not stamp before it has recovered the log: parts.replicated.
"""

from __future__ import annotations

from typing import ClassVar

from multicast.parts import group_member, paxos, replicated
from multicast.parts.group_log import Entry
from multicast.parts.replicated import ReplicatedOptions, ReplicatedSkeen, Stamp
from multicast.protocol import Outbox, Specification
from multicast.types import ProcessId, Timestamp


class FtSkeenOptions(ReplicatedOptions, kw_only=True, forbid_unknown_fields=True):
    """See ReplicatedOptions."""


class FtSkeen(ReplicatedSkeen):
    """One process."""

    specification: ClassVar[Specification] = Specification(
        name="ft_skeen",
        summary="Skeen's protocol over black-box consensus: six message delays, survives a minority of every group",
        paper="Gotsman, Lefort, Chockler, White-Box Atomic Multicast, DSN 2019, Section IV (after Fritzke et al. 2001)",
        options=FtSkeenOptions,
        messages=(*replicated.ORDERING, *replicated.HOUSEKEEPING, *paxos.MESSAGES),
        housekeeping=(*replicated.HOUSEKEEPING, *paxos.HOUSEKEEPING),
        vouching=(*group_member.VOUCHING, *paxos.VOUCHING),
        fault_tolerant=True,
        survives_lost_disk=True,
        leader_reads=True,
        genuine=True,
        strict_groups_max=1,
        latency=(6, 7),
    )

    def _tell_stamp(self, entry: Entry, out: Outbox) -> None:
        leaders = tuple(self.leaders[g].leader for g in entry.message.destinations)
        out.send(leaders, self._stamp_of(entry))

    def _on_stamp(self, sender: ProcessId, stamp: Stamp, now: int, out: Outbox) -> None:
        """If it is the first stamp of another group's new leader, tell that leader our stamps: the old one got them."""
        group = self.topology.group_of[sender]
        known = self.leaders[group]
        self._refers(sender, out)
        super()._on_stamp(sender, stamp, now, out)
        if self.leaders[group] != known and self.member.acting:
            pending = [e for e in self.member.log.undelivered() if group in e.message.destinations]
            self._tell_stamps((sender,), pending, False, out)

    def _conclude(self, entry: Entry, final: Timestamp) -> None:
        """All stamps are known: have the global timestamp decided."""
        if self.member.acting and not entry.concluded and entry.final is None:
            entry.concluded = True
            self.member.advance(entry, final, True)
