"""The whole path in three minutes: a cluster of processes, a bank, a killed leader, its return, and Spark's verdict.

    python -m workloads.demo [--protocol white_box] [--dir demo-run] [--seconds 30] [--clients 8]

The cluster has 2 shards of 3 replicas, or of one if the protocol tolerates no faults (then nothing is killed). Exit
status 0 only if the clients were served throughout, the money is all there, and the audit says that the run is valid.
Whatever happens, also on Ctrl-C, the cluster is stopped at the end; its directory stays, until the next demo.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from client_sdk import AsyncClient, KvError
from multicast import registry
from workloads import bank, directories
from workloads.bank import Totals
from workloads.ports import free_base_port

SHARDS = 2
REPLICAS = 3
VICTIM_SHARD = 1
DOWN_SECONDS = 40.0
FINISH_SECONDS = 20.0
STOP_SECONDS = 5.0
RECOVERY_SECONDS = 30.0


class DemoFailed(Exception):
    """The demo cannot go on, or did not show what it should; one line."""


class Screen:
    """What people see. On a terminal the throughput is one line that changes; elsewhere a line every five seconds."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self._live = sys.stdout.isatty()
        self._open_line = False

    def say(self, text: str) -> None:
        """One line, with the time since the demo began."""
        self._close_line()
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def live(self, text: str, number: int) -> None:
        """The changing line; `number` counts its states."""
        if self._live:
            print(f"\r\x1b[K          {text}", end="", flush=True)
            self._open_line = True
        elif number % 5 == 0:
            self.say(text)

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce what is done, and say how long it took."""
        self._close_line()
        print(f"\n==> {title}", flush=True)
        began = time.monotonic()
        yield
        self.say(f"took {time.monotonic() - began:.1f} s")

    def _close_line(self) -> None:
        if self._open_line:
            print(flush=True)
            self._open_line = False


class Demo:
    """The steps, in order, are `run`'s. One cluster, in `directory`."""

    def __init__(self, directory: Path, protocol: str, seconds: float, clients: int):
        self.directory = directory
        self.protocol = protocol
        self.seconds = seconds
        self.clients = clients
        self.fault_tolerant = registry.load(protocol).specification.fault_tolerant
        self.screen = Screen()
        self._made = False
        self._stopping: asyncio.Future[None] | None = None

    async def run(self) -> bool:
        """Whether everything was as it should be. DemoFailed says what was not. The cluster is down afterwards."""
        replicas = REPLICAS if self.fault_tolerant else 1
        try:
            with self.screen.step(f"A new cluster in {self.directory}: {SHARDS} shards x {replicas}, {self.protocol}"):
                await self._prepare()
                await self._kvstore(
                    "cluster", "init", str(self.directory), "--shards", str(SHARDS), "--replicas", str(replicas),
                    "--protocol", self.protocol, "--base-port", str(free_base_port(SHARDS * replicas)),
                )  # fmt: skip
                self._made = True
            with self.screen.step("Start every replica as a process"):
                await self._kvstore("cluster", "up", str(self.directory), "--detach")
                await self._execute("kvstore", "cluster", "status", str(self.directory))
            with self.screen.step(f"The bank: {self.clients} clients for {self.seconds:g} s"):
                await self._bank()
            with self.screen.step("Stop the cluster cleanly"):
                await self._down()
            with self.screen.step("Audit: Spark reads the replicas' journals and the clients' history"):
                verdict = await self._execute("spark_etl", "audit", "--quiet", str(self.directory))
            return verdict == 0
        finally:
            if self._made:
                await self._down()

    # --- the cluster -----------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """A fresh directory: an earlier demo's is replaced, anything else is left alone."""
        if not directories.is_free(self.directory):
            if not directories.is_replaceable(self.directory):
                raise DemoFailed(f"{self.directory} exists and was not made by a demo; nothing was changed")
            self.screen.say("stopping and removing what an earlier demo left there")
            if (self.directory / "cluster.json").is_file():
                await self._kvstore("cluster", "down", str(self.directory))
            shutil.rmtree(self.directory)
        directories.mark(self.directory)

    async def _kvstore(self, *arguments: str) -> None:
        code = await self._execute("kvstore", *arguments)
        if code != 0:
            raise DemoFailed(f"kvstore {' '.join(arguments)}: exit status {code}")

    async def _execute(self, module: str, *arguments: str) -> int:
        """Run `python -m module`, its output on ours; its exit status. It does not outlive this call.

        It is in a session of its own, so that Ctrl-C reaches this process alone, which then stops things in order.
        """
        command = (sys.executable, "-m", module, *arguments)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            await _end(process, patience=FINISH_SECONDS if module == "kvstore" else 0.0)
            raise
        finally:
            await _last_of_group(process.pid)

    async def _down(self) -> None:
        """Stop all replicas, once. Shielded: an interruption must not interrupt this."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._kvstore("cluster", "down", str(self.directory)))
        await asyncio.wait_for(asyncio.shield(self._stopping), DOWN_SECONDS)

    async def _status(self) -> list[dict[str, Any]]:
        """`kvstore cluster status -o json`, whoever is ready."""
        command = (sys.executable, "-m", "kvstore", "cluster", "status", str(self.directory), "-o", "json")
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, start_new_session=True)
        text, _ = await process.communicate()
        if not text:
            raise DemoFailed("kvstore cluster status failed")
        return msgspec.json.decode(text, type=list[dict[str, Any]])

    # --- the bank and the failure ----------------------------------------------------------------------------------

    async def _bank(self) -> None:
        began = time.monotonic()
        stop = asyncio.Event()
        progress = _Progress(self.screen)
        running = asyncio.create_task(
            bank.run(
                self.directory,
                directory=self.directory,
                clients=self.clients,
                seconds=self.seconds,
                stop=stop,
                on_second=progress.second,
            )
        )
        scenario = asyncio.create_task(self._failure(progress) if self.fault_tolerant else asyncio.sleep(0))
        try:
            await asyncio.wait([running, scenario], return_when=asyncio.FIRST_EXCEPTION)
            if scenario.done():
                scenario.result()
            totals, balances = await running
            await scenario
        finally:
            stop.set()
            for task in (running, scenario):
                task.cancel()
            await asyncio.gather(running, scenario, return_exceptions=True)
        self.screen.say(bank.describe(totals, time.monotonic() - began))
        expected = bank.ACCOUNTS * bank.START
        found = sum(balances.values())
        self.screen.say(f"final read: {len(balances)} accounts with {found} in all; {expected} were put in")
        if totals.wrong_totals or found != expected:
            raise DemoFailed(f"the money is not all there ({totals.wrong_totals} reads saw another total)")

    async def _failure(self, progress: _Progress) -> None:
        """Kill the leader of one shard a third of the way, and bring it back at two thirds."""
        began = time.monotonic()
        await asyncio.sleep(self.seconds / 3)
        members = [r for r in await self._status() if r["shard"] == VICTIM_SHARD]
        victim = next((r for r in members if r["role"] == "leader" and r["pid"]), None)
        if victim is None:
            raise DemoFailed(f"shard {VICTIM_SHARD} has no leader before anything was killed")
        before = progress.answered
        os.kill(victim["pid"], signal.SIGKILL)
        killed = time.monotonic()
        self.screen.say(f"killed replica {victim['id']}, leader of shard {VICTIM_SHARD}, with -9 (pid {victim['pid']})")
        others = [r for r in members if r["id"] != victim["id"]]
        leader = await self._until(lambda: self._leader_among(others), "a new leader")
        self.screen.say(f"replica {leader} leads shard {VICTIM_SHARD} after {time.monotonic() - killed:.1f} s")
        await asyncio.sleep(max(0.0, self.seconds * 2 / 3 - (time.monotonic() - began)))
        if progress.answered == before:
            raise DemoFailed("no transaction was answered while one leader of two was dead")
        self.screen.say(f"{progress.answered - before} transactions were answered meanwhile; starting it again")
        back = time.monotonic()
        await self._kvstore("cluster", "up", str(self.directory), "--detach")
        position = await self._until(lambda: self._caught_up(victim["url"], others), "a replica that has caught up")
        self.screen.say(f"replica {victim['id']} is back at position {position} after {time.monotonic() - back:.1f} s")

    async def _until(self, check: Any, what: str) -> Any:
        """Ask again and again until `check` gives something."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while time.monotonic() < deadline:
            found = await check()
            if found is not None:
                return found
            await asyncio.sleep(0.1)
        raise DemoFailed(f"there was not {what} within {RECOVERY_SECONDS:g} s")

    async def _leader_among(self, members: list[dict[str, Any]]) -> int | None:
        for one in members:
            facts = await replica_facts(one["url"])
            if facts.get("role") == "leader":
                return int(one["id"])
        return None

    async def _caught_up(self, url: str, others: list[dict[str, Any]]) -> int | None:
        """Its position, once it is where the others were a moment ago."""
        there = max([(await replica_facts(one["url"])).get("completed", 0) for one in others])
        here = (await replica_facts(url)).get("completed", -1)
        return int(here) if here >= there else None


