"""Whole replicas in the simulated world: random workloads under faults, the checks, the commands."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from typer.testing import CliRunner

from kvstore.api import leases
from kvstore.api.model import Cut, Get, KeyValue, Put, Transaction, lease_key
from kvstore.api.shard_map import ShardMap
from kvstore.core.audit import APPLIED
from kvstore.core.messages import Answered, Execute, Refused
from kvstore.simulated import __main__ as commands
from kvstore.simulated import adapter, checks
from kvstore.simulated.__main__ import app
from kvstore.simulated.clients import History, Operated, Workload
from kvstore.simulated.cluster import Executed, SimulatedCluster
from kvstore.simulated.late import Copies
from kvstore.simulated.repeating import something_else
from kvstore.simulated.runner import run_seed
from kvstore.simulated.serial import serial_execution
from kvstore.simulated.settings import DRAWN, Settings
from kvstore.storage.store import Store
from multicast import registry
from multicast.simulation import runner as simulation
from multicast.simulation.network import Conditions
from multicast.types import ZERO, Timestamp, new_message_id

READING = ("ranges", "reads", "past")


@pytest.mark.parametrize("seeds", [2, pytest.param(12, marks=pytest.mark.full)])
@pytest.mark.parametrize("protocol", ["white_box", "skeen"])
def test_random_workloads_under_faults(protocol, seeds):
    faults: set[str] = set()
    for seed in range(seeds):
        outcome = run_seed(Settings(protocol=protocol, seconds=2.0, clients=4, ranges=seed % 2 == 1), seed)
        assert outcome.violations == [], seed
        assert outcome.answered > 0.3 * outcome.operations
        faults |= set(outcome.faults)
    assert len(faults) >= 5


def test_what_is_asked_under_a_used_id_is_asked_where_that_is_known():
    """Else it takes effect, and nothing is wrong: shards that have nothing to do with an id do not know it."""
    shard_map, rng = ShardMap.even(range(8)), random.Random(1)
    for _ in range(50):
        lease = new_message_id(rng.getrandbits(40), rng.getrandbits(62))
        row = KeyValue(lease_key(lease), leases.Lease(100).encode(), ZERO, ZERO)
        for used in (leases.revoke(row, lease), leases.look(lease), Transaction(success=(Cut(), Get(lease)))):
            other = something_else(used, rng)
            assert other != used and {*shard_map.shards_of(other)} & {*shard_map.shards_of(used)}


@pytest.mark.parametrize("protocol", ["primcast", "skeen"])
def test_late_copies_by_old_maps_take_effect_once_at_most(protocol, monkeypatch):
    """Slots wander meanwhile, and clients who ask are told what they were told before."""
    sent = []
    send = Copies._send
    monkeypatch.setattr(Copies, "_send", lambda self, *what: (sent.append(what[1]), send(self, *what)))
    settings = Settings(
        protocol=protocol, size="small", shards=2, seconds=1.0, late=True, options={"dedup_window_us": "1000000"}
    )
    assert run_seed(settings, 1).violations == []
    assert len(sent) > 20 and {(0,), (1,), (0, 1)} == set(sent)


@pytest.mark.parametrize(
    ("protocol", "seed", "fixed"),
    [
        pytest.param("white_box", 80121, ("late",), id="all whom a process knows are removed while its addition waits"),
        pytest.param("primcast", 80030, ("late",), id="the question of a lookup is lost with a link"),
        pytest.param("primcast", 20248, ("bounds", "nested"), id="a missed view of another group is asked for once",
                     marks=pytest.mark.full),
        pytest.param("skeen", 140031, READING, id="many questions of lookups do not fit a link, again and again"),
        pytest.param("primcast", 140095, READING, id="whom alone an added process knows is removed in the same breath"),
        pytest.param("white_box", 140153, READING, id="what was deleted and is written again keeps its lease",
                     marks=pytest.mark.full),
        pytest.param("primcast", 171172, (), id="what a leader said of another shard is a moment old when all is over",
                     marks=pytest.mark.full),
        pytest.param("white_box", 170460, ("reads",), id="a leader goes whose clock is found to be off only then"),
        pytest.param("white_box", 170648, ("reads",), id="a shard comes in between the places of an unordered read"),
        pytest.param("white_box", 939, ("edges",), id="another's copy went to a shard that the first did not know",
                     marks=pytest.mark.full),
        pytest.param("ft_skeen", 82037, ("late",), id="a slot moves between the places of a read that is not ordered",
                     marks=pytest.mark.full),
        pytest.param("sequencer", 721000, (), id="a protocol says of nothing that it is settled"),
        pytest.param("white_box", 700153, (), id="of all whom an added process knows only its file names one left",
                     marks=pytest.mark.full),
    ],
)
def test_what_seeds_have_found_stays_mended(protocol, seed, fixed):
    drawn = dict.fromkeys(DRAWN) | {"edges": False, "narrow": False} | dict.fromkeys(fixed, True)
    settings = Settings(protocol=protocol, size="small", **drawn)
    assert run_seed(settings, seed).violations == []


def test_who_may_not_open_the_accounts_waits_before_asking_again(monkeypatch):
    """Without a pause no time would ever pass. Whoever is asked has a clock that is far off."""
    cluster, *_ = quiet_cluster()
    world, asked = cluster.world, []

    def refuse(replica, request, answered):
        asked.append(world.now)
        assert len(asked) < 20
        world.schedule(world.now, answered, Refused("id_expired", "", retryable=False, outcome="not_applied"))

    monkeypatch.setattr(world, "request", refuse)
    Workload(cluster, 1, 2, world.now + 4_000_000).start()
    world.run_for(1_000_000)
    assert len(asked) > 5


def test_the_same_seed_gives_the_same_run():
    settings = Settings(protocol="white_box", seconds=1.0, clients=4)
    first, second = (msgspec.structs.replace(run_seed(settings, 3), wall_s=0.0) for _ in range(2))
    assert first == second and first.operations


def test_in_a_part_of_the_tight_worlds_shards_have_different_sizes():
    outcome = run_seed(Settings(protocol="fastcast", size="tight"), 54001)
    assert outcome.violations == [] and outcome.topology == "2+1"


def test_a_protocol_without_replicas_of_a_shard_runs_with_one_whatever_is_asked_for():
    outcome = run_seed(Settings(protocol="skeen", size="small", shards=2, replicas=4, seconds=0.1), 0)
    assert (outcome.topology, outcome.violations) == ("2x1", [])


def test_the_simulator_runs_it_as_its_store():
    """What `python -m multicast.simulation run --store` is given."""
    chosen = simulation.Settings(store=True, groups=2, options={"clock": "hybrid"})
    adapter.store.check(registry.load("skeen"), chosen)
    outcome = adapter.store.run_seed(registry.load("skeen"), 1, chosen)
    assert outcome.violations == [] and outcome.topology == "2x1" and outcome.messages > 20 and outcome.events
    with pytest.raises(ValueError, match="--messages"):
        adapter.store.check(registry.load("skeen"), simulation.Settings(store=True, messages=5))


def quiet_cluster(**options) -> tuple[SimulatedCluster, History, bytes, bytes]:
    """Two shards of three, no faults, and a key in each."""
    cluster = SimulatedCluster("white_box", 2, 3, 1, conditions=Conditions.exact(500), options=options)
    low, high = (next(k for k in (b"k%d" % i for i in range(99)) if cluster.shard_map.shard_of(k) == s) for s in (0, 1))
    cluster.world.start()
    return cluster, History(), low, high


def execute(cluster: SimulatedCluster, pid: int, transaction: Transaction, message_id: bytes | None = None, **how):
    """Run until it is answered; the id and the answer."""
    world, answers = cluster.world, []
    message_id = message_id or new_message_id(world.now, random.Random(world.now).getrandbits(62))
    world.request(pid, Execute(message_id, transaction), answers.append)
    assert world.run_while(lambda: not answers, 10_000_000, step_us=1_000)
    return message_id, answers[0]


def executed(cluster: SimulatedCluster, pid: int) -> list[Executed]:
    """The transactions in a replica's journal, in order."""
    return [one for logged in cluster.log(pid) for one in logged.transactions]


