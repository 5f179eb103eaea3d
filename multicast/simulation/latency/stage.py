"""A bare stage for latency measurements: protocol objects on FIFO links whose every delay a script gives.

Theory of operation. The papers' model and nothing else: local steps and the disk take no time, a message to oneself
takes none either, nothing is lost. So there are no engines, journals or encodings here, which makes a run about ten
times as fast as one in a `World`; the searches need thousands. What a `World` does with inputs of one instant is done
here too: they are one batch, in the order of their sending. `replay` (see `search`) compares the two.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from typing import Any

from multicast.protocol import MulticastProtocol, Options, Outbox, Saved
from multicast.types import FINAL, AppMessage, MessageId, ProcessId, Topology

EPOCH_US = 1_700_000_000_000_000

Script = Callable[[int, ProcessId, ProcessId, Any], int]
"""(instant, sender, receiver, message) -> delay in us."""

_NEVER = 1 << 62
_SUBMIT, _MESSAGE, _TIMER = range(3)


class _Seat:
    """One process. offset_us: its clock against the stage's. position: final deliveries so far; told: of them, those
    that it was told are durable. wake_at: when, by the stage's time, it wants to run."""

    __slots__ = ("inbox", "last_clock", "offset_us", "out", "pid", "position", "protocol", "ready", "told", "wake_at")

    def __init__(self, pid: ProcessId, protocol: MulticastProtocol, offset_us: int):
        self.pid = pid
        self.protocol = protocol
        self.offset_us = offset_us
        self.last_clock = 0
        self.inbox: deque[tuple[int, ProcessId, Any]] = deque()
        self.out = Outbox()
        self.position = self.told = 0
        self.ready = False
        self.wake_at = _NEVER


class Stage:
    """All processes of a topology.

    delivered, early: (process, message) -> when it was delivered, finally or optimistically. instants: when something
    arrived since `watch`. sent: message type -> how many were sent since `watch`, to oneself included; `events`: how
    many messages were processed in all.
    """

    def __init__(
        self,
        protocol: type[MulticastProtocol],
        topology: Topology,
        options: Options,
        script: Script,
        skew_us: Mapping[ProcessId, int] | None = None,
    ):
        self.topology = topology
        self.now = EPOCH_US
        self.delivered: dict[tuple[ProcessId, MessageId], int] = {}
        self.early: dict[tuple[ProcessId, MessageId], int] = {}
        self.instants: set[int] = set()
        self.sent: dict[type, int] = {}
        self.events = 0
        self._script = script
        self._watching = False
        self._heap: list[tuple[int, int, ProcessId, int, ProcessId, Any]] = []
        self._sequence = 0
        self._last_arrival: dict[tuple[ProcessId, ProcessId], int] = {}
        self._ready: list[_Seat] = []
        self._seats: dict[ProcessId, _Seat] = {}
        for pid in topology.processes:
            instance = protocol(pid, topology, options, random.Random(pid))
            self._seats[pid] = _Seat(pid, instance, (skew_us or {}).get(pid, 0))
        for seat in self._seats.values():
            seat.protocol.on_start(Saved({}), self._clock(seat), seat.out)
            self._carry_out(seat)
            self._run(seat)
        self.run_until(self.now)

    def protocol(self, pid: ProcessId) -> MulticastProtocol:
        return self._seats[pid].protocol

    def submit(self, at: int, sender: ProcessId, message: AppMessage) -> None:
        """multicast(m), at this instant of the stage's time."""
        self._push(max(at, self.now), sender, _SUBMIT, sender, message)

    def watch(self) -> None:
        """Note what arrives and is sent from now on."""
        self._watching = True

    def run_until(self, time: int) -> None:
        """Let everything up to and including this instant happen."""
        heap = self._heap
        if self._ready:
            self._run_ready()
        while heap and heap[0][0] <= time:
            instant, _, pid, kind, sender, message = heappop(heap)
            self.now = instant
            seat = self._seats[pid]
            wakes = True
            if kind != _TIMER:
                seat.inbox.append((kind, sender, message))
                if self._watching:
                    self.instants.add(instant)
            elif instant == seat.wake_at:
                seat.wake_at = _NEVER
            else:
                wakes = False
            if wakes and not seat.ready:
                seat.ready = True
                self._ready.append(seat)
            if not heap or heap[0][0] > instant:
                self._run_ready()
        self.now = max(self.now, time)

    def run_while(self, condition: Callable[[], bool], end: int, step_us: int) -> bool:
        """Run in steps until the condition is false; whether it became so by `end`."""
        while condition():
            if self.now >= end:
                return False
            self.run_until(min(end, self.now + step_us))
        return True

    def _push(self, time: int, receiver: ProcessId, kind: int, sender: ProcessId, message: Any) -> None:
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, receiver, kind, sender, message))

    def _clock(self, seat: _Seat) -> int:
        seat.last_clock = max(seat.last_clock, self.now + seat.offset_us)
        return seat.last_clock

    def _run_ready(self) -> None:
        while self._ready:
            ready, self._ready = self._ready, []
            for seat in ready:
                self._run(seat)
                seat.ready = False

    def _run(self, seat: _Seat) -> None:
        """One batch, with the messages to oneself that it brings about. The same calls as `Engine.run`'s."""
        protocol, out, inbox = seat.protocol, seat.out, seat.inbox
        now = self._clock(seat)
        if seat.position > seat.told:
            seat.told = seat.position
            protocol.on_durable(seat.position, now, out)
        while True:
            while inbox:
                kind, sender, message = inbox.popleft()
                self.events += 1
                if kind == _SUBMIT:
                    protocol.on_submit(message, now, out)
                else:
                    protocol.on_message(sender, message, now, out)
            protocol.end_batch(now, out)
            wake = protocol.on_tick(now, out)
            self._carry_out(seat)
            if not inbox:
                break
        if wake is not None:
            time = max(self.now + 1, wake - seat.offset_us)
            if time < seat.wake_at:
                seat.wake_at = time
                self._push(time, seat.pid, _TIMER, seat.pid, None)

    def _carry_out(self, seat: _Seat) -> None:
        out, pid = seat.out, seat.pid
        for message, _, stage, _ in out.deliveries:
            if stage == FINAL:
                seat.position += 1
            (self.delivered if stage == FINAL else self.early).setdefault((pid, message.id), self.now)
        out.deliveries.clear()
        out.changes.clear()
        out.settlements.clear()
        out.catch_ups.clear()
        for to, message, _ in out.sends:
            if self._watching:
                kind = type(message)
                self.sent[kind] = self.sent.get(kind, 0) + len(to)
            for peer in to:
                if peer == pid:
                    seat.inbox.append((_MESSAGE, pid, message))
                    continue
                link = (pid, peer)
                arrival = self.now + self._script(self.now, pid, peer, message)
                arrival = self._last_arrival[link] = max(arrival, self._last_arrival.get(link, 0))
                self._push(arrival, peer, _MESSAGE, pid, message)
        out.sends.clear()
