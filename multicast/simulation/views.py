"""What the members of a ToTo view owe it: who has stopped adds nothing to it, only who is complete says so, in whatever
order its casts are revealed they come into one order, and nobody takes for safe what no majority of all holds.

A flush counts on the first two: what a member says that it holds when it stops is all that it will ever hold of the
view, and who speaks for its group has all deliveries from before it. The third is what a delivery rule is for
(parts.causal); processes that see much the same seldom show that it fails. So the causal order of a view, as far as it
is known by now, is revealed again, in other ways: all at once, and one by one. What a smaller majority holds is lost
only if just the others go on with the view, which in small groups they never can. Variables of the protocol are known
by name only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from multicast.simulation.checkers import Checker
from multicast.simulation.logs import Decisions, Sends
from multicast.types import ProcessId, Topology, is_majority, quorum_of

if TYPE_CHECKING:
    from multicast.simulation.scene import Node


_JUDGED_MIN = 12
"""So many casts of a view are worth a judgement; then half as many again."""
_REVEALS = 4
"""So many ways of revealing them are tried."""
_SOON_BEATS = 4
"""So many heartbeats later a coordinator has looked at who lives."""


class Views(Decisions):
    """What is owed to a flush."""

    def __init__(self, topology: Topology):
        super().__init__(topology)
        self._stopped: dict[ProcessId, tuple[int, list[int]]] = {}
        self._states: dict[ProcessId, dict[int, int]] = {}
        self._complete: dict[ProcessId, bool] = {}
        self._handed: dict[ProcessId, tuple[int, list[Any]]] = {}

    def on_life(self, node: Node) -> None:
        super().on_life(node)
        self._stopped.pop(node.pid, None)
        self._complete.pop(node.pid, None)
        self._handed.pop(node.pid, None)
        self._states[node.pid] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        super().on_handled(node, handler, args, sends)
        protocol: Any = node.protocol
        record, pid = protocol.record, node.pid
        if handler == "on_message" and type(args[1]).__name__ == "State":
            told, number = self._states[pid], args[1].number
            told[number] = min(told.get(number, args[1].position), args[1].position)
        lately = record.complete and not self._complete.get(pid, True)
        if lately and protocol.log.position < (said := self._states[pid].get(record.number, 0)):
            self._wrong(node, f"is complete at delivery {protocol.log.position}, a complete member was at {said}")
        self._complete[pid] = record.complete
        number, held = self._stopped.get(pid, (0, []))
        member = protocol.view.me is not None  # others may take over how far the order has come
        if record.stopped and member and number == record.number and held != protocol.view.held:
            self._wrong(node, f"holds {protocol.view.held}, and had stopped with {held}")
        if record.stopped:
            self._stopped[pid] = record.number, list(protocol.view.held)
        self._check_handed(node, record.number, protocol.coordinator.handed)
        for _, message, _ in sends:
            kind = type(message).__name__
            if kind == "State" and not record.complete:
                self._wrong(node, "tells its state, and lacks deliveries from before the view")
            elif kind == "Flushed" and message.view == record.number and message.complete > record.complete:
                self._wrong(node, "says that it lacks no deliveries from before the view")

    def _check_handed(self, node: Node, number: int, handed: dict[Any, Any]) -> None:
        """What was handed out belongs to the view in which it was, and to no later one."""
        before, casts = self._handed.get(node.pid, (0, []))
        if before != number and any(handed.get((cast.author, cast.number)) is cast for cast in casts):
            self._wrong(node, f"keeps what was handed out in view {before}")
        if before != number or len(casts) != len(handed):
            self._handed[node.pid] = number, [*handed.values()]

    def _wrong(self, node: Node, text: str) -> None:
        record: Any = node.protocol.record  # type: ignore[attr-defined]
        self.report("view", f"process {node.pid} in view {record.number} {text}")


class Flushes(Checker):
    """A flush begins only when a quorum of every group lives, as far as its coordinator knows: who has stopped for one
    that cannot end says nothing any more in a view that might have gone on. Who lives knows the view."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._groups = topology.groups
        self._states: dict[ProcessId, str] = {}
        self._heard: dict[ProcessId, dict[ProcessId, int]] = {}
        self._stops: dict[ProcessId, dict[tuple[int, Any], int]] = {}

    def on_life(self, node: Node) -> None:
        self._stops.pop(node.pid, None)
        self._states.pop(node.pid, None)
        self._heard.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        coordinator = protocol.coordinator
        before, self._states[node.pid] = self._states.get(node.pid), coordinator.state
        heard, self._heard[node.pid] = self._heard.get(node.pid, {}), {**coordinator.heard}
        stray = handler == "on_message" and type(args[1]).__name__ == "Alive" and args[1].view != protocol.record.number
        if stray and coordinator.heard.get(args[0]) != heard.get(args[0]):
            self.report("view", f"process {node.pid} takes {args[0]}, of view {args[1].view}, for one of its own")
        self._judge_stop(node, handler, args)
        if coordinator.state != "flushing" or before == "flushing":
            return
        lately = self._lately(node, args[-2])
        for group, members in self._groups.items():
            if not is_majority(members, lately):
                text = f"process {node.pid} flushes view {protocol.record.number}, and of group {group}"
                self.report("view", f"{text} only {sorted(lately.intersection(members))} live")

    @staticmethod
    def _lately(node: Node, now: int) -> set[ProcessId]:
        """Who lives, as far as this coordinator knows."""
        protocol: Any = node.protocol
        since, reached = now - protocol.options.election_timeout_us, protocol.coordinator.reached
        heard = protocol.coordinator.heard.items()
        return {p for p, at in heard if min(at, reached.get(p, since)) > since} | {node.pid}

    def _judge_stop(self, node: Node, handler: str, args: tuple[Any, ...]) -> None:
        """Who has heard that somebody has stopped goes on with the flush, soon."""
        protocol: Any = node.protocol
        paxos, now, view = protocol.paxos, args[-2], (protocol.record.number, protocol.paxos.promised)
        told = args[1] if handler == "on_message" and type(args[1]).__name__ == "Alive" else None
        if told is not None and told.stopped and told.view == view[0]:
            self._stops.setdefault(node.pid, {}).setdefault(view, now)
        since = self._stops.get(node.pid, {}).get(view)
        if since is None:
            return
        lately, watches = self._lately(node, now), protocol.coordinator.state == "watching"
        enough = all(is_majority(members, lately) for members in self._groups.values())
        if not (paxos.leading and paxos.idle and not paxos.stranded and watches and enough):
            self._stops[node.pid] = {view: now}
        elif handler == "on_tick" and now > since + _SOON_BEATS * protocol.options.heartbeat_us:
            self.report("view", f"process {node.pid} has heard that who is in view {view[0]} has stopped, and watches")