class _Progress:
    """What the bank has done, for the live line."""

    def __init__(self, screen: Screen):
        self._screen = screen
        self._last = (0.0, 0)
        self._number = 0
        self._totals = Totals()

    @property
    def answered(self) -> int:
        """Transactions answered so far."""
        return self._totals.answered

    def second(self, elapsed: float, totals: Totals) -> None:
        """Called by the bank about once a second."""
        self._totals = totals
        then, count = self._last
        rate = (totals.answered - count) / max(elapsed - then, 1e-3)
        self._last = (elapsed, totals.answered)
        self._number += 1
        text = f"{rate:6.0f} transactions/s, {totals.answered} answered, {totals.unknown} of unknown outcome"
        self._screen.live(text, self._number)


async def replica_facts(url: str) -> dict[str, Any]:
    """What one replica says of itself; empty if it does not answer."""
    async with AsyncClient(url, timeout=1.0) as one:
        try:
            return dict((await one.cluster(url))["replica"])
        except KvError:
            return {}


async def _end(process: asyncio.subprocess.Process, patience: float) -> None:
    """Let it finish for `patience` seconds (starting replicas is soon done, and better not cut in the middle), then ask
    it and its own children to stop, at last kill them."""
    for number, seconds in ((None, patience), (signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), seconds)
            return


