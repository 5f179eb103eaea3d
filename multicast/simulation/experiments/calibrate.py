"""What computing costs: the micro-benchmark behind `Cpu`'s constants.

One process does what a replica does to its messages, without a network: it reads frames from a socket, checks their
session numbers, decodes them, lets a protocol handle them (here: look up an entry, note a vote, and put the vote), runs
the engine's batch, encodes its journal records, and encodes, numbers and writes what it sends to three peers, in one
write per peer and batch as the live host does. Timed for batches of 1 and of many inputs, and of none and many sends,
the differences give three constants:

    batch_us   one batch with nothing in it: a poll of the sockets, a read, the engine's round, the journal's record
    input_us   each input of it
    send_us    each message to one other process

The least of many repetitions counts: what the machine's other work adds is not meant. All protocols are charged alike;
a real handler does more than this one, and by how much differs.
"""

from __future__ import annotations

import platform
import random
import selectors
import socket
import struct
import time
from typing import Any, ClassVar

import msgspec

from multicast import wire
from multicast.application import Application
from multicast.engine import Engine
from multicast.protocol import MulticastProtocol, Options, Outbox, Specification
from multicast.session import Receiver, Sender
from multicast.simulation.network import Cpu
from multicast.types import Ballot, MessageId, ProcessId, Timestamp, Topology

RECORDED = Cpu(batch_us=7.5, input_us=1.8, send_us=1.0)
RECORDED_ON = "CPython 3.11.7, Intel Xeon, 2 cores (virtual), Linux x86-64"
"""Where `RECORDED` was measured."""

_MANY_INPUTS = 32
_MANY_SENDS = 8
_PEERS = (1, 2, 3)
_FRAME = struct.Struct(">IQ")
_NOW = 1_700_000_000_000_000


class _Vote(msgspec.Struct, array_like=True, tag=1, gc=False):
    """As large as an acknowledgement of most protocols."""

    id: MessageId
    ballot: Ballot
    local: Timestamp


class _Relay(MulticastProtocol):
    """Notes votes, and sends `sends` of them to every peer at the end of a batch."""

    specification: ClassVar[Specification] = Specification(
        name="relay", summary="for calibration", paper="-", options=Options, messages=(_Vote,), fault_tolerant=True,
        genuine=True,
    )  # fmt: skip
    sends = 0

    def __init__(self, self_id: ProcessId, topology: Topology, options: Options, rng: random.Random):
        super().__init__(self_id, topology, options, rng)
        self._votes: dict[MessageId, dict[ProcessId, Timestamp]] = {}

    def on_message(self, sender: ProcessId, message: Any, now: int, out: Outbox) -> None:
        self._votes.setdefault(message.id, {})[sender] = message.local
        out.put(b"m" + message.id, message.local.encode())

    def end_batch(self, now: int, out: Outbox) -> None:
        for _ in range(self.sends):
            out.send_durable(_PEERS, _Vote(bytes(16), Ballot(1, 0), Timestamp(now, 0)))


class _Bench:
    """The process, and the other end of its sockets."""

    def __init__(self) -> None:
        topology = Topology.grid(2, 3)
        self.protocol = _Relay(0, topology, Options(), random.Random(0))
        self.engine = Engine(self.protocol, Application(), 1)
        self.engine.recover(iter(()), _NOW)
        self.engine.flushed(1)
        self.inside, self.outside = socket.socketpair()
        self.inside.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.inside, selectors.EVENT_READ)
        self.receiver = Receiver()
        self.receiver.greet(1, 0, 1)
        self.senders = {peer: Sender() for peer in _PEERS}
        self.sequence = 0

    def close(self) -> None:
        self.selector.close()
        self.inside.close()
        self.outside.close()

    def batch_us(self, inputs: int, sends: int) -> float:
        """How long one such batch takes."""
        frames = []
        for _ in range(inputs):
            self.sequence += 1
            vote = _Vote(self.sequence.to_bytes(16, "big"), Ballot(1, 0), Timestamp(_NOW, 1))
            frame = self.engine.codec.encode(wire.PROTOCOL, vote)
            frames.append(_FRAME.pack(len(frame), self.sequence) + frame)
        self.protocol.sends = sends
        self.outside.sendall(b"".join(frames))
        began = time.perf_counter()
        self._batch()
        took = time.perf_counter() - began
        while self._more():
            self.outside.recv(1 << 18)
        for sender in self.senders.values():
            sender.acknowledged(sender.first + sender.queued - 1)
        return took * 1e6

    def _more(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self.outside, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _batch(self) -> None:
        self.selector.select(0)
        data = memoryview(self.inside.recv(1 << 18))
        at = 0
        while at < len(data):
            length, sequence = _FRAME.unpack_from(data, at)
            at += _FRAME.size
            if self.receiver.accept(sequence):
                self.engine.receive(4, bytes(data[at : at + length]))
            at += length
        batch = self.engine.run(_NOW)
        self.engine.flushed(batch.number)
        leaving = batch.sends + self.engine.run(_NOW).sends
        writes: dict[ProcessId, list[bytes]] = {}
        for to, frame in leaving:
            for peer in to:
                number = self.senders[peer].push(frame) or 0
                writes.setdefault(peer, []).append(_FRAME.pack(len(frame), number) + frame)
        for chunks in writes.values():
            self.inside.send(b"".join(chunks))


def calibrate(repetitions: int = 2_000) -> Cpu:
    """Measure this machine; about a second."""
    bench = _Bench()
    try:
        shapes = ((1, 0), (_MANY_INPUTS, 0), (1, _MANY_SENDS))
        least = dict.fromkeys(shapes, float("inf"))
        for _ in range(repetitions):
            for shape in shapes:
                least[shape] = min(least[shape], bench.batch_us(*shape))
    finally:
        bench.close()
    single = least[1, 0]
    per_input = (least[_MANY_INPUTS, 0] - single) / (_MANY_INPUTS - 1)
    per_send = (least[1, _MANY_SENDS] - single) / (_MANY_SENDS * len(_PEERS))
    return Cpu(
        batch_us=round(max(0.0, single - per_input), 1), input_us=round(max(0.0, per_input), 1),
        send_us=round(max(0.0, per_send), 1),
    )  # fmt: skip


def machine() -> str:
    """In words, for beside the constants."""
    return f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}, {platform.system()}"