def test_a_repetition_through_any_replica_gets_the_first_result():
    cluster, _, low, high = quiet_cluster()
    transaction = Transaction(success=(Put(low, b"1"), Get(high)))
    message_id, first = execute(cluster, 0, transaction)
    for pid in cluster.topology.processes:
        _, again = execute(cluster, pid, transaction, message_id)
        assert isinstance(again, Answered) and again.result == first.result, pid
    _, refused = execute(cluster, 4, Transaction(success=(Put(low, b"2"), Get(high))), message_id)
    assert refused.code == "id_reused"
    assert [e.outcome.status for e in executed(cluster, 0)] == [APPLIED]


def test_a_repetition_is_answered_at_once_through_any_replica():
    """Also where nothing is known of it: in another shard, or where it is delivered only now."""
    cluster, _, low, _ = quiet_cluster()
    transaction = Transaction(success=(Put(low, b"1"), Get(low)))
    message_id, first = execute(cluster, 0, transaction)
    cluster.world.run_for(300_000)
    for pid in cluster.topology.processes:
        begun = cluster.world.now
        _, again = execute(cluster, pid, transaction, message_id)
        assert again.result == first.result and cluster.world.now - begun < 20_000, pid


def test_a_replica_whose_disk_was_lost_learns_everything_again():
    cluster, _, low, high = quiet_cluster()
    world = cluster.world
    transaction = Transaction(success=(Put(low, b"0"), Put(high, b"0"), Get(high)))
    message_id, first = execute(cluster, 0, transaction)
    for i in range(20):
        execute(cluster, i % 6, Transaction(success=(Put(low, b"%d" % i), Put(high, b"%d" % i))))
    world.run_for(500_000)
    world.lose_disk(5)
    for i in range(20):
        execute(cluster, i % 5, Transaction(success=(Put(low, b"%d" % i), Put(high, b"%d" % i))))
    world.restart(5)
    assert cluster.stores[5].get(high) is None
    assert world.run_while(cluster.unfinished, 30_000_000)
    execute(cluster, 5, Transaction(success=(Put(high, b"last"),)))
    world.run_for(3_000_000)
    assert checks.agreement(cluster)[1] == [] and not cluster.unfinished()
    assert cluster.stores[5].state_digest() == cluster.stores[3].state_digest()
    _, again = execute(cluster, 5, transaction, message_id)
    assert again.repeated and again.result == first.result
    assert [list(store.parts()) for store in cluster.stores.values()] == [[]] * 6


