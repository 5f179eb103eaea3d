"""Mutual TLS between the processes of a cluster: each proves by its certificate which process it is (RFC 8446, 6125).

Who dials checks the name in the certificate as every TLS client does, only that the name is not the address but that of
the process; who is dialled learns from the greeting which process it is to be, and compares then.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from multicast.types import ProcessId

HANDSHAKE_TIMEOUT_S = 5.0


def process_name(process: ProcessId, cluster: bytes) -> str:
    """The DNS name that this process's certificate has to have."""
    return f"replica-{process}.{cluster.hex()}"


class Tls:
    """authority: of all certificates of the cluster; certificate (with what it is signed by, except the authority) and
    key: of this process. All PEM files. OSError, ssl.SSLError: they cannot be used."""

    def __init__(self, authority: Path, certificate: Path, key: Path, cluster: bytes):
        self._authority, self._files = authority, (certificate, key)
        self._cluster = cluster
        self.accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.accepting, self.dialling):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
        self.renew()

    def renew(self) -> None:
        """Read the files again: for the connections that are made from now on. Who was trusted before still is."""
        for context in (self.accepting, self.dialling):
            context.load_verify_locations(self._authority)
            context.load_cert_chain(*self._files)

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
