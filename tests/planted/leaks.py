"""Planted bugs of what should have gone and stays, or should be there and is not, without harm in a short run."""

from __future__ import annotations

from multicast.membership import Views
from multicast.parts.delivered import DeliveredLog
from multicast.parts.detector import FailureDetector
from multicast.parts.rejoin import Rejoin
from multicast.protocols.primcast import PrimCast
from multicast.protocols.white_box import WhiteBox
from tests.planted import planted_in
from tests.planted.rewriting import rewrite


@rewrite("restore", "self.notes.update(view.notes)", "pass", part=Views)
class NotesForgotten(WhiteBox):
    """Who restarts knows who was added, and not under which address."""


@rewrite("learn", "self.notes.update(view.notes)", "pass", part=Views)
class NotesNotLearned(PrimCast):
    """Other groups do not learn the addresses of those who were added."""


@rewrite("restore", "view, self._made[number] = _decode_view(value)", "view, _ = _decode_view(value)", part=Views)
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


PLANTED = planted_in(__name__)