async def _last_of_group(group: int) -> None:
    """Wait until its children are gone too: Spark's Java ends a moment after Spark's Python."""
    deadline = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            await asyncio.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


async def _interruptible(demo: Demo) -> bool:
    """SIGINT and SIGTERM cancel the demo, once: its end, too, must be left to finish."""
    task = asyncio.current_task()
    assert task is not None
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        if not interrupted:
            interrupted = True
            demo.screen.say("interrupted; stopping the cluster")
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    return await demo.run()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workloads.demo", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--protocol", default="white_box")
    parser.add_argument("--dir", type=Path, default=Path("demo-run"), help="replaced if a demo made it; %(default)s")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the bank runs; default %(default)s")
    parser.add_argument("--clients", type=int, default=8, help="default %(default)s")
    options = parser.parse_args()
    try:
        if not 3 <= options.seconds <= 3600 or not 1 <= options.clients <= 256:
            raise DemoFailed("--seconds is from 3 to 3600, --clients from 1 to 256")
        demo = Demo(options.dir, options.protocol, options.seconds, options.clients)
        valid = asyncio.run(_interruptible(demo))
    except (DemoFailed, registry.UnknownProtocol, KvError, OSError, TimeoutError) as error:
        print(f"demo: {error or type(error).__name__}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130
    took = time.monotonic() - demo.screen.began
    print(f"\n{'The run is valid.' if valid else 'The audit did NOT find the run valid.'} {took:.0f} s in all.")
    print(f"The report, for a browser: {(options.dir / 'audit' / 'report.html').resolve().as_uri()}")
    return 0 if valid else 1


if __name__ == "__main__":
    sys.exit(main())
