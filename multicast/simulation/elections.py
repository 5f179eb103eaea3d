"""Who leads has been elected: a quorum, itself included, has sent it whole votes for just this ballot.

Of protocols with `MulticastProtocol.election`. Their votes come in portions (`part` of `parts`), in order over one
link; if that loses its memory on the way, the vote is not whole. The first ballot needs no votes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multicast.simulation.checkers import Checker
from multicast.types import ProcessId

if TYPE_CHECKING:
    from multicast.simulation.scene import Node

_VOTES = ("NewLeaderAck", "Promise")
_WON = ("leader", "elect")
_FIRST_NUMBER = 1


class Elections(Checker):
    """See the module."""

    watches_protocol = True

    def __init__(self) -> None:
        super().__init__()
        self._votes: dict[ProcessId, dict[tuple[ProcessId, Any], int]] = {}
        self._judged: dict[ProcessId, Any] = {}

    def on_life(self, node: Node) -> None:
        """The votes of an earlier life do not count. A value is how many portions of a vote are there, -1 for all."""
        self._votes[node.pid] = {}
        self._judged.pop(node.pid, None)

    def on_handled(
        self, node: Node, handler: str, args: tuple[Any, ...], sends: list[tuple[tuple[ProcessId, ...], Any, bool]]
    ) -> None:
        election: Any = node.protocol.election
        if election is None:
            return
        votes = self._votes[node.pid]
        if handler == "on_message" and type(args[1]).__name__ in _VOTES:
            sender, vote = args[0], args[1]
            key = (sender, vote.ballot)
            if vote.part in (0, votes.get(key)):
                votes[key] = -1 if vote.part == vote.parts - 1 else vote.part + 1
        elif handler == "on_peer_reset":
            for key in [key for key, portions in votes.items() if key[0] == args[0] and portions > 0]:
                del votes[key]
        ballot = election.promised
        if election.state in _WON and self._judged.get(node.pid) != ballot and ballot.number > _FIRST_NUMBER:
            self._judged[node.pid] = ballot
            whole = {sender for (sender, voted), portions in votes.items() if voted == ballot and portions < 0}
            self._judge(node, ballot, whole)
            votes.clear()

    def _judge(self, node: Node, ballot: Any, voters: set[ProcessId]) -> None:
        topology, pid = node.world.topology, node.pid
        if ballot.leader != pid or pid not in voters or len(voters) < topology.quorum(topology.group_of[pid]):
            self.report("election", f"process {pid} leads {tuple(ballot)} with the votes of {sorted(voters)}")
