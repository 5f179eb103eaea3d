"""What a process without memory had told others that it has, and must have again before it takes part.

Others count on what a process has told them to have durably: they drop their copies. A process whose disk was lost asks
everybody (Forgot) what that was, and is answered (Reminder) by all that are not without memory themselves. It is
complete once a quorum of every group has answered and it has again

- all of each group's numbered messages that it had acknowledged to those, or that they have dropped (on whosever word),
- all deliveries that it had told those of, or that those of its own group have.

Why a quorum is enough. Who has not answered may go on to drop a copy too early, on the old word. But of a quorum that
has answered some live on, and they keep what they have not mentioned until this process tells them that it has it, or
until a quorum without it does. What they have dropped before, a quorum of this process' group had told them to have: it
and others, of whom one is among those that have answered (all quorums of the others meet it), or still has it for this
process to ask. Nothing of the old life arrives after the question: links are FIFO, and a new life is a new link.
"""

from __future__ import annotations

import random

import msgspec

from multicast.protocol import Outbox
from multicast.types import ZERO, GroupId, ProcessId, Timestamp, Topology


class Forgot(msgspec.Struct, array_like=True, tag=104, gc=False):
    """My disk is gone. What have I told you? question: differs in every life."""

    question: int


class Reminder(msgspec.Struct, array_like=True, tag=105, gc=False):
    """You have acknowledged my group's messages for yours up to `number`, or I have dropped them. You have delivered up
    to `watermark`, or I have (if I am of your group)."""

    question: int
    number: int
    watermark: Timestamp


MESSAGES = (Forgot, Reminder)


class Reminders:
    """What an amnesiac has been told. numbers, watermark: the highest of the answers."""

    def __init__(self, self_id: ProcessId, topology: Topology, period_us: int):
        self.numbers: dict[GroupId, int] = dict.fromkeys(topology.groups, 0)
        self.watermark = ZERO
        self._self_id = self_id
        self._topology = topology
        self._period_us = period_us
        self._answered: set[ProcessId] = set()
        self._question = self._ask_at = 0

    def begin(self, now: int, rng: random.Random) -> None:
        """This process has lost its disk: begin to ask."""
        self._question = now << 8 | rng.getrandbits(8)

    def tick(self, now: int, out: Outbox) -> bool:
        """Ask those who have not answered. Returns whether a period has passed, so that other things should be asked,
        too."""
        if now < self._ask_at:
            return False
        self._ask_at = now + self._period_us
        silent = [p for p in self._topology.processes if p not in self._answered and p != self._self_id]
        if silent:
            out.send(silent, Forgot(self._question))
        return True

    @property
    def wake_at(self) -> int:
        return self._ask_at

    def add(self, sender: ProcessId, reminder: Reminder) -> None:
        if reminder.question == self._question:
            group = self._topology.group_of[sender]
            self._answered.add(sender)
            self.numbers[group] = max(self.numbers[group], reminder.number)
            self.watermark = max(self.watermark, reminder.watermark)

    @property
    def complete(self) -> bool:
        """Whether a quorum of every group has answered."""
        topology = self._topology
        return all(
            sum(p in self._answered for p in members) >= topology.quorum(group)
            for group, members in topology.groups.items()
        )