def test_a_replica_that_was_away_until_everybody_forgot_still_completes_what_it_had_delivered():
    """Replica 5 of shard 1 dies with a delivered transaction whose parts never reached it."""
    cluster, _, low, high = quiet_cluster(dedup_window_us=500_000)
    world = cluster.world
    world.run_for(50_000)
    world.network.block([(pid, 5) for pid in cluster.topology.groups[0]])
    execute(cluster, 0, Transaction(success=(Put(low, b"1"), Put(high, b"1"))))
    world.run_while(lambda: world.node(5).engine.position == 0, 1_000_000, step_us=500)
    engine = world.node(5).engine
    if engine.position == 0 or engine.completed == engine.position:
        pytest.fail(f"replica 5 has delivered {engine.position} and completed {engine.completed}")
    world.run_for(5_000)
    world.crash(5, power=False)
    world.network.unblock([(pid, 5) for pid in cluster.topology.groups[0]])
    for _ in range(30):
        world.run_for(100_000)
        execute(cluster, 0, Transaction(success=(Put(low, b"x"), Put(high, b"x"))))
    (first, *_) = executed(cluster, 3)
    assert all(cluster.stores[pid].remembered(first.id) is None for pid in (0, 1, 2, 3, 4))
    world.crash(0)  # and with it the parts that still wait on its link to replica 5
    world.run_for(100_000)
    world.restart(0)
    world.restart(5)
    assert world.run_while(cluster.unfinished, 20_000_000)
    logs, violations = checks.agreement(cluster)
    assert violations == [] and logs[1][-1].outcome is not None
    assert cluster.stores[5].state_digest() == cluster.stores[3].state_digest()


def finished_run() -> tuple[SimulatedCluster, checks.Logs, History]:
    """A small good run: t1 writes both shards, then t2 reads both."""
    cluster, history, low, high = quiet_cluster()
    for process, f, operations in ((0, "put", (Put(low, b"1"), Put(high, b"1"))), (1, "get", (Get(low), Get(high)))):
        world = cluster.world
        operation = Operated(new_message_id(world.now, process), f, Transaction(success=operations), world.now)
        history.invoke(process, world.now, operation)
        _, answer = execute(cluster, process, operation.transaction, operation.id)
        operation.result = answer.result
        history.end(process, "ok", world.now, operation)
    cluster.world.run_for(1_000_000)
    logs, violations = checks.agreement(cluster)
    assert violations == [] and checks.check(cluster, history) == []
    return cluster, logs, history


def test_the_checks_find_a_wrong_read():
    _, logs, _ = finished_run()
    outcome = logs[0][1].outcome
    read = outcome.reads[0]
    read.version = type(read.version)(1, 999)
    assert "the log says" in checks.reads(logs, {})[0]


