"""The simulated world itself: time, determinism, disks, links, scripts, requests."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from multicast import registry
from multicast.application import Application, ApplicationOutbox
from multicast.journal import Journal
from multicast.parts.ballots import NOBODY
from multicast.protocol import MulticastProtocol, Outbox, Saved
from multicast.records import BatchEnd, Put, encode_record
from multicast.simulation.checkers import Properties, attach
from multicast.simulation.disk import SimulatedDisk
from multicast.simulation.network import Conditions, Cpu
from multicast.simulation.runner import Run, Settings, run_seed
from multicast.simulation.world import World
from multicast.types import AppMessage, ProcessId, Topology, new_message_id
from tests.simulation.sequencer import Ordered, Sequencer

CLUSTER = b"c" * 16
ROOT = Path(__file__).resolve().parents[2]


class Echo(Application):
    """Answers "ping"; never answers anything else."""

    def on_request(self, token: int, request: Any, now: int, out: ApplicationOutbox) -> None:
        if request == "ping":
            out.answer(token, "pong")


def _world(seed: int = 1, protocol: type[MulticastProtocol] = Sequencer, **arguments: Any) -> World:
    topology = Topology.grid(1, 3)

    def make_process(
        pid: ProcessId, rng: random.Random, disk: SimulatedDisk
    ) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, protocol.specification.options(), rng), Echo()

    return World(topology, make_process, seed, **arguments)


def _message(world: World, number: int, origin: ProcessId = 1) -> AppMessage:
    return AppMessage(new_message_id(world.now, number), (0,), b"x", origin)


def _positions(world: World) -> list[int]:
    return [node.engine.position for node in world.nodes.values()]


def test_one_seed_is_one_run() -> None:
    settings = Settings(groups=1, replicas=3)
    first, second, other = (run_seed(Sequencer, seed, settings) for seed in (3, 3, 4))
    assert first.digest == second.digest
    assert first.violations == second.violations
    assert first.digest != other.digest


@pytest.mark.parametrize("protocol", ["white_box", pytest.param("skeen", marks=pytest.mark.full)])
def test_a_run_does_not_depend_on_the_hash_seed(protocol: str) -> None:
    code = (
        "from multicast import registry; from multicast.simulation.runner import Settings, run_seed\n"
        "settings = Settings(size='small')\n"
        f"print([run_seed(registry.load({protocol!r}), seed, settings).digest for seed in range(2)])"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


def test_time_never_goes_back() -> None:
    world = _world()
    world.start()
    with pytest.raises(ValueError, match="is over"):
        world.schedule(world.now - 1, lambda: None)


def test_the_script_gives_exact_delays_and_links_stay_fifo() -> None:
    seen: list[tuple[int, int]] = []

    def script(sender: ProcessId, receiver: ProcessId, message: Any) -> int | None:
        if isinstance(message, Ordered) and receiver == 2:
            seen.append((sender, message.number))
            return 9_000 if message.number == 1 else 1_000
        return 1_000

    world = _world(script=script, conditions=Conditions.exact(1_000))
    world.start()
    world.submit(0, _message(world, 1, 0))
    world.submit(0, _message(world, 2, 0))
    start = world.now
    world.run_until(start + 1_000)
    assert _positions(world) == [2, 2, 0]
    world.run_until(start + 8_999)
    assert _positions(world) == [2, 2, 0]
    world.run_until(start + 9_000)
    assert _positions(world) == [2, 2, 2]
    assert seen == [(0, 1), (0, 2)]


def test_what_is_sent_to_the_leader_of_an_unknown_group_goes_nowhere() -> None:
    """As in a live host: a message's other receivers get it."""

    class Hopeful(Sequencer):
        def order(self, ordered: Ordered, out: Outbox) -> None:
            out.send((NOBODY, *self.topology.processes), ordered)

    world = _world(protocol=Hopeful)
    world.start()
    world.submit(1, _message(world, 1))
    world.run_for(1_000_000)
    assert _positions(world) == [1, 1, 1]


def test_a_blocked_link_delivers_everything_after_it_is_unblocked() -> None:
    world = _world()
    checker = Properties(world.topology)
    attach(world, checker)
    world.start()
    world.network.block([(0, 2), (2, 0)])
    for number in range(5):
        world.submit(1, _message(world, number))
    world.run_for(2_000_000)
    assert _positions(world) == [5, 5, 0]
    world.network.unblock([(0, 2), (2, 0)])
    world.run_for(2_000_000)
    assert _positions(world) == [5, 5, 5]
    assert world.violations == []


