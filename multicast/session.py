"""Reliable FIFO sessions over links that break: sequence numbers, acknowledgement after the flush, resending.

Theory of operation. A sender numbers its frames to one peer 1, 2, 3, ... and keeps each until the peer has acknowledged
it; the peer acknowledges a frame only after the flush of the batch that processed it. When a connection breaks, the
sender greets again (`Hello`), hears up to where the peer has flushed (`Welcome`) and resends the rest; the receiver
drops what it saw already. So nothing is lost and nothing comes twice while both ends live. When the *receiver*
restarts, what it had flushed is on its disk and everything else is resent. When the *sender* restarts, or its queue to
a peer overflows, frames are gone: a new incarnation or epoch tells the receiver, and both protocols hear
`on_peer_reset`. A receiver that has restarted may have been answered, over the link the other way, before it was
greeted; if the sender's queue has ever overflowed, that answer may be gone, so it takes the overflow for its own.

A large state travels as many frames (`Bulk`). They must not fill the queue: while it is a quarter full they wait
outside of it, in their order, and other frames overtake them. So a state of any size arrives, at the pace of the
receiver's disk.

Pure: the live links and the simulated network run these same two classes.
"""

from __future__ import annotations

from collections import deque

from multicast.protocol import Bulk, PeerError

QUEUE_FRAMES_MAX = 200_000
QUEUE_BYTES_MAX = 128 * 1024 * 1024
WAITING_BYTES_MAX = 1024 * 1024 * 1024
"""How much bulk may wait for room in the queue; beyond, the queue overflows."""


class Sender:
    """The sending end of one link.

    frames_max, bytes_max: what may wait for acknowledgement; one frame more drops all of it (see `push`).
    losses: how often that has happened since the last Welcome.
    """

    __slots__ = ("_bytes", "_next", "_unacknowledged", "_waiting", "_waiting_bytes", "bytes_max", "epoch", "frames_max",
                 "losses", "peer_incarnation")  # fmt: skip

    def __init__(self, frames_max: int = QUEUE_FRAMES_MAX, bytes_max: int = QUEUE_BYTES_MAX):
        self.frames_max = frames_max
        self.bytes_max = bytes_max
        self.epoch = 0
        self.peer_incarnation: int | None = None
        self._next = 1
        self._bytes = 0
        self.losses = 0
        self._unacknowledged: deque[tuple[int, bytes]] = deque()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0

    @property
    def queued(self) -> int:
        """Frames that are not acknowledged."""
        return len(self._unacknowledged)

    @property
    def first(self) -> int:
        """The lowest sequence number that can still be sent."""
        return self._unacknowledged[0][0] if self._unacknowledged else self._next

    def push(self, frame: bytes) -> int | None:
        """Take a frame; returns its sequence number, 0 if it waits for room. None: the queue has overflowed, all of it
        is dropped and a new epoch begins. Then close the connection and greet again; and tell the protocol
        `on_peer_reset` if this is the first of the `losses`. (If it is not: what the protocol sends because of that
        would fill the queue of a peer that is away once more.)"""
        if type(frame) is Bulk and (self._waiting or not self._has_room(frame)):
            if self._waiting_bytes + len(frame) > WAITING_BYTES_MAX:
                self._overflow()
                return None
            self._waiting.append(frame)
            self._waiting_bytes += len(frame)
            return 0
        if len(self._unacknowledged) >= self.frames_max or self._bytes + len(frame) > self.bytes_max:
            self._overflow()
            return None
        return self._number(frame)

    def _has_room(self, frame: bytes) -> bool:
        """Whether there is room for one more frame of bulk. Most of the queue is kept for other frames, which come in
        bursts when a state travels."""
        queued = len(self._unacknowledged)
        return not queued or (4 * queued < self.frames_max and 4 * (self._bytes + len(frame)) <= self.bytes_max)

    def _overflow(self) -> None:
        self._unacknowledged.clear()
        self._waiting.clear()
        self._bytes = self._waiting_bytes = 0
        self.epoch += 1
        self.losses += 1

    def _number(self, frame: bytes) -> int:
        sequence = self._next
        self._next = sequence + 1
        self._unacknowledged.append((sequence, frame))
        self._bytes += len(frame)
        return sequence

    def acknowledged(self, sequence: int) -> list[tuple[int, bytes]]:
        """The peer has flushed everything up to here. Returns frames that waited for that, to send now. PeerError for
        what was never sent."""
        if sequence >= self._next:
            raise PeerError(f"acknowledged frame {sequence} before it was sent")
        queue = self._unacknowledged
        while queue and queue[0][0] <= sequence:
            self._bytes -= len(queue.popleft()[1])
        released = []
        while self._waiting and self._has_room(self._waiting[0]):
            frame = self._waiting.popleft()
            self._waiting_bytes -= len(frame)
            released.append((self._number(frame), frame))
        return released

    def resume(self, peer_incarnation: int, received: int) -> tuple[list[tuple[int, bytes]], bool]:
        """After a Welcome: (frames to send now, whether to tell the protocol `on_peer_reset`). It is told if since the
        last Welcome the peer has restarted, or the queue has overflowed once more after that was told."""
        self.acknowledged(received)
        reset = self.peer_incarnation not in (None, peer_incarnation) or self.losses > 1
        self.peer_incarnation = peer_incarnation
        self.losses = 0
        return list(self._unacknowledged), reset


class Receiver:
    """The receiving end of one link."""

    __slots__ = ("epoch", "flushed", "incarnation", "seen")

    def __init__(self) -> None:
        self.incarnation: int | None = None
        self.epoch = 0
        self.seen = 0
        self.flushed = 0

    def greet(self, incarnation: int, epoch: int, first: int) -> tuple[int, bool]:
        """After a Hello: (what to answer as received, whether the link has lost its memory)."""
        if (self.incarnation, self.epoch) == (incarnation, epoch):
            return self.flushed, False
        lost = self.incarnation is not None or epoch > 0
        self.incarnation, self.epoch = incarnation, epoch
        self.seen = self.flushed = first - 1
        return self.flushed, lost

    def accept(self, sequence: int) -> bool:
        """Whether this frame is new. PeerError if one before it is missing."""
        if sequence == self.seen + 1:
            self.seen = sequence
            return True
        if sequence <= self.seen:
            return False
        raise PeerError(f"frame {sequence} after frame {self.seen}")
