"""Mutual TLS between the processes of a cluster: each proves by its certificate which process it is (RFC 8446, 6125).

Who dials checks the name in the certificate as every TLS client does, only that the name is not the address but that of
the process; who is dialled learns from the greeting which process it is to be, and compares then.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from multicast.types import ProcessId

HANDSHAKE_TIMEOUT_S = 5
SHAKEN_S = 0.25
"""A handshake that takes longer makes room for a new connection."""


def process_name(process: ProcessId, cluster: bytes) -> str:
    """The DNS name that this process's certificate has to have."""
    return f"replica-{process}.{cluster.hex()}"


class Tls:
    """authority: of all certificates of the cluster; certificate (with what it is signed by, except the authority) and
    key: of this process. All PEM files. OSError, ssl.SSLError: they cannot be used. accepting, dialling: for the
    connections that are made from now on."""

    def __init__(self, authority: Path, certificate: Path, key: Path, cluster: bytes):
        self._cluster = cluster
        self.accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.accepting, self.dialling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority)
            show(context, certificate, key)

    def follow(self, read: Tls) -> None:
        """Of the same process, from files that were read later: from now on it is as that one. Whom only the files
        before let trust is not trusted any more."""
        self.accepting, self.dialling = read.accepting, read.dialling

    def unfit(self, process: ProcessId) -> str:
        """Why peers with the same authority would refuse this process by its certificate; empty if they would not. It
        shakes hands with itself. ssl.SSLError: for another reason it could not."""
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = self.dialling.wrap_bio(to_client, to_server, server_hostname=self.name(process))
        server = self.accepting.wrap_bio(to_server, to_client, server_side=True)
        try:
            for end in (client, server) * 2:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message.rstrip(".")
        return ""

    def name(self, process: ProcessId) -> str:
        """See `process_name`."""
        return process_name(process, self._cluster)

    def refusal(self, certificate: dict[str, Any] | None, process: ProcessId) -> str:
        """Why who has shown this certificate (`SSLSocket.getpeercert`) is not the process; empty if it is."""
        names = [value for kind, value in (certificate or {}).get("subjectAltName", ()) if kind == "DNS"]
        if self.name(process) in names:
            return ""
        return f"its certificate is for {', '.join(names)[:200] or 'no name'}, not for {self.name(process)}"


def show(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Use this certificate and key, PEM files. OSError, ssl.SSLError: they cannot be used. A key that wants a password
    is refused: OpenSSL would ask the terminal, and the process would stand still until somebody answers."""
    context.load_cert_chain(certificate, key, _no_password)


def _no_password() -> str:
    raise ssl.SSLError(0, "the key is encrypted, and nobody is there to give its password: it has to lie there without")


class Handshakes:
    """Connections that have come in and have not shaken hands yet: `most` at a time, for each holds a file and memory,
    and nobody else counts it. For one more the oldest goes, if it has had SHAKEN_S, else the new one. context: for a
    connection that has come in now."""

    def __init__(self, context: Callable[[], ssl.SSLContext], most: int):
        self.context = context
        self._most = most
        self._begun: dict[asyncio.BaseProtocol, tuple[asyncio.Transport, float]] = {}

    def before(self, factory: Callable[[], asyncio.BaseProtocol]) -> Callable[[], asyncio.BaseProtocol]:
        """A factory for `loop.create_server` without TLS: what `factory` makes gets connections with TLS."""
        return lambda: _Accepted(self, factory())

    def begin(self, protocol: asyncio.BaseProtocol, transport: asyncio.Transport) -> None:
        """A connection that is to be this protocol's. (What `loop.start_tls` does, before anything is read.)"""
        loop = asyncio.get_running_loop()
        if len(self._begun) >= self._most:
            first = next(iter(self._begun))
            oldest, since = self._begun[first]
            if since > loop.time() - SHAKEN_S:
                transport.abort()
                return
            self.over(first)
            oldest.abort()
        self._begun[protocol] = transport, loop.time()
        secured = _Secured(self, protocol)
        transport.set_protocol(secured)
        secured.connection_made(transport)

    @property
    def waiting(self) -> int:
        """How many there are."""
        return len(self._begun)

    def over(self, protocol: asyncio.BaseProtocol) -> None:
        """It is done, or its connection is gone. Idempotent."""
        self._begun.pop(protocol, None)


class _Accepted(asyncio.Protocol):
    """A connection of which nothing was read."""

    def __init__(self, handshakes: Handshakes, protocol: asyncio.BaseProtocol):
        self._handshakes = handshakes
        self._protocol = protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._handshakes.begin(self._protocol, transport)


class _Secured(SSLProtocol):
    """TLS between a connection and its protocol."""

    max_size = 64 * 1024
    """Of the buffer that each connection has; asyncio's own is four times as large."""

    def __init__(self, handshakes: Handshakes, protocol: asyncio.BaseProtocol):
        nobody: Any = None
        super().__init__(
            asyncio.get_running_loop(), protocol, handshakes.context(), nobody, server_side=True,
            ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
        )  # fmt: skip
        self._told = handshakes.over
        self._of = protocol

    def connection_lost(self, exc: BaseException | None) -> None:
        self._told(self._of)
        super().connection_lost(exc)
