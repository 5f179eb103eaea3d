"""Reliable FIFO sessions over links that break: sequence numbers, acknowledgement after the flush, resending.

Theory of operation. A sender numbers its frames to one peer 1, 2, 3, ... and keeps each until the peer has acknowledged
it; the peer acknowledges a frame only after the flush of the batch that processed it. When a connection breaks, the
sender greets again (`Hello`), hears up to where the peer has flushed (`Welcome`) and resends the rest; the receiver
drops what it saw already. So nothing is lost and nothing comes twice while both ends live. When the *receiver*
restarts, what it had flushed is on its disk and everything else is resent. When the *sender* restarts, or its queue to
a peer overflows, frames are gone: a new incarnation or epoch tells the receiver, and both protocols hear
`on_peer_reset`.

Pure: the live links and the simulated network run these same two classes.
"""

from __future__ import annotations

from collections import deque

from multicast.protocol import PeerError

QUEUE_FRAMES_MAX = 200_000
QUEUE_BYTES_MAX = 128 * 1024 * 1024


class Sender:
    """The sending end of one link.

    frames_max, bytes_max: what may wait for acknowledgement; one frame more drops all of it (see `push`).
    """

    __slots__ = ("_bytes", "_next", "_unacknowledged", "bytes_max", "epoch", "frames_max", "peer_incarnation")

    def __init__(self, frames_max: int = QUEUE_FRAMES_MAX, bytes_max: int = QUEUE_BYTES_MAX):
        self.frames_max = frames_max
        self.bytes_max = bytes_max
        self.epoch = 0
        self.peer_incarnation: int | None = None
        self._next = 1
        self._bytes = 0
        self._unacknowledged: deque[tuple[int, bytes]] = deque()

    @property
    def queued(self) -> int:
        """Frames that are not acknowledged."""
        return len(self._unacknowledged)

    @property
    def first(self) -> int:
        """The lowest sequence number that can still be sent."""
        return self._unacknowledged[0][0] if self._unacknowledged else self._next

    def push(self, frame: bytes) -> int | None:
        """Take a frame; its sequence number. None: the queue overflowed, all of it is dropped and a new epoch begins;
        close the connection, greet again, and tell the protocol `on_peer_reset`."""
        if len(self._unacknowledged) >= self.frames_max or self._bytes + len(frame) > self.bytes_max:
            self._unacknowledged.clear()
            self._bytes = 0
            self.epoch += 1
            return None
        sequence = self._next
        self._next = sequence + 1
        self._unacknowledged.append((sequence, frame))
        self._bytes += len(frame)
        return sequence

    def acknowledged(self, sequence: int) -> None:
        """The peer has flushed everything up to here. PeerError for what was never sent."""
        if sequence >= self._next:
            raise PeerError(f"acknowledged frame {sequence} before it was sent")
        queue = self._unacknowledged
        while queue and queue[0][0] <= sequence:
            self._bytes -= len(queue.popleft()[1])

    def resume(self, peer_incarnation: int, received: int) -> tuple[list[tuple[int, bytes]], bool]:
        """After a Welcome: (frames to send now, whether the peer has restarted since the last Welcome)."""
        self.acknowledged(received)
        restarted = self.peer_incarnation not in (None, peer_incarnation)
        self.peer_incarnation = peer_incarnation
        return list(self._unacknowledged), restarted


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
        lost = self.incarnation is not None
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
