"""What a host owes its protocol in each batch: what the application multicasts, what other clocks say of its own, and
whether its disk hangs; and that part of it which compares clocks, of links that were reset. Of what gets lost there
nobody ever hears. Whoever says that deliveries are missing has them asked for, unless somebody was asked just now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multicast.application import ApplicationOutbox
from multicast.catch_up import RETRY_US
from multicast.simulation.checkers import Checker
from multicast.types import AppMessage, MessageId, ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

Sends = list[tuple[tuple[ProcessId, ...], Any, bool]]


class _Outbox(ApplicationOutbox):
    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[MessageId] = []

    def submit(self, message: AppMessage) -> None:
        self.asked.append(message.id)
        super().submit(message)


class Owed(Checker):
    """Judged at the end of each batch that does anything. Whether a protocol takes a multicast is its own affair."""

    watches_protocol = True

    def on_life(self, node: Node) -> None:
        node.engine._app_out = _Outbox()
        catch_up: Any = node.engine._catch_up
        ask = catch_up.ask

        def watched(peer: ProcessId, now: int) -> ProcessId | None:
            before, whom = catch_up._asked, ask(peer, now)
            if whom is None and before is not None and now - before[1] >= RETRY_US:
                self.report("owed", f"process {node.pid} waits for deliveries of process {before[0]}, asked long ago")
            return whom  # type: ignore[no-any-return]

        catch_up.ask = watched

    def on_handled(self, node: Node, handler: str, args: tuple[Any, ...], sends: Sends) -> None:
        engine: Any = node.engine
        asked: list[MessageId] = engine._app_out.asked
        if handler == "on_submit":
            if args[0].id in asked:
                asked.remove(args[0].id)
        elif handler == "on_peer_reset":
            if engine.discipline is not None and args[0] in engine.discipline._asked:
                self.report("owed", f"process {node.pid} waits for the clock of {args[0]}, whose link was reset")
        elif handler == "end_batch":
            if asked:
                self.report("owed", f"process {node.pid} never multicasts {asked[0].hex()}")
                asked.clear()
            clock, election = engine.discipline, node.protocol.election
            if clock is not None and clock.off != node.protocol.clock_off:
                self.report("owed", f"process {node.pid} is not told whether its clock is off: {clock.off}")
            if election is not None and election.disk_hangs != engine.disk_hangs:
                self.report("owed", f"process {node.pid} is not told whether its disk hangs: {engine.disk_hangs}")
