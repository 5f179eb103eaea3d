"""Planted bugs of what should have gone and stays, or should be there and is not, without harm in a short run."""

from __future__ import annotations

from multicast.membership import Views
from multicast.parts.channels import Channels
from multicast.parts.copies import CopiesLog
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.group_log import LeadersWord
from multicast.parts.instances import Instances
from multicast.parts.payloads import Payloads
from multicast.parts.rejoin import Rejoin
from multicast.parts.truncation import Truncation
from multicast.protocols.fastcast import FastCast
from multicast.protocols.ft_skeen import FtSkeen
from multicast.protocols.primcast import PrimCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from multicast.protocols.white_box import WhiteBox
from multicast.simulation.runner import Settings
from tests.planted import Planted, planted_in
from tests.planted.rewriting import rewrite


@rewrite("restore", "self.notes.update(view.notes)", "pass", part=Views)
class NotesForgotten(WhiteBox):
    """Who restarts knows who was added, and not under which address."""


@rewrite("learn", "self.notes.update(view.notes)", "pass", part=Views)
class NotesNotLearned(PrimCast):
    """Other groups do not learn the addresses of those who were added."""


@rewrite("restore", "if made != _TOLD:", "if False:", part=Views)
class ViewsMadeByNothing(WhiteBox):
    """After a restart no delivery has made the later views: no snapshot holds them."""


@rewrite("_on_echo", "self._echoed.clear()", "pass", part=FailureDetector)
class EchoesKept(WhiteBox):
    """Who has ever answered a leader's pulse counts as one who answers: a majority is there for good."""


@rewrite("_settle", "self._settled_known.add(message_id)", "pass", part=DeliveredLog)
class SettledNeverForgotten(WhiteBox):
    """The ids of settled messages are remembered for ever."""


@rewrite("_forget_old", "self._overdue.add(message_id)", "pass", part=DeliveredLog)
class OverdueNeverForgotten(WhiteBox):
    """An id that was not settled when its time was over is remembered for ever."""


@rewrite("restore", "self._life = self._question = now << 8 | self._rng.getrandbits(8)", "pass", part=Rejoin)
class QuestionsOfEveryLife(WhiteBox):
    """Who has lost its disk asks under the same numbers in every life: answers to an earlier one count."""


# -- found by `multicast.simulation.leftovers` ------------------------------------------------------------------------


@rewrite("_on_want", "elif not self._lacks(message_id):", "elif False:", part=Payloads)
class ForgottenPayloadWanted(PrimCast):
    """Who is asked for a payload that it has forgotten is silent: it is asked for ever."""


@rewrite("tick", "del self._holders[message_id]", "pass", part=Payloads)
class HoldersKept(PrimCast):
    """Who has told of a message is remembered when its payload has long come."""


@rewrite("_decide", "self._chosen.pop(self.decided, None)", "pass", part=Instances)
class ChosenForEver(FtSkeen):
    """That an instance was chosen is remembered when it is decided and dropped."""


@rewrite("_forget", "self.softs.pop(message_id, None)", "pass")
class SoftStampsKept(FastCast):
    """What other leaders were about to stamp is remembered when it has long been delivered."""


@rewrite("forget", "self._heard.pop(position, None)", "pass", part=LeadersWord)
class EveryWordKept(FtSkeen):
    """A follower keeps its leader's words when it has followed them: soon it has no room for the next ones."""


@rewrite("heard", "max(min(reached.values()), instance - self.kept)", "instance - self.kept", part=Truncation)
class InstancesKeptForNobody(FtSkeen):
    """Instances that all have applied are kept as if somebody lacked them."""


@rewrite("pop", "out.delete(_item_key(pending.source, pending.number))", "pass", part=Channels)
class ReceivedStaysOnDisk(QuasiGenuine):
    """What was received, saved and delivered stays on disk until the next restart."""


@rewrite("_settle", "out.delete(_PREFIX + message_id)", "pass", part=CopiesLog)
class DestinationsStayOnDisk(QuasiGenuine):
    """The destinations of settled messages stay on disk: after a restart they wait to be settled once more."""


_ONE = Settings(profile="faults", size="small", groups=1, replicas=3, messages=20)
_TWO = Settings(profile="faults", size="small", groups=2, replicas=2, messages=12)
_IN_THE_END = {
    HoldersKept: _ONE, ChosenForEver: _ONE, EveryWordKept: _ONE,
    SoftStampsKept: _TWO, ReceivedStaysOnDisk: _TWO,
}  # fmt: skip
PLANTED = (
    *(bug for bug in planted_in(__name__) if bug.protocol not in _IN_THE_END),
    *(Planted(kind, settings) for kind, settings in _IN_THE_END.items()),
)