def test_a_reset_link_loses_and_repeats_nothing() -> None:
    world = _world(conditions=Conditions(acknowledge_frames=1))
    attach(world, Properties(world.topology))
    world.start()

    def submit(number: int) -> None:
        world.submit(1, _message(world, number))

    for number in range(200):
        world.schedule(world.now + number * 1_000, submit, number)
        if number % 7 == 0:
            world.after(number * 1_000, lambda: world.network.reset(0, 2))
            world.after(number * 1_000, lambda: world.network.reset(1, 0))
    world.run_for(5_000_000)
    assert _positions(world) == [200, 200, 200]
    assert world.violations == []


def test_a_paused_process_goes_on_where_it_stopped() -> None:
    world = _world()
    world.start()
    world.pause(2, 1_000_000)
    world.submit(1, _message(world, 1))
    world.run_for(900_000)
    assert _positions(world) == [1, 1, 0]
    world.run_for(200_000)
    assert _positions(world) == [1, 1, 1]


def test_requests_are_answered_or_known_to_be_lost() -> None:
    world = _world()
    world.start()
    answers: list[Any] = []
    world.request(0, "ping", answers.append)
    world.request(0, "silence", answers.append)
    world.run_for(1_000)
    assert answers == ["pong"]
    world.crash(0)
    world.request(0, "ping", answers.append)
    world.run_for(1_000)
    assert answers == ["pong", None, None]


def test_deliveries_come_back_after_a_crash_as_far_as_they_were_synced() -> None:
    world = _world(conditions=Conditions(fsync_us=(10_000, 10_000)))
    world.start()
    world.run_for(50_000)
    world.submit(0, _message(world, 1, 0))
    world.run_for(50_000)
    assert world.node(0).flushed_position == 1
    world.submit(0, _message(world, 2, 0))
    world.run_for(1_000)
    assert world.node(0).engine.position == 2
    world.crash(0, power=True)
    world.restart(0)
    assert world.node(0).engine.position in (1, 2)
    assert world.violations == []


def test_power_loss_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    lengths = set()
    for seed in range(60):
        disk = SimulatedDisk()
        disk.append("f", b"synced")
        disk.sync("f")
        disk.append("f", b"-loose")
        disk.crash(random.Random(seed), power=True)
        data = disk.read("f")
        assert data.startswith(b"synced")
        assert b"synced-loose".startswith(data)
        lengths.add(len(data))
    assert {6, 12} < lengths, "nothing, all and something in between must all occur"


def test_a_process_death_keeps_what_was_written() -> None:
    disk = SimulatedDisk()
    disk.append("f", b"written")
    disk.crash(random.Random(1), power=False)
    assert disk.read("f") == b"written"


def test_what_only_the_operating_system_has_is_not_durable_after_a_process_death() -> None:
    left = set()
    for seed in range(20):
        disk = SimulatedDisk()
        disk.append("f", b"written")
        disk.crash(random.Random(seed), power=False)
        disk.crash(random.Random(seed), power=True)
        left.add("f" in disk.list() and disk.read("f") == b"written")
    assert left == {True, False}


def test_a_torn_tail_is_neither_nothing_nor_all_and_the_journal_cuts_it() -> None:
    zeros = False
    for seed in range(60):
        disk = SimulatedDisk()
        journal = Journal(disk, CLUSTER, 0, 2)
        batches = [encode_record(Put(b"k%d" % n, b"v")) + encode_record(BatchEnd(n)) for n in range(3)]
        journal.append(batches[0])
        journal.sync()
        size = disk.size("journal-00000000.seg")
        journal.append(batches[1] + batches[2])
        disk.crash(random.Random(seed), power=True, torn=True)
        data = disk.read("journal-00000000.seg")[size:]
        assert data not in (b"", batches[1] + batches[2])
        zeros = zeros or not (batches[1] + batches[2]).startswith(data)
        again = Journal(disk, CLUSTER, 0, 2)
        assert again.end in (len(batches[0]), len(batches[0] + batches[1]))
    assert zeros, "sometimes the rest is there, but empty"


def test_a_sync_that_fails_kills_and_the_process_comes_back() -> None:
    world = _world()
    attach(world, Properties(world.topology))
    world.start()
    died: list[int] = []
    world.fail_sync(2, lambda: died.append(world.now))
    world.submit(1, _message(world, 1))
    world.run_for(100_000)
    assert died
    assert not world.node(2).up
    assert not world.node(2).disk.failing
    world.restart(2)
    world.submit(1, _message(world, 2))
    world.run_for(100_000)
    assert world.node(2).up
    assert world.node(2).flushed_position == world.node(2).engine.position
    assert world.violations == []