def test_the_checks_find_a_transaction_applied_twice_and_one_not_applied():
    _, logs, history = finished_run()
    assert "applied twice" in checks.exactly_once({0: logs[0] + logs[0][:1], 1: logs[1]}, history)[0]
    found = checks.exactly_once({0: logs[0][1:], 1: logs[1]}, history)
    assert "was applied in shards [1]" in found[0]
    assert "is in no journal" in checks.exactly_once({0: logs[0][:1], 1: logs[1][:1]}, history)[0]


def test_the_checks_find_an_answer_that_the_journals_do_not_hold():
    _, logs, history = finished_run()
    operation = next(op for op in history.operations.values() if op.f == "get")
    operation.result.results[0].found.version = type(operation.result.version)(3, 3)
    assert "the journals differ" in checks.answers(logs, history)[0]


def test_the_checks_find_a_stale_read():
    """t2 began after t1 had ended and yet stands before it in shard 1's log."""
    _, logs, history = finished_run()
    swapped = {0: logs[0], 1: [logs[1][1], logs[1][0]]}
    swapped[1][0].outcome.reads[0].version = Timestamp(0, 0)
    assert "a cycle: " in checks.strict_serializability(swapped, history, lambda key, at: 0)[0]


def test_the_checks_find_a_transaction_that_did_something_else_than_it_says():
    _, logs, history = finished_run()
    assert serial_execution(logs.values(), checks.told(history)) == []
    logs[0][0].outcome.writes[0].value = b"2"
    assert "wrote something else" in serial_execution(logs.values(), {})[0]
    logs[0][0].outcome.succeeded = False
    assert "took the other branch" in serial_execution(logs.values(), {})[0]


def test_the_checks_find_replicas_that_differ(monkeypatch):
    cluster, _, _ = finished_run()
    honest = cluster.log

    def lying(pid):
        log = honest(pid)
        return [*log[:1], msgspec.structs.replace(log[1], record=b"x")] if pid == 4 else log

    monkeypatch.setattr(cluster, "log", lying)
    assert "replica 4 has another outcome at position 2" in checks.agreement(cluster)[1][0]


def test_a_store_that_forgets_ids_is_found(monkeypatch):
    """Planted bug: nothing is remembered, so repetitions through other replicas take effect again."""
    monkeypatch.setattr(Store, "remembered", lambda self, message_id: None)
    cluster, history, low, _ = quiet_cluster()
    transaction = Transaction(success=(Put(low, b"1"),))
    message_id, _ = execute(cluster, 0, transaction)
    assert not any("applied twice" in text for text in checks.check(cluster, history))
    execute(cluster, 4, transaction, message_id)
    assert any("applied twice" in text for text in checks.check(cluster, history))


def test_commands(tmp_path):
    runner = CliRunner()
    out, summary = tmp_path / "run", tmp_path / "summary.json"
    arguments = ["run", "--protocol", "skeen", "--seeds", "5:6", "--size", "small", "--profile", "calm"]
    done = runner.invoke(app, [*arguments, "--out", str(out), "--json", str(summary)])
    assert done.exit_code == 0, done.output
    assert "violations: in 0 of 1 seeds" in done.output
    assert json.loads(summary.read_bytes())["runs"][0]["violations"] == []
    lines = (out / "history" / "clients.jsonl").read_text().splitlines()
    assert {json.loads(line)["type"] for line in lines} >= {"invoke", "ok"}
    assert list((out / "replicas" / "0" / "journal").glob("journal-*.seg"))


def test_who_is_interrupted_tells_what_was_seen_so_far(tmp_path, monkeypatch):
    def seed_run(settings, seed, *more, **options):
        if seed == 6:
            raise KeyboardInterrupt
        return run_seed(settings, seed, *more, **options)

    monkeypatch.setattr(commands, "run_seed", seed_run)
    summary = tmp_path / "summary.json"
    arguments = ["run", "--protocol", "skeen", "--seeds", "5:9", "--size", "small", "--profile", "calm"]
    done = CliRunner().invoke(app, [*arguments, "--json", str(summary)])
    assert done.exit_code == 130 and "interrupted; so far:" in done.output
    assert "violations: in 0 of 1 seeds" in done.output
    assert [one["seed"] for one in json.loads(summary.read_bytes())["runs"]] == [5]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["run", "--protocol", "white_bocks"], "white_box"),
        (["run", "--seeds", "5:"], "FIRST:END"),
        (["run", "--seeds", "5:5"], "FIRST:END"),
        (["run", "--option", "clocks=hybrid"], "clocks"),
        (["schedule", "five-groups"], "three-groups"),
        (["schedule", "two-groups", "--protocol", "all"], "one protocol"),
        (["run", "--out", "/proc/version"], "not an empty"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2 and text in done.output and "Traceback" not in done.output
