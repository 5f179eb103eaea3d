"""How a connection opens, and what its bytes mean.

On the wire, big-endian:

    greeting         magic 4 | wire version u16 | length u16 | msgpack Hello or Welcome
    frame            length u32 | sequence number u64 | payload
    acknowledgement  sequence number u64, cumulative | length of the own journal u64, synced
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Collection, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from multicast.protocol import PeerError
from multicast.runtime.fence import Fence
from multicast.session import Sender
from multicast.types import ProcessId
from multicast.wire import MALFORMED, WIRE_VERSION, Hello, Welcome

GREETING_TIMEOUT_S = 5.0
UNACKNOWLEDGED_TIMEOUT_MS = 20_000
"""After this long without an answer of its machine, a peer counts as gone (TCP_USER_TIMEOUT)."""

FRAME = struct.Struct(">IQ")
ACK = struct.Struct(">QQ")
_MAGIC = b"AMCL"
_GREETING = struct.Struct(">4sHH")

_T = TypeVar("_T", Hello, Welcome)


class NewerVersion(PeerError):
    """The peer speaks a later version of the wire format."""


class Fenced(PeerError):
    """The peer's disk, or ours, is not the one that has promised what it had promised."""


class Identity(NamedTuple):
    """Who this process is, whom it greets, who was removed, and in which view, and how far its journal goes. alike:
    see `multicast.protocol.Options`."""

    process: ProcessId
    cluster: bytes
    alike: Mapping[str, str]
    incarnation: int
    peers: Collection[ProcessId]
    gone: Mapping[ProcessId, int]
    fence: Fence

    def hello(self, peer: ProcessId, sender: Sender) -> Hello:
        """The greeting of this process where it dials."""
        return Hello(
            WIRE_VERSION, self.cluster, self.process, peer, self.incarnation, sender.epoch, sender.first,
            self.fence.life, self.fence.length(), self.fence.places.mine, {**self.alike},
        )  # fmt: skip

    def welcome(self, received: int, refusal: str = "", fenced: bool = False) -> Welcome:
        """The greeting of this process where it was dialled."""
        life, length = self.fence.life, self.fence.length()
        return Welcome(WIRE_VERSION, self.incarnation, received, refusal, fenced, life, length)

    def farewell(self, hello: Hello) -> str:
        """Why the greeting process has to end; empty if it has not. (A process that was told so on a link ends by
        itself.)"""
        view = self.gone.get(hello.sender)
        if view is None or hello.cluster != self.cluster or hello.sender in self.peers:
            return ""
        return f"process {hello.sender} was removed from its group, in view {view}: it ends, and is needed no more"

    def refusal(self, hello: Hello) -> str:
        """Why this greeting is refused; empty if it is not."""
        if hello.cluster != self.cluster:
            return f"this process is of cluster {self.cluster.hex()}, not of {hello.cluster.hex()[:64]}"
        if hello.receiver != self.process:
            return f"this is process {self.process}, not {hello.receiver}"
        for name in sorted(hello.alike.keys() & self.alike.keys()):
            if hello.alike[name] != self.alike[name]:
                other, own = hello.alike[name][:64], self.alike[name][:64]
                told = f"process {hello.sender} goes by {name} = {other!r}, and this one by {own!r}"
                return f"{told}: all have to go alike"
        if min(hello.incarnation, hello.epoch) < 0 or hello.first < 1:
            return "impossible numbers in the greeting"
        return ""

    def knows(self, hello: Hello) -> bool:
        """Whether there are links to who greets, at least since this greeting."""
        if hello.sender not in self.peers and hello.place:
            self.fence.places.met(hello.sender, hello.place)
        return hello.sender in self.peers


def encode_greeting(greeting: Hello | Welcome) -> bytes:
    """The first bytes that one end sends."""
    body = msgspec.msgpack.encode(greeting)
    return _GREETING.pack(_MAGIC, greeting.version, len(body)) + body


def decode_greeting(data: bytes | bytearray, kind: type[_T]) -> tuple[_T, int] | None:
    """(greeting, bytes used), or None if more bytes are needed. PeerError; NewerVersion before the rest is read."""
    if not _MAGIC.startswith(data[:4]) and not data.startswith(_MAGIC):
        raise PeerError("does not speak this protocol")
    if len(data) < _GREETING.size:
        return None
    _, version, length = _GREETING.unpack_from(data)
    if version > WIRE_VERSION:
        raise NewerVersion(f"wire version {version} is newer than this program's {WIRE_VERSION}; use a newer release")
    if len(data) < _GREETING.size + length:
        return None
    try:
        body = msgspec.msgpack.decode(data[_GREETING.size : _GREETING.size + length], type=kind)
    except MALFORMED as error:
        raise PeerError(f"malformed greeting: {error}") from None
    return body, _GREETING.size + length


def set_options(transport: asyncio.BaseTransport) -> None:
    """Send at once; notice a machine that has gone."""
    sock: socket.socket | None = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_TIMEOUT_MS)