def test_after_a_lost_disk_a_process_is_told_so_until_something_is_on_the_new_one() -> None:
    told: list[tuple[bool, bool]] = []

    class Attentive(Sequencer):
        def on_start(self, saved: Saved, now: int, out: Outbox) -> None:
            if self.self_id == 2:
                told.append((saved.first, saved.lost))
            super().on_start(saved, now, out)

    lost: list[ProcessId] = []
    world = _world(protocol=Attentive, on_lost_disk=lambda node: lost.append(node.pid))
    world.start()
    world.submit(1, _message(world, 1))
    world.run_for(100_000)
    world.lose_disk(2)
    assert world.node(2).disk.list() == []
    world.restart(2)
    world.crash(2)  # before anything was synced
    world.restart(2)
    world.run_for(100_000)
    world.crash(2)
    world.restart(2)
    assert lost == [2]
    assert told[0] == (True, False)
    assert told[1] == (False, True)
    assert told[-1] == (False, False)


def test_dumped_journals_are_those_of_a_live_cluster(tmp_path: Path) -> None:
    world = _world(segment_bytes_max=500)
    world.start()
    for number in range(20):
        world.submit(1, _message(world, number))
        world.run_for(10_000)
    world.stop()
    world.dump_journals(tmp_path)
    folder = tmp_path / "replicas" / "2" / "journal"
    assert len(list(folder.glob("journal-*.seg"))) > 1
    disk = SimulatedDisk()
    for file in sorted(folder.iterdir()):
        disk.append(file.name, file.read_bytes())
    journal = Journal(disk, world.cluster, 0, 2)
    assert journal.cut_bytes == 0
    deliveries, more = journal.read_deliveries(1)
    assert [d.position for d, _ in deliveries] == list(range(1, 21))
    assert not more


def test_a_processor_does_one_thing_after_the_other() -> None:
    """Ten messages in a batch cost their processor 1 ms each, and leave together after that."""
    cpu = Cpu(batch_us=0, input_us=1_000, send_us=0)
    world = _world(conditions=msgspec.structs.replace(Conditions.exact(100), cpu=cpu))
    world.start()
    world.run_for(1_000)
    start = world.now
    for number in range(10):
        world.submit(0, _message(world, number, 0))
    world.run_while(lambda: min(_positions(world)) < 10, 1_000_000, 100)
    assert world.now - start >= 10_000 + 100
    free = _world(conditions=Conditions.exact(100))
    free.start()
    for number in range(10):
        free.submit(0, _message(free, number, 0))
    assert free.run_while(lambda: min(_positions(free)) < 10, 1_000, 100)


def test_worlds_of_other_seeds_or_names_have_other_ids() -> None:
    assert _world(1).cluster == _world(1).cluster
    assert len({_world(1).cluster, _world(2).cluster, _world(1, name="other").cluster}) == 3


@pytest.mark.parametrize("name", registry.names())
def test_a_payload_stands_in_each_journal_once(name: str) -> None:
    """Protocols say which messages they put, so that neither later puts nor the delivery write them again."""
    protocol = registry.load(name)
    replicas = 3 if protocol.specification.fault_tolerant else 1
    topology = Topology.grid(2, replicas)
    options = protocol.specification.options()

    def make_process(pid: ProcessId, rng: random.Random, _: SimulatedDisk) -> tuple[MulticastProtocol, Application]:
        return protocol(pid, topology, options, rng), Echo()

    world = World(topology, make_process, seed=1)
    world.start()
    world.run_for(100_000)
    payloads = [b"<payload %d>" % number + bytes(100) for number in range(5)]
    for number, payload in enumerate(payloads):
        world.submit(0, AppMessage(new_message_id(world.now, number), (0, 1), payload, 0))
        world.run_for(1_000_000)
    assert _positions(world) == [5] * len(world.nodes)
    for node in world.nodes.values():
        journal = node.journal.read(0, node.journal.end)
        assert [journal.count(payload) for payload in payloads] == [1] * 5


@pytest.mark.parametrize(("length", "own", "found"), [(900, 0, 0), (1_000, 0, 1), (1_000, 2_000, 0), (3_000, 2_000, 1)])
def test_a_message_beyond_the_limit_of_frames_is_a_bug_unless_it_has_a_limit_of_its_own(
    monkeypatch: pytest.MonkeyPatch, length: int, own: int, found: int
) -> None:
    monkeypatch.setattr(Ordered, "bytes_max", own, raising=False)
    world = _world()
    world.network.frame_bytes_max = 1_000
    world.start()
    message = _message(world, 1, origin=0)
    message.payload = bytes(length)
    world.submit(0, message)
    world.run_for(50_000)
    assert _positions(world) == [1, 1, 1]
    assert {checker for checker, _ in world.violations} == ({"frame"} if found else set())


def test_a_run_limits_frames_to_a_few_portions_and_the_largest_payload() -> None:
    run = Run(Sequencer, 3, Settings(groups=1, replicas=3, options={"portion_bytes": "1000"}))
    run.execute()
    largest = max(len(message.payload) for message in run.properties.messages.values())
    assert largest < run.world.network.frame_bytes_max < 10_000 + largest