class Finishes(Checker):
    """Who has entered a view by its decision keeps that, as whole groups may lack it and nobody there can give them a
    state; has finished the one before by itself, if its coordinator has counted on that, which it does of a quorum of
    every group; and goes on with all that it has multicast and not delivered."""

    watches_protocol = True
    watches_idle = True  # a proposal leaves with the end of the batch, by when others may not be heard any more

    def __init__(self, topology: Topology):
        super().__init__()
        self._groups = topology.groups
        self._counted: dict[bytes, set[ProcessId]] = {}
        self._proposed: dict[ProcessId, set[ProcessId]] = {}
        self._views: dict[ProcessId, int] = {}

    def on_life(self, node: Node) -> None:
        self._views.pop(node.pid, None)
        self._proposed.pop(node.pid, None)

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        record, paxos = protocol.record, protocol.paxos
        self._note(node, protocol.coordinator, args[-2], sends)
        before = self._views.get(node.pid)
        self._views[node.pid] = record.number
        if before in (None, record.number):
            return
        self._judge_mine(node, protocol)
        if handler == "on_message" and type(args[1]).__name__ == "State":
            return
        decided = paxos.instances.accepted.get(record.instance)
        if decided is None:
            self._wrong(node, "has dropped the decision of its view, which others may lack")
        elif not record.complete and any(node.pid in self._counted.get(value, ()) for value in decided[1]):
            self._wrong(node, "could not finish the view before by itself, though that was counted on")

    def _note(self, node: Node, coordinator: Any, now: int, sends: Sends) -> None:
        """Whose answers count for the view that is proposed: those that are there when it is."""
        pid = node.pid
        if coordinator.state != "proposed":
            self._proposed.pop(pid, None)
            return
        if pid not in self._proposed:
            whole = self._proposed[pid] = self._whole(coordinator.gathering, coordinator._responsive(now))
            for group, members in self._groups.items():
                if not is_majority(members, whole):
                    self._wrong(node, f"proposes the next one, and of group {group} only {sorted(whole)} can finish it")
        for _, message, _ in sends:
            for value in message.values if type(message).__name__ == "Accept" else ():
                self._counted.setdefault(value, self._proposed[pid])

    @staticmethod
    def _whole(gathering: Any, alive: list[ProcessId]) -> set[ProcessId]:
        """Who lives, has answered, and can finish the view by itself: who is outside it has what is kept no more."""
        replies = {p: gathering.replies[p] for p in alive if p in gathering.replies}
        bases = [reply.base for p, reply in replies.items() if p in gathering.members]
        kept = [min(some) for some in zip(*bases, strict=True)]
        return {
            p for p, reply in replies.items()
            if reply.complete and (p in gathering.members or all(map(int.__le__, kept, reply.held)))
        }  # fmt: skip

    def _judge_mine(self, node: Node, protocol: Any) -> None:
        waiting = {message.id for message in protocol._queue}
        waiting.update(message.id for cast in protocol.view.everything() for message in cast.messages)
        if lost := protocol._mine.keys() - waiting:
            self._wrong(node, f"does not go on with {min(lost).hex()}, which it has multicast")

    def _wrong(self, node: Node, text: str) -> None:
        self.report("view", f"process {node.pid} in view {node.protocol.record.number} {text}")  # type: ignore[attr-defined]


