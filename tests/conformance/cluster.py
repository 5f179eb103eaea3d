"""Processes of one protocol on this machine, linked over TCP, as a test sees them: start, submit, pause, kill, stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from multicast.types import AppMessage, GroupId, MessageId, ProcessId, Topology
from tests.conformance.process import Command, Event, Spec
from tests.house import ROOT
from tests.ports import free_ports
from workloads.nemesis.network import Network

DEADLINE_S = 120.0
STOP_S = 60.0


class Peer:
    """One process over all its lives. life: 0 before the first. delivered, position: of the present life. heard: when
    this test heard of each of these deliveries, seconds of its own clock."""

    def __init__(self, process: ProcessId):
        self.process = process
        self.life = 0
        self.position = 0
        self.delivered: set[MessageId] = set()
        self.heard: dict[MessageId, float] = {}
        self.refused: list[MessageId] = []
        self.statuses: list[Event] = []
        self.running: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        return self.running is not None and self.running.returncode is None

    async def start(self, spec: Spec, log: IO[bytes]) -> None:
        self.life += 1
        self.position, self.delivered, self.heard, self.statuses = 0, set(), {}, []
        self.running = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.conformance.process", msgspec.json.encode(spec).decode(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, cwd=ROOT, limit=1 << 22,
        )  # fmt: skip
        self._reading = asyncio.create_task(self._read(self.running), name=f"output of process {self.process}")

    async def _read(self, running: asyncio.subprocess.Process) -> None:
        assert running.stdout is not None
        while line := await running.stdout.readline():
            with contextlib.suppress(msgspec.DecodeError):  # a line that was cut by SIGKILL
                self._hear(msgspec.json.decode(line, type=Event))

    def _hear(self, event: Event) -> None:
        if event.position:
            self.position = event.position
            self.delivered.add(event.id)
            self.heard[event.id] = time.monotonic()
        elif event.refused:
            self.refused.append(event.refused)
        else:
            self.statuses.append(event)

    def command(self, command: Command) -> None:
        assert self.running is not None and self.running.stdin is not None
        with contextlib.suppress(ConnectionError):  # it is just dying
            self.running.stdin.write(msgspec.json.encode(command) + b"\n")

    def pause(self) -> None:
        """SIGSTOP."""
        assert self.running is not None
        self.running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.running is not None
        self.running.send_signal(signal.SIGCONT)

    async def end(self, kill: bool = False) -> int:
        """SIGKILL, or the end of its input; its exit status. It is gone when this returns."""
        running, reading = self.running, self._reading
        assert running is not None and running.stdin is not None and reading is not None
        if kill and running.returncode is None:
            running.kill()
        running.stdin.close()
        try:
            async with asyncio.timeout(STOP_S):
                await running.wait()
                await reading
        except TimeoutError:
            running.kill()
            await running.wait()
            raise AssertionError(f"process {self.process} did not stop within {STOP_S} s") from None
        finally:
            reading.cancel()
            with contextlib.suppress(ConnectionError):
                await running.stdin.wait_closed()
        assert running.returncode is not None
        return running.returncode


class Processes:
    """All processes of a topology: `async with`. None is left when the block ends, whichever way. proxied: whatever
    they send one another passes `network`."""

    def __init__(
        self, path: Path, topology: Topology, protocol: str, options: Mapping[str, Any], proxied: bool = False
    ):
        self.path = path
        self.topology = topology
        self.protocol = protocol
        self.options = dict(options)
        self.proxied = proxied
        self.peers = {p: Peer(p) for p in topology.processes}
        self.ports = dict(zip(topology.processes, free_ports(len(topology.processes)), strict=True))
        self.network = Network(self.ports if proxied else {})
        self._log = open(path / "log", "wb")  # noqa: SIM115 - closed by __aexit__

    async def __aenter__(self) -> Processes:
        await self.network.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*(peer.end(kill=True) for peer in self.peers.values() if peer.up))
        finally:
            await self.network.stop()
            self._log.close()

    @property
    def up(self) -> list[ProcessId]:
        """Which ones run."""
        return [process for process, peer in self.peers.items() if peer.up]

    def directory(self, process: ProcessId) -> Path:
        return self.path / str(process)

    async def start(self, *processes: ProcessId) -> None:
        """Start these and wait until every pair of running processes is linked."""
        for process in processes:
            groups = self.topology.groups
            directory = str(self.directory(process))
            ports = self.network.addresses(process) if self.proxied else self.ports
            spec = Spec(self.protocol, self.options, groups, process, directory, ports)
            await self.peers[process].start(spec, self._log)
        async with asyncio.timeout(DEADLINE_S):
            for process in processes:
                while (await self.status(process)).connected < len(self.up) - 1:
                    await asyncio.sleep(0.02)

    async def status(self, process: ProcessId) -> Event:
        peer = self.peers[process]
        before = len(peer.statuses)
        peer.command(Command())
        await self.eventually(lambda: len(peer.statuses) > before, f"status of process {process}")
        return peer.statuses[-1]

    async def leader(self, group: GroupId) -> ProcessId:
        """Whom the running members of a group take for its leader, as soon as they agree on a running one."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                members = [p for p in self.topology.groups[group] if self.peers[p].up]
                named = {(await self.status(p)).leader for p in members}
                if len(named) == 1 and (leader := named.pop()) in members:
                    return leader
                await asyncio.sleep(0.02)

    def submit(self, process: ProcessId, message: AppMessage) -> None:
        self.peers[process].command(Command(message))

    def set_clock(self, process: ProcessId, ahead_us: int) -> None:
        """From now on, in this life, its wall clock is so far ahead of the machine's."""
        self.peers[process].command(Command(ahead_us=ahead_us))

    async def kill(self, process: ProcessId) -> None:
        """SIGKILL."""
        await self.peers[process].end(kill=True)

    async def stop(self) -> None:
        """All at once, in good order; the exit status of each is 0."""
        statuses = await asyncio.gather(*(peer.end() for peer in self.peers.values()))
        assert set(statuses) == {0}, f"exit statuses {statuses}:\n{self.log_tail()}"

    async def eventually(self, condition: Callable[[], object], what: str) -> None:
        """Wait until this holds. AssertionError after the deadline, or when a process ends that nobody has ended."""
        watched = [peer for peer in self.peers.values() if peer.up]
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    await asyncio.sleep(0.01)
                    ended = [p.process for p in watched if p.running and p.running.returncode not in (None, -9)]
                    assert not ended, f"processes {ended} ended by themselves:\n{self.log_tail()}"
        except TimeoutError:
            raise AssertionError(f"did not happen within {DEADLINE_S:g} s: {what}\n{self.log_tail()}") from None

    def log_tail(self) -> str:
        return "\n".join((self.path / "log").read_text(errors="replace").splitlines()[-20:])
