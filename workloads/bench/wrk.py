"""The same requests sent by wrk (https://github.com/wg/wrk), the load generator that others judge with.

One wrk with one thread per leader; fewer clients than leaders ask the first ones only. Requests are made before and
sent in turn, again from the first after the last, so they carry no ids: a repetition would be no second write. wrk has
no warm-up, and measures for whole seconds; it corrects its latencies for requests that a slow answer has kept from
being sent.
"""

from __future__ import annotations

import math
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from workloads.bench.load import Operation, Tally

REQUESTS = 5_000
"""Different ones for each leader."""
GRACE_SECONDS = 20.0
_SCRIPT = Path(__file__).with_name("requests.lua")


class NoWrk(Exception):
    """wrk is not on this machine, or has failed; one line."""


def find_wrk() -> str:
    """Where the program is. NoWrk says how to get it."""
    found = shutil.which("wrk")
    if found is None:
        raise NoWrk("wrk is not installed here: apt-get install wrk")
    return found


class WrkLoad:
    """As `workloads.bench.load.Load`, in closed loop; seconds are rounded up to whole ones."""

    def __init__(self, urls: tuple[str, ...], clients: int, make: Callable[[], Operation], seconds: float):
        self.seconds = math.ceil(seconds)
        self._urls = urls[:clients]
        self._clients = clients
        self._make = make
        self._running: list[subprocess.Popen[str]] = []

    def stop(self) -> None:
        """Have `run` return."""
        for process in self._running:
            process.terminate()

    def run(self) -> Tally:
        """Blocks until it is over. NoWrk if wrk fails."""
        program = find_wrk()
        name, prepared = self._prepare()
        tally, spent, began = Tally(), _cpu_of_children(), time.monotonic_ns()
        with tempfile.TemporaryDirectory(prefix="kvstore-bench-wrk-") as directory:
            try:
                for number, url in enumerate(self._urls):
                    file = Path(directory) / str(number)
                    file.write_bytes(b"".join(b"%d\n%b" % (len(one), one) for one in prepared[number]))
                    clients = self._clients // len(self._urls) + (number < self._clients % len(self._urls))
                    self._start(program, clients, url, file)
                for process in self._running:
                    said, complaint = process.communicate(timeout=self.seconds + GRACE_SECONDS)
                    _count(name, said, complaint, tally)
            finally:
                for process in self._running:
                    process.kill()
                    process.wait()
        tally.cpu_ns, tally.ran_ns = _cpu_of_children() - spent, time.monotonic_ns() - began
        return tally

    def _prepare(self) -> tuple[str, list[list[bytes]]]:
        """(what the operations are called, requests for each leader). ValueError for operations of several requests."""
        prepared: list[list[bytes]] = [[] for _ in self._urls]
        while min(map(len, prepared)) < REQUESTS:
            operation = self._make()
            if len(operation.requests) > 1 or operation.acknowledged is not None:
                raise ValueError(f"{operation.name} depends on answers, which wrk does not look at")
            place, data = operation.requests[0]
            if place < len(prepared) and len(prepared[place]) < REQUESTS:
                prepared[place].append(data)
        return operation.name, prepared

    def _start(self, program: str, clients: int, url: str, file: Path) -> None:
        command = [
            program, "-t1", f"-c{clients}", f"-d{self.seconds}s", "--timeout", "10s", "-s", str(_SCRIPT), url,
            "--", str(file),
        ]  # fmt: skip
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
        self._running.append(process)


def _count(name: str, said: str, complaint: str, tally: Tally) -> None:
    """What one wrk says. Quantiles stand for as many requests as lie between them."""
    _, found, numbers = said.partition("DONE ")
    if not found:
        lines = (complaint or said).strip().splitlines() or ["it said nothing"]
        raise NoWrk(f"wrk: {lines[-1][:300]}")
    requests, _, refused, broken, *quantiles = map(float, numbers.split())
    succeeded = int(requests - refused)
    tally.succeeded += succeeded
    if refused:
        tally.errors["refused"] += int(refused)
    if broken:
        tally.errors["lost"] += int(broken)
    latencies = tally.latencies.setdefault(name, [])
    latencies += [int(quantiles[i * len(quantiles) // succeeded] * 1000) for i in range(succeeded)]


def _cpu_of_children() -> int:
    """Processor time of those that have ended and been waited for, nanoseconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return int((used.ru_utime + used.ru_stime) * 1e9)
