"""Bugs in counting that only groups of different sizes show: the quorum of another group than that which is counted."""

from __future__ import annotations

import msgspec

from multicast.parts.learner import RemoteLearner
from multicast.parts.reminders import Reminders
from multicast.parts.stream import Stream
from multicast.protocols.fastcast import FastCast
from multicast.protocols.quasi_genuine import QuasiGenuine
from tests.planted import FAULTS, Planted
from tests.planted.rewriting import rewrite

TIGHT = msgspec.structs.replace(FAULTS, size="tight")


@rewrite("quorum_has", "self._topology.quorum(group)", "self._topology.quorum(self.group)", part=Stream)
class OwnQuorumOfReceivers(QuasiGenuine):
    """What is sent to another group is dropped once as many of it have it as are a quorum of the own one."""


@rewrite("accepted", "len(voters) >= self.quorum", "len(voters) >= 2", part=RemoteLearner)
class LearnsOfTwo(QuasiGenuine):
    """Two acceptors are a quorum of any other group."""


@rewrite("complete", "topology.quorum(group)", "topology.quorum(topology.group_of[self._self_id])", part=Reminders)
class RemindedByOwnQuorums(QuasiGenuine):
    """Of each group so many remind who has lost its disk as are a quorum of its own group."""


@rewrite("complete", "topology.quorum(group)", "topology.quorum(topology.group_of[self._self_id])", part=Reminders)
class RemindedByOwnQuorumsInFastCast(FastCast):
    """The same in FastCast."""


PLANTED = (
    Planted(OwnQuorumOfReceivers, TIGHT),
    Planted(LearnsOfTwo, msgspec.structs.replace(TIGHT, options={"direct_learners": "true"})),
    Planted(RemindedByOwnQuorums, TIGHT),
    Planted(RemindedByOwnQuorumsInFastCast, TIGHT),
)
