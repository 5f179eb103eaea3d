"""Where a peer is that is called by a name: looked up beside everything else.

asyncio looks names up in the threads that a host writes its state, checkpoints and snapshots in, one more with each
attempt. Where no name server answers a lookup takes a minute, and a peer that is away is dialled every few seconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from contextlib import suppress


class Lookup:
    """The lookups for one peer: one at a time, each in a thread of its own, for which nothing waits at the end."""

    def __init__(self) -> None:
        self._under_way: tuple[str, asyncio.Future[list[str]]] | None = None

    async def addresses(self, host: str) -> list[str]:
        """Of this name, or address. OSError, ValueError. What comes when nobody waits is for whoever asks next."""
        try:
            return [str(ipaddress.ip_address(host))]
        except ValueError:
            pass
        if self._under_way is None or self._under_way[0] != host:
            loop = asyncio.get_running_loop()
            asked = (host, loop.create_future(), loop)
            try:
                threading.Thread(target=self._look, args=asked, name="name lookup", daemon=True).start()
            except RuntimeError as error:  # the system has no more threads for us
                raise OSError(f"{host} cannot be looked up: {error}") from None
            self._under_way = asked[:2]
        host, answer = self._under_way
        try:
            return await asyncio.shield(answer)
        finally:
            if answer.done() and self._under_way == (host, answer):
                self._under_way = None

    def _look(self, host: str, answer: asyncio.Future[list[str]], loop: asyncio.AbstractEventLoop) -> None:
        found: list[str] = []
        error: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except (OSError, ValueError) as failed:
            error = failed
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._found, answer, found, error)

    def _found(self, answer: asyncio.Future[list[str]], found: list[str], error: Exception | None) -> None:
        if error is None:
            answer.set_result(found)
        else:
            answer.set_exception(error)
            answer.exception()  # seen, even if nobody waits