class Orders(Checker):
    """Who has come as far in the order of a view has come to the same time: what one forgets of it, or takes over from
    another one, would give other timestamps to all that follows."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._times: dict[tuple[int, tuple[int, ...], int], tuple[int, ProcessId]] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        order, record = protocol.order, protocol.record
        if not record.complete:
            return
        time, other = self._times.setdefault(
            (record.number, tuple(order.ordered), order.early), (protocol.time, node.pid)
        )
        if time != protocol.time:
            text = f"has ordered {order.ordered} of view {record.number} at {protocol.time}, process {other} at {time}"
            self.report("view", f"process {node.pid} {text}")


class SafeCasts(Checker):
    """Who takes a cast for safe, and who has held it."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._quorum = quorum_of(len(topology.processes))
        self._held: dict[int, dict[ProcessId, list[int]]] = {}
        self._safe: dict[ProcessId, tuple[int, list[int]]] = {}

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        view = protocol.view
        if view.me is None:
            return
        held = self._held.setdefault(view.number, {})
        held[node.pid] = list(map(max, view.held, held.get(node.pid, view.held)))
        if (view.number, view.safe) == self._safe.get(node.pid):
            return
        self._safe[node.pid] = view.number, list(view.safe)
        for k, safe in enumerate(view.safe):
            holders = sum(one[k] >= safe for one in held.values())
            if safe and holders < self._quorum:
                text = f"takes cast {safe} of {view.members[k]} for safe, and {holders} have held it"
                self.report("safe", f"process {node.pid} in view {view.number} {text}")


class Reveals(Checker):
    """What is owed by a delivery rule. dag: of the latest view, (member, number) -> past."""

    watches_protocol = True

    def __init__(self, topology: Topology):
        super().__init__()
        self._view = 0
        self._dag: dict[tuple[int, int], list[int]] = {}
        self._judged = 0

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        protocol: Any = node.protocol
        view, dag = protocol.view, self._dag
        if view.number > self._view:
            self._view, self._judged = view.number, 0
            dag.clear()
        if view.number < self._view or view.me is None:
            return
        for k, last in enumerate(protocol._revealed):
            number = last
            while number > view.base[k] and (k, number) not in dag:
                dag[k, number] = view.cast(k, number).past
                number -= 1
        if len(dag) >= 1.5 * self._judged + _JUDGED_MIN:
            self._judged = len(dag)
            self._judge(node)

    def _judge(self, node: Node) -> None:
        protocol: Any = node.protocol
        order, n = protocol.order, protocol.view.n
        counts = [sum(k == member for k, _ in self._dag) for member in range(n)]
        if any((k, number + 1) not in self._dag for k, count in enumerate(counts) for number in range(count)):
            return  # some of it was dropped before it was seen here
        rng = random.Random(f"{self._view}/{counts}")
        made = [type(order)(n, order.votes.rule, order.votes.phi) for _ in range(1 + _REVEALS)]
        whole, *others = (list(self._ordered(one, rng if k else None)) for k, one in enumerate(made))
        for other in others:
            least = min(len(whole), len(other))
            if whole[:least] != other[:least]:
                text = f"what is revealed of view {self._view}, {counts}, is ordered {whole} and {other}"
                self.report("reveal", f"process {node.pid}: {text}")
                return

    def _ordered(self, order: Any, rng: random.Random | None) -> Iterator[tuple[int, int]]:
        """The order of the casts, as far as it can be told. rng: they are revealed one by one, as it draws; else all at
        once."""
        revealed = [0] * order.n
        while True:
            next_ones = [(k, number + 1) for k, number in enumerate(revealed) if (k, number + 1) in self._dag]
            due = [(k, number) for k, number in next_ones if all(map(int.__le__, self._dag[k, number], revealed))]
            if not due:
                break
            k, number = due[0] if rng is None else rng.choice(due)
            revealed[k] = number
            order.insert(k, self._dag[k, number])
            while rng is not None and (new := order.order()):
                yield from new
        while new := order.order():
            yield from new
