"""ToTo, S-ToTo, G-ToTo and GL-ToTo: symmetric atomic broadcast over a causal multicast (1994).

Theory of operation. All processes of all groups form one broadcast group. In a *view* its members multicast *casts*
causally (parts.causal_view): a cast carries messages and names its past. Nobody leads: once enough casts are there, a
delivery rule (parts.causal) orders them, everywhere alike. So that it may, every member follows each cast that carries
messages with a cast of its own, an empty one if it has nothing to say; when nothing is pending, nothing is sent but
heartbeats. A process orders a cast only when it is *safe*, held on the disks of a majority of all processes, and
tells what it holds by its casts and by receipts. Each group delivers its projection of the order: the messages that are
addressed to it.

A member that is silent blocks the order; so views change (parts.views). The leader of a consensus among all processes
(parts.paxos) coordinates (parts.coordinator): who was not heard for a while leaves, who comes back is admitted. The
flush before each new view makes all members finish the old one with the same casts: *virtual synchrony*.

    message    from -> to                           durable before it leaves
    Cast       member -> members                    itself and everything it follows
    Receipt    member -> members                    what it says is held
    Flush      coordinator -> members               -
    Flushed    member -> coordinator                that it stopped, and what it holds
    Ask        process -> who holds casts           -
    Copies     member -> who asked                  -
    Alive      process -> coordinator               whatever it has written
    StateAsk   process -> member of its group       -
    State      member -> who asked                  -  (what it says is agreed, or in its journal before it is read)
    Paxos*     among all processes                  see parts.paxos
    Relay      process outside the view -> member   -  (parts.submissions)
    Known      member -> who had it relay           -
    Watermark  process -> destination groups        -  (parts.delivered)

Collision-free: the cast, the casts that follow it, their receipts: 3δ at every process, for any Φ, and 2N² messages for
N processes in all, whatever the destinations. What arrives while the own last receipt or cast waits for the disk
shares the next receipt.

Timestamps. The order gives each message the time max(previous + 1, stamp of its cast), whoever it is addressed to, and
whether it is delivered or dropped as a repetition. A view begins with the time at which the one before ended. So the
time is the same everywhere, rises, and follows the senders' clocks (stamps are 0 with the logical clock).

Why the order is sound. Safe casts are in every cut (parts.views), and closed under causality. Of any part of the DAG,
the delivery rule orders a prefix of what it orders of the whole. So what any process delivered in a view, even one that
left it then, is a prefix of what all who finish the view deliver. The rest of the cut, in which some members may be
silent for ever, is ordered by what all know: the cut itself.

Who cannot finish a view by itself (it was no member, or it was away) comes back through its group: it joins the next
view at once as a voter, asks a member of its group that is *complete* for the time at the view's beginning and its
position, installs what it lacks from that one's journal, and goes on from there. What the order repeats up to its last
delivery's timestamp it skips. Only complete members count for a flush, a quorum of each group; each of them can finish
the view by itself. So in every group somebody can always help.

Deviations from the paper, with reasons:
1. Readings of the delivery rules: see parts.causal.
2. The paper leaves membership and virtual synchrony to others. Here a view holds a quorum of every group; the consensus
   and safe casts need a majority of all processes, which a minority of each group cannot prevent.
3. The paper counts a message as received when it is received. Here processes crash and come back: only what is durable
   counts, and only safe casts are ordered, which costs one message delay.
4. The threshold is bounded to what is safe for the number of members of a view.
5. A message may be multicast again through another process. All copies are ordered; the first one in the order is
   delivered, others are dropped. With a deduplication window an id is remembered for two windows after its delivery; a
   copy that is ordered later than that is delivered again, expired.
6. Casts are dropped when all members hold them and they are ordered here; how far the order has come is saved with
   that.

Whom the coordinator does not reach stays outside, as long as that link is broken. It fetches what its group has
delivered from peers, and what it is to multicast a member does for it (Relay), which tells it when it has delivered
that. Each Relay is all that waits, in order, so that messages of one process stay in order whoever passes them on.

What is delivered is strictly serializable with any number of groups: an order of which everybody delivers a prefix
cannot put what is multicast later before what was delivered.

Not survived: a lost disk. Orderings relied on: none for safety; FIFO links make gaps rare.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import msgspec

from multicast.parts import paxos
from multicast.parts.ballots import Echo
from multicast.parts.behind import Behind
from multicast.parts.causal import RULES, EarlyDelivery, phi_range
from multicast.parts.causal_view import CausalView
from multicast.parts.coordinator import Alive, Coordinator, Flush
from multicast.parts.copies import CopiesLog
from multicast.parts.deadlines import Deadlines, earliest
from multicast.parts.delivered import Known, Watermark
from multicast.parts.inspection import SUBMITTED, seen
from multicast.parts.options import GroupOptions
from multicast.parts.paxos import Paxos
from multicast.parts.portions import one_by_one
from multicast.parts.retries import resendable
from multicast.parts.submissions import Relay
from multicast.parts.transfer import StateAsk
from multicast.parts.views import Cast, Flushed, NewView, Span, ViewRecord, bytes_of
from multicast.protocol import Handler, MulticastProtocol, Options, Outbox, Overloaded, PeerError, Saved, Specification
from multicast.types import AppMessage, Ballot, GroupId, MessageId, ProcessId, Timestamp, Topology, quorum_of

_VIEW_KEY, _ORDER_KEY = b"v", b"o"
_CAST_PREFIX = b"c"
_UNSAFE_MAX = 64
_CAST_BYTES = 256 * 1024
_SPAN_MAX = 1_000
_HANDED_BYTES_MIN = 4_000
"""Of a portion that is handed out: each takes a consensus, and who comes back fetches them one after the other."""


class Receipt(msgspec.Struct, array_like=True, tag=2, gc=False):
    """I durably hold so many casts of each member of this view. ask: tell me what you hold."""

    view: int
    held: list[int]
    ask: bool


class Ask(msgspec.Struct, array_like=True, tag=5, gc=False):
    """Send me these casts."""

    view: int
    spans: list[Span]


class Copies(msgspec.Struct, array_like=True, tag=6, gc=False):
    """Casts of others, and mine."""

    view: int
    casts: list[Cast]


class OrderRecord(msgspec.Struct, array_like=True):
    """How far the order has come in a view, as saved when casts are dropped. base: up to which ones."""

    view: int
    ordered: list[int]
    early: int
    time: int
    base: list[int]


class State(msgspec.Struct, array_like=True, tag=9, gc=False):
    """The present view, the consensus instance that decided it, and the order's time when it began. position: the
    group's deliveries from before it are among so many first ones, and those up to `order`. order: how far it has come
    here by now."""

    number: int
    members: list[ProcessId]
    instance: int
    time: int
    position: int
    order: OrderRecord


class TotoOptions(GroupOptions, kw_only=True, forbid_unknown_fields=True):
    """rule: "toto", "s_toto", "g_toto" or "gl_toto". phi: the threshold, bounded to what is safe for the rule and the
    number of members; 0: half of them.
    heartbeat_us: of the coordinator, and to it. election_timeout_us: silence after which the coordinator is replaced,
    or a member leaves the view. The rest: `GroupOptions`.
    """

    drawn: ClassVar[dict[str, tuple[Any, ...]]] = {"rule": RULES}
    alike: ClassVar[tuple[str, ...]] = (*GroupOptions.alike, "rule", "phi")

    rule: str = "gl_toto"
    phi: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}, not {self.rule!r}")
        if self.phi < 0:
            raise ValueError("phi must be at least 0")

    @classmethod
    def draw(cls, rng: random.Random, topology: Topology) -> dict[str, Any]:
        members = len(topology.processes)
        return {**super().draw(rng, topology), "phi": rng.choice((0, rng.randrange(members)))}


_encode = msgspec.msgpack.Encoder().encode
_decode_cast = msgspec.msgpack.Decoder(Cast).decode
_decode_new_view = msgspec.msgpack.Decoder(NewView).decode
_decode_view = msgspec.msgpack.Decoder(ViewRecord).decode
_decode_order = msgspec.msgpack.Decoder(OrderRecord).decode


_HOUSEKEEPING = (Flush, Flushed, Ask, Copies, Alive, StateAsk, State, Relay, Known, Watermark, *paxos.MESSAGES)


def _cast_key(cast: Cast) -> bytes:
    return _CAST_PREFIX + cast.author.to_bytes(4, "big") + cast.number.to_bytes(8, "big")


class Toto(MulticastProtocol):
    """One process. `record` is the present view, `view` its casts, `order` the delivery rule on the safe ones."""

    specification = Specification(
        name="toto",
        summary="The ToTo family: symmetric atomic broadcast with early delivery; not genuine, strictly serializable",
        paper="Johnson and Maugis, New Rules for Early Delivery in an Atomic Multicast System, 1994",
        options=TotoOptions,
        messages=(Cast, Receipt, *_HOUSEKEEPING),
        housekeeping=_HOUSEKEEPING,
        vouching=(Cast, Receipt, Flushed, Copies, Alive, *paxos.VOUCHING),
        fault_tolerant=True,
        genuine=False,
        strict_groups_max=None,
    )
    order_class = EarlyDelivery

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        o = self.options
        everybody = topology.processes
        self.peers = tuple(p for p in topology.groups[self.group] if p != self_id)
        self.log = CopiesLog(self_id, topology, o.stability_us, o.dedup_window_us)
        self.paxos = Paxos(self_id, everybody, o, rng)
        self.election = self.paxos.election
        self.record = ViewRecord(1, list(everybody), 0, False, True, 0)
        self.time = 0
        self._begin_view()
        self._mine: dict[MessageId, AppMessage] = {}
        self._asking: dict[MessageId, ProcessId] = {}
        self._queue: deque[AppMessage] = deque()
        self._early: list[tuple[ProcessId, Any]] = []
        self._target: State | None = None
        self._state_turn = self._ask_turn = self._relay_turn = 0
        self._told: list[int] = []
        self._asked: dict[ProcessId, tuple[int, set[ProcessId]]] = {}
        self._gaps: dict[ProcessId, int] = {}
        self._dirty = False
        self._led = Ballot(0, 0)
        self.coordinator = Coordinator(
            self_id, topology, o.election_timeout_us, max(o.portion_bytes, _HANDED_BYTES_MIN),
            may_propose=self._may_propose, propose=lambda new: self.paxos.propose(_encode(new)), ask=self._ask,
        )  # fmt: skip
        self._deadlines = Deadlines({"beat": self._beat, "drop": self._drop, "retry": self._retry})
        self._behind = Behind(self_id, topology, self.log, o.retry_us, rng, self._deadlines)
        self._of_view: dict[type, Callable[[ProcessId, Any, int, Outbox], None]] = {
            Cast: self._on_cast, Receipt: self._on_receipt, Ask: self._on_ask, Copies: self._on_copies,
            Flush: self._on_flush,
        }  # fmt: skip
        self._pass_on = self.on_submit
        self.handlers = {
            **dict.fromkeys(self._of_view, Handler(self._on_view_message)),
            **dict.fromkeys(paxos.MESSAGES, Handler(self._on_paxos)),
            Alive: Handler(self._on_alive), Flushed: Handler(self._on_flushed), Watermark: Handler(self._on_watermark),
            Relay: Handler(self._on_relay), Known: Handler(self._on_known),
            StateAsk: Handler(self._on_state_ask, own_group=True), State: Handler(self._on_state, own_group=True),
        }  # fmt: skip

    def _begin_view(self) -> None:
        record = self.record
        n = len(record.members)
        self.view = CausalView(record.number, record.members, self.self_id, quorum_of(len(self.topology.processes)))
        allowed = phi_range(self.options.rule, n)
        phi = min(max(self.options.phi or n // 2, allowed.start), allowed.stop - 1)
        self.order = self.order_class(n, self.options.rule, phi)
        self._revealed = [0] * n

    # -- life ---------------------------------------------------------------------------------------------------------

    def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
        values = saved.values
        self.log.recover(values, saved.position)
        if _VIEW_KEY in values:
            self.record = _decode_view(values[_VIEW_KEY])
            self._begin_view()
            self.time = self.record.time
            if _ORDER_KEY in values:
                self._resume(_decode_order(values[_ORDER_KEY]))
            for key in sorted(k for k in values if k[:1] == _CAST_PREFIX and len(k) == 13):
                self.view.restore(_decode_cast(values[key]))
        else:
            self._save_view(out)
        self.paxos.on_start(values, now, out)
        self._after_paxos(now, out)
        if not saved.first:
            self._tell(self.view.others, True, out)
        self._tell((self.self_id,), False, out)
        self._deadlines.by("beat", now)
        self._dirty = True

    def _resume(self, saved: OrderRecord) -> None:
        if saved.view != self.record.number:
            raise AssertionError(f"the order of view {saved.view} is saved beside view {self.record.number}")
        self.view.drop_below(saved.base)
        self.order.resume(saved.ordered, saved.early)
        self._revealed = list(saved.ordered)
        self.time = saved.time

    def _save_view(self, out: Outbox) -> None:
        out.put(_VIEW_KEY, _encode(self.record))

    # -- what arrives -------------------------------------------------------------------------------------------------

    def _on_view_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        """A message about a view. If the view is a later one, the message waits until that is entered."""
        if message.view == self.record.number:
            self._of_view[type(message)](sender, message, now, out)
        elif message.view > self.record.number and len(self._early) < self.options.early_max:
            self._early.append((sender, message))

    def _is_between_members(self, sender: ProcessId, message: Any) -> bool:
        """Whether this process is a member of the view; then the sender must be, too."""
        view = self.view
        if view.me is not None and sender not in view.index:
            raise PeerError(f"{type(message).__name__} from outside view {view.number}")
        return view.me is not None

    def _on_cast(self, sender: ProcessId, cast: Cast, now: int, out: Outbox) -> None:
        if self._is_between_members(sender, cast):
            self._take(cast, out)

    def _on_receipt(self, sender: ProcessId, receipt: Receipt, now: int, out: Outbox) -> None:
        view = self.view
        if not self._is_between_members(sender, receipt):
            return
        if len(receipt.held) != view.n:
            raise PeerError("a receipt for other members")
        if view.learn(view.index[sender], receipt.held):
            self._dirty = True
        if receipt.ask:
            self._tell((sender,), False, out)

    def _on_copies(self, sender: ProcessId, copies: Copies, now: int, out: Outbox) -> None:
        authors = self._asked.pop(sender, (0, set()))[1]
        self.coordinator.keep(copies.casts, now, out)
        if self.view.me is None:
            return
        for cast in copies.casts:
            self._take(cast, out)
        if authors and not self.record.stopped:
            self._ask_for_gaps(authors, now, out)

    def _on_alive(self, sender: ProcessId, alive: Alive, now: int, out: Outbox) -> None:
        if alive.view == self.record.number:
            self.coordinator.hear(sender, alive, now)

    def _on_flushed(self, sender: ProcessId, flushed: Flushed, now: int, out: Outbox) -> None:
        self.coordinator.answer(sender, flushed, now, out)

    def _on_watermark(self, sender: ProcessId, told: Watermark, now: int, out: Outbox) -> None:
        self.log.on_watermark(sender, told, out)

    # -- multicast ----------------------------------------------------------------------------------------------------

    def on_submit(self, message: AppMessage, now: int, out: Outbox) -> None:
        self.refuse_beyond_limit(len(self._mine))
        if self.log.known(message.id) is None and message.id not in self._mine:
            self._mine[message.id] = message
            self._queue.append(message)
            self._retry_by(now)

    def _speak(self, now: int, out: Outbox) -> None:
        """Send what is queued; follow what others sent; tell what is held."""
        view = self.view
        if view.me is None or self.record.stopped:
            return
        me = view.me
        while self._queue and view.held[me] - view.safe[me] < _UNSAFE_MAX:
            self._cast(self._next_messages(), now, out)
        if view.silent_about():
            self._cast([], now, out)
        elif view.held != self._told and self._is_pending() and all(map(int.__le__, self._told, view.known[me])):
            self._tell(view.members, False, out)  # what was told last is on disk: until then more may come
        if view.held != view.base:
            self._deadlines.by("drop", now + self.options.stability_us)

    def _next_messages(self) -> list[AppMessage]:
        messages: list[AppMessage] = []
        size, most = 0, min(_CAST_BYTES, self.options.portion_bytes)
        while self._queue and (not messages or size + len(self._queue[0].payload) <= most):
            messages.append(self._queue.popleft())
            size += len(messages[-1].payload) + 100
        return messages

    def _cast(self, messages: list[AppMessage], now: int, out: Outbox) -> None:
        stamp = self.real_clock(now) if self.options.clock == "hybrid" else 0
        cast = self.view.next_cast(stamp, messages)
        self._save_cast(cast, out)
        self._told = list(self.view.held)
        out.send_durable(self.view.members, cast)

    def _save_cast(self, cast: Cast, out: Outbox) -> None:
        out.put(_cast_key(cast), _encode(cast), carries=cast.messages)

    def _tell(self, to: tuple[ProcessId, ...], ask: bool, out: Outbox) -> None:
        """Tell the others what this member holds."""
        if self.view.me is None or not to:
            return
        if to is self.view.members:
            self._told = list(self.view.held)
        out.send_durable(to, Receipt(self.record.number, list(self.view.held), ask))

    def _take(self, cast: Cast, out: Outbox) -> None:
        """Take a cast, which comes from its author or as a copy."""
        view = self.view
        if cast.author not in view.index or len(cast.past) != view.n:
            raise PeerError(f"a cast of {cast.author} in view {view.number}")
        if view.learn_from(cast):
            self._dirty = True
        if not self.record.stopped:
            for accepted in view.arrive(cast):
                self._dirty = True
                self._save_cast(accepted, out)

    def _is_pending(self) -> bool:
        """Whether a message is held and not ordered."""
        ordered = self.order.ordered
        return any(map(int.__gt__, self.view.last_app, ordered))

    # -- the order ----------------------------------------------------------------------------------------------------

    def _order(self, out: Outbox) -> None:
        """Order what is safe."""
        if not self._dirty:
            return
        self._dirty = False
        if self.record.complete and self.view.me is not None:
            self._reveal([min(a, b) for a, b in zip(self.view.safe, self.view.held, strict=True)])
            self._take_order(out)

    def _reveal(self, upto: list[int]) -> None:
        revealed, view = self._revealed, self.view
        for k, last in enumerate(upto):
            while revealed[k] < last:
                revealed[k] += 1
                self.order.insert(k, view.cast(k, revealed[k]).past)

    def _take_order(self, out: Outbox) -> None:
        while new := self.order.order():
            self._deliver_casts(new, out)

    def _deliver_casts(self, places: list[tuple[int, int]], out: Outbox) -> None:
        for k, number in places:
            cast = self.view.cast(k, number)
            for message in cast.messages:
                self._deliver(message, cast.stamp, out)

    def _deliver(self, message: AppMessage, stamp: int, out: Outbox) -> None:
        """Deliver the next message of the order."""
        self.time = max(self.time + 1, stamp)
        timestamp = Timestamp(self.time, 0)
        self._is_delivered(message.id, timestamp, out)
        if self.group not in message.destinations or timestamp <= self.log.timestamp:
            return
        if not self.log.is_repeated(message.id, timestamp):
            self.log.delivered(message, timestamp, out)
            out.deliver(message, timestamp)

    def _is_delivered(self, message_id: MessageId, timestamp: Timestamp, out: Outbox) -> None:
        """Here, if it was addressed to this group: it need not be multicast any more."""
        self._mine.pop(message_id, None)
        asking = self._asking.pop(message_id, None)
        if asking is not None:
            out.send((asking,), Known(message_id, timestamp))

    def on_install(
        self, position: int, message: AppMessage, timestamp: Timestamp, note: bytes, now: int, out: Outbox
    ) -> None:
        self.log.delivered(message, timestamp, out)
        self._is_delivered(message.id, timestamp, out)
        if self.log.position != position:
            raise AssertionError(f"installed delivery {position} as {self.log.position}")
        self._complete_if_due(out)

    # -- repairs ------------------------------------------------------------------------------------------------------

    def _on_ask(self, sender: ProcessId, ask: Ask, now: int, out: Outbox) -> None:
        """Answer with copies. A copy proves only that its author has the cast on disk or, in a flush, that this process
        has."""
        if self.view.me is None:
            return
        copies = (cast for span in ask.spans for cast in self.view.copies(span))
        casts = next(one_by_one(copies, bytes_of, self.options.portion_bytes))
        if casts:
            out.send_durable((sender,), Copies(self.record.number, casts))

    def _ask_for_gaps(self, authors: Collection[ProcessId], now: int, out: Outbox) -> None:
        """Ask for casts of these authors that did not arrive. Those who hold them are asked one after the other: one
        that has given some may lack the rest itself."""
        view = self.view
        asks: dict[ProcessId, list[Span]] = {}
        for author, first, last in view.gaps():
            if author not in authors:
                continue
            span = (author, first, min(last, first + _SPAN_MAX))
            if known := view.holders(span):
                self._ask_turn += 1
                asks.setdefault(known[self._ask_turn % len(known)], []).append(span)
        for holder, spans in asks.items():
            self._ask(holder, spans, now, out)

    def _ask(self, holder: ProcessId, spans: list[Span], now: int, out: Outbox) -> None:
        """Ask one process for casts, and not again before it has answered or a period is over. Its answer is limited in
        size; the rest is asked for again."""
        at, _ = self._asked.get(holder, (now - self.options.retry_us, None))
        if now - at >= self.options.retry_us:
            self._asked[holder] = (now, {author for author, _, _ in spans})
            out.send((holder,), Ask(self.record.number, spans))

    def _retry_by(self, now: int) -> None:
        self._deadlines.by("retry", now + self.options.retry_us)

    def _retry(self, now: int, out: Outbox) -> None:
        """Something takes long: ask for what may have been lost."""
        view = self.view
        gaps = view.gaps()
        if view.me is not None and not self.record.stopped:
            if self._is_pending() or self._mine or gaps:
                self._tell(view.others, True, out)
            if authors := {author for author, first, _ in gaps if self._gaps.get(author) == first}:
                self._ask_for_gaps(authors, now, out)
        self._gaps = {author: first for author, first, _ in gaps}
        if self._needs_state():
            self._ask_for_state(out)
        reach = self.paxos.election.detector.reach
        if self._mine and view.me is None and reach.is_long_lost(self.paxos.promised.leader, now):
            able = [p for p in self.record.members if p not in reach.lost]
            self._relay_turn += 1
            out.send(able[self._relay_turn % len(able) :][:1] if able else (), Relay(resendable(self._mine.values())))

    def _on_relay(self, sender: ProcessId, relay: Relay, now: int, out: Outbox) -> None:
        """Who is outside the view waits for this process to multicast these."""
        for message in relay.messages:
            known = self.log.known(message.id)
            if known is not None:
                out.send((sender,), Known(message.id, known[0]))
                continue
            try:
                self._pass_on(message, now, out)
            except Overloaded:
                return  # so the next ones must not be either; it asks again
            self._asking[message.id] = sender

    def _on_known(self, sender: ProcessId, known: Known, now: int, out: Outbox) -> None:
        self._is_delivered(known.id, known.final, out)

    def _is_busy(self) -> bool:
        """Whether something is awaited that may have been lost."""
        return bool(self._mine) or self._needs_state() or self._is_pending() or self.view.held != self.view.wanted

    # -- garbage ------------------------------------------------------------------------------------------------------

    def _drop(self, now: int, out: Outbox) -> None:
        """Forget casts that all members hold and that are ordered; keep telling what is held."""
        view = self.view
        if view.me is None or self.record.stopped:
            return
        if view.held != self._told:
            self._tell(view.members, False, out)
        if self.record.complete:
            upto = [min(a, b) for a, b in zip(view.held_by_all(), self.order.ordered, strict=True)]
            dropped = view.drop(upto)
            for cast in dropped:
                out.delete(_cast_key(cast))
            if dropped:
                saved = OrderRecord(view.number, self.order.ordered, self.order.early, self.time, view.base)
                out.put(_ORDER_KEY, _encode(saved))

    def on_durable(self, position: int, now: int, out: Outbox) -> None:
        self.log.durable(position, out)

    # -- the end of a view --------------------------------------------------------------------------------------------

    def _on_flush(self, sender: ProcessId, flush: Flush, now: int, out: Outbox) -> None:
        record, view = self.record, self.view
        if not record.stopped:
            record.move("stop")
            self._save_view(out)
        if view.me is None and self.peers:
            self._ask_for_state(out)
        if view.me is not None or record.complete:
            out.send_durable((sender,), Flushed(record.number, list(view.held), list(view.base), record.complete))

    def _on_paxos(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        if type(message) is Echo:
            self.coordinator.reach(sender, now)
        self.paxos.on_message(sender, message, now, out)
        self._after_paxos(now, out)

    def _after_paxos(self, now: int, out: Outbox) -> None:
        """Take what was decided; notice that this process leads."""
        part = self.paxos
        for instance, values in part.instances.take():
            for value in values:
                self._on_new_view(instance, _decode_new_view(value), now, out)
        if part.leading and self._led != part.promised:
            self._led = part.promised
            self.coordinator.lead(self.record.members, now)
            self._deadlines.by("beat", now)
        self.coordinator.propose_if_ready(now, out)
        if part.stranded:
            self._retry_by(now)

    def _on_new_view(self, instance: int, new: NewView, now: int, out: Outbox) -> None:
        """A view was decided. Of several decisions with one number the first one counts."""
        if new.number <= self.record.number:
            return
        if not new.members:
            self.coordinator.hand_out(new.casts)
            return
        finished = self._finish(new, out)
        self._enter(ViewRecord(new.number, new.members, instance, False, finished, self.time), now, out)

    def _finish(self, new: NewView, out: Outbox) -> bool:
        """Order everything in the cut, if this process can do that by itself."""
        view = self.view
        if not self.record.complete:
            return False
        for cast in (*self.coordinator.handed.values(), *new.casts):
            view.arrive(cast)
        if any(held < last for held, last in zip(view.held, new.cut, strict=True)):
            return False
        assert all(map(int.__le__, self._revealed, new.cut)), "what is safe is in the cut"
        self._reveal(new.cut)
        self._take_order(out)
        self._deliver_casts(self.order.order_rest(), out)
        return True

    def _enter(self, record: ViewRecord, now: int, out: Outbox) -> None:
        for cast in self.view.everything():
            out.delete(_cast_key(cast))
        out.delete(_ORDER_KEY)
        self.coordinator.enter(self.record.members, record.members, now)
        # of every group a quorum has entered the view before, maybe no more: it lacks all that was decided since
        self.paxos.instances.truncate(min(self.record.instance, self.paxos.decided), out)
        self.record = record
        self._begin_view()
        self._save_view(out)
        self._target = None
        self._queue = deque(self._mine.values())
        self._told = []
        self._asked = {}
        self._gaps = {}
        self._dirty = True
        self._deadlines.by("beat", now)
        self._retry_by(now)
        early, self._early = self._early, []
        for sender, message in early:
            self._on_view_message(sender, message, now, out)

    # -- coming back --------------------------------------------------------------------------------------------------

    def _needs_state(self) -> bool:
        return bool(self.peers) and (not self.record.complete or self.paxos.stranded)

    def _ask_for_state(self, out: Outbox) -> None:
        """Ask the members of the group for their state, one after the other."""
        self._state_turn += 1
        peer = self.peers[self._state_turn % len(self.peers)]
        if self._target is not None and not self.paxos.stranded:
            out.catch_up(peer)
        out.send((peer,), StateAsk())

    def _on_state_ask(self, sender: ProcessId, ask: StateAsk, now: int, out: Outbox) -> None:
        r, order = self.record, self.order
        if r.complete:
            reached = OrderRecord(r.number, list(order.ordered), order.early, self.time, list(order.ordered))
            out.send((sender,), State(r.number, r.members, r.instance, r.time, self.log.position, reached))

    def _on_state(self, sender: ProcessId, state: State, now: int, out: Outbox) -> None:
        if state.number > self.record.number and self._needs_state():
            self._enter(ViewRecord(state.number, state.members, state.instance, False, False, self.time), now, out)
            self.paxos.jump(state.instance, now, out)
            self._after_paxos(now, out)
        if state.number == self.record.number and (not self.record.complete or self._is_ahead(state.order)):
            self._target = state  # the latest: whoever gave another one may be dead, and its deliveries with it
            self._complete_if_due(out)
            if self._target is not None:
                out.catch_up(sender)

    def _is_ahead(self, order: OrderRecord) -> bool:
        """Whether a stopped view's order has come further than is known here, outside that view."""
        outside = self.view.me is None and self.record.stopped
        return outside and any(map(int.__gt__, order.ordered, self.view.held))

    def _complete_if_due(self, out: Outbox) -> None:
        """If all deliveries from before the view are here, this process can go on by itself. Outside a view that is
        being flushed, it takes over how far the order has come: then it can finish the view with the casts of the
        rest."""
        state = self._target
        if state is None or self.log.position < state.position:
            return
        self._target = None
        self._dirty = True
        if self._is_ahead(state.order):
            self._resume(state.order)
            out.put(_ORDER_KEY, _encode(state.order))
        elif not self.record.complete:
            self.time = state.time
        self.record.time = state.time
        self.record.move("catch up")
        self._save_view(out)

    # -- timers -------------------------------------------------------------------------------------------------------

    def _may_propose(self) -> bool:
        return self.paxos.leading and self.paxos.idle

    def _beat(self, now: int, out: Outbox) -> int:
        """Every heartbeat: tell the coordinator; as coordinator, see who must leave and who may come. Outside the view,
        see what the others have delivered."""
        if self.view.me is None:
            for peer in self.peers:
                self._behind.notice(peer, self.log.watermark_of(peer), now)
        if self.paxos.leading:
            if self.paxos.idle and not self.paxos.stranded:
                self.coordinator.coordinate(self.record, now, out)
        else:
            leader = self.paxos.promised.leader
            if leader != self.self_id:
                out.send_durable((leader,), Alive(self.record.number, self.record.stopped))
        return now + int(self.options.heartbeat_us)

    def on_peer_reset(self, peer: ProcessId, now: int, out: Outbox) -> None:
        self.log.forget_reports(peer)
        self.paxos.on_peer_reset(peer, now)
        self._asked.pop(peer, None)
        if peer in self.view.index:
            self._tell((peer,), True, out)
        self._retry_by(now)

    def end_batch(self, now: int, out: Outbox) -> None:
        self._order(out)
        self._speak(now, out)
        self.paxos.end_batch(now, out)
        self.log.end_batch(out)

    def on_tick(self, now: int, out: Outbox) -> int | None:
        acted = self._deadlines.due(now)
        self._deadlines.run(now, out)
        paxos_wake = self.paxos.tick(now, out)
        self._after_paxos(now, out)
        if acted or self._dirty or out.sends or out.changes:
            self.end_batch(now, out)
        log_wake = self.log.tick(now, out)
        if self._is_busy():
            self._retry_by(now)
        return earliest(paxos_wake, log_wake, self._deadlines.wake_at)

    # -- for people ---------------------------------------------------------------------------------------------------

    def leader_of(self, group: GroupId) -> ProcessId | None:
        """All members are equal; the coordinator is certainly in the view."""
        members = self.topology.groups[group]
        if self.paxos.promised.leader in members:
            return self.paxos.promised.leader
        return next((p for p in members if p in self.view.index), members[0])

    def has_majority(self) -> bool:
        return self.view.me is not None and (not self.paxos.leading or self.paxos.election.has_majority)

    def role(self) -> str:
        if self.view.me is None:
            return "outside"
        if not self.record.complete:
            return "recovering"
        return "coordinator" if self.paxos.leading else "member"

    def describe(self) -> dict[str, Any]:
        return {
            "view": self.record.number,
            "members": len(self.record.members),
            "stopped": self.record.stopped,
            "pending": len(self._mine),
            "casts": sum(self.view.held) - sum(self.view.base),
            "unsettled": self.log.unsettled,
            "paxos": self.paxos.describe(),
        }

    def inspect(self) -> dict[str, Any]:
        """Phases: submitted, held (its cast is here), safe. Nothing is committed before it is delivered, and then it
        is listed no more; a safe message waits for casts of silent members, or for more votes of the others. votes:
        candidate -> how many vote for it."""
        members, ordered = self.record.members, self.order.ordered
        silent = [{"process": p} for k, p in enumerate(members) if self._revealed[k] <= ordered[k]]
        messages = {message_id.hex(): seen(SUBMITTED) for message_id in self._mine}
        for cast in self.view.everything():
            k = self.view.index[cast.author]
            if cast.number > ordered[k]:
                safe = cast.number <= self.view.safe[k]
                place = [cast.author, cast.number]
                for message in cast.messages:
                    phase, why = ("safe", silent) if safe else ("held", [])
                    messages[message.id.hex()] = seen(phase, None, None, why, cast=place)
        votes = {str(members[k]): mask.bit_count() for k, mask in sorted(self.order.votes.votes.items())}
        told = {str(p): number for p, number in zip(members, self.view.held, strict=True)}
        return {
            **super().inspect(), **self.paxos.inspect(), "time": self.time, "held": told, "votes": votes,
            "messages": messages,
        }  # fmt: skip
