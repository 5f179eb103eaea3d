"""Who may do what: judged where a request enters, and again by every shard when it executes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import client_sdk
from client_sdk import Client, Denied
from client_sdk import rights as requests
from kvstore import cluster, config, growing, identity
from kvstore.api import rights
from kvstore.api.leases import list_after
from kvstore.api.model import (
    CUT,
    SLOTS,
    Add,
    Append,
    Compare,
    Delete,
    DeleteRange,
    Get,
    InvalidTransaction,
    LeasedPut,
    Move,
    Operation,
    OperationResult,
    Put,
    Range,
    Revoke,
    Rule,
    Transaction,
    Txn,
    lease_key,
)
from kvstore.api.rights import MadeToken, Permission, PermissionJson, Role, RoleJson, Token
from kvstore.api.routes import ROUTES
from kvstore.api.shard_map import PlacedRun, own_slot
from kvstore.core.audit import APPLIED, FAILED
from kvstore.core.bundles import NO_ID, last_version
from kvstore.core.messages import ChangesAfter, ChangesTold, Follow, ReadAt, ReadAtTold, Refused, Vote
from kvstore.core.moves import Moves
from kvstore.core.rights import ROLE, TOKEN, Rights, encode
from kvstore.core.watches import PROGRESS_US
from kvstore.status import statuses
from kvstore.storage.backend import MemoryBackend
from kvstore.storage.store import Store
from multicast.types import ZERO, Timestamp
from tests.kvstore.live import Answer, Replica
from tests.kvstore.one_replica import Bench, key, write
from tests.kvstore.test_core_moves import MAP, MOVE, Two
from tests.ports import free_base_port


def rule(name: bytes, record: Any = None) -> Transaction:
    return Transaction(success=(Rule(name, b"" if record is None else encode(record)),))


def role(*permissions: Permission) -> Transaction:
    return rule(ROLE + b"some", Role(permissions))


HOLDER = rule(TOKEN + b"ann", Token("ann", b"", ("some",)))
EVERYTHING = role(Permission("read"), Permission("write"))


def by_ann(*operations: Operation, compare: tuple[Compare, ...] = ()) -> Transaction:
    return Transaction(compare, operations, by="ann")


# -- what is needed ----------------------------------------------------------------------------------------------------


def known(*rules: Transaction) -> Rights:
    found = Rights(Store.open(MemoryBackend()))
    for one in rules:
        assert isinstance(one.success[0], Rule)
        found.change(one.success[0])
    return found


LEASE = bytes(16)
READ, WRITE = Permission("read", b"a/", b"a0"), Permission("write", b"a/", b"a0")
EXISTS = (Compare(b"a/1", "exists", "==", True),)


@pytest.mark.parametrize(
    ("permissions", "transaction", "missing"),
    [
        ((READ,), by_ann(Get(b"a/1")), None),
        ((READ,), by_ann(Get(b"b")), "read"),
        ((READ,), by_ann(Get(b"a0")), "read"),
        ((READ,), by_ann(Range(b"a/", 10)), None),
        ((READ,), by_ann(Range(b"a", 10)), "read"),
        ((READ,), by_ann(Range(b"", 10, b"", b"a/3", b"a/5")), None),
        ((READ,), by_ann(Range(b"", 10, b"", b"a/3")), "read"),
        ((READ,), by_ann(Put(b"a/1", b"v")), "write"),
        ((WRITE,), by_ann(Put(b"a/1", b"v"), Delete(b"a/1"), DeleteRange(b"a/1")), None),
        ((WRITE,), by_ann(DeleteRange(b"")), "write"),
        ((WRITE,), by_ann(Put(b"a/1", b"v"), compare=EXISTS), "read"),
        ((WRITE,), by_ann(Add(b"a/1", 1)), "read"),
        ((WRITE,), by_ann(Append(b"a/1", b"v")), "read"),
        ((READ,), by_ann(Add(b"a/1", 1)), "write"),
        ((READ,), by_ann(Append(b"a/1", b"v")), "write"),
        ((READ, WRITE), by_ann(Add(b"a/1", 1), Append(b"a/1", b"v"), compare=EXISTS), None),
        ((READ, WRITE), Transaction((), (), (Put(b"b", b"v"),), "ann"), "write"),
        ((READ, WRITE), by_ann(Txn(EXISTS, (Put(b"a/1", b"v"),), (Txn((), (Get(b"a/2"),)),))), None),
        ((READ, WRITE), by_ann(Txn(EXISTS, (), (Txn((), (Put(b"b", b"v"),)),))), "write"),
        ((WRITE,), by_ann(Txn(EXISTS, (Put(b"a/1", b"v"),))), "read"),
        ((WRITE,), by_ann(Txn((), (), (Txn((), (DeleteRange(b""),)),))), "write"),
        ((Permission("read"), Permission("write")), by_ann(*CUT.success), "admin"),
        ((Permission("read"), Permission("write")), by_ann(Move(0, 1, ((0, 1),))), "admin"),
        ((Permission("read"), Permission("write")), by_ann(Rule(b"role/some", b"")), "admin"),
        ((Permission("admin"),), by_ann(Rule(b"role/some", b"")), None),
        ((Permission("admin"),), by_ann(Get(b"a/1")), "read"),
        ((WRITE,), by_ann(LeasedPut(b"a/1", b"v", LEASE)), None),
        ((WRITE,), by_ann(LeasedPut(b"b", b"v", LEASE)), "write"),
        ((Permission("write"), Permission("read")), by_ann(Put(lease_key(LEASE), b"")), "lease"),
        ((Permission("write"), Permission("read")), by_ann(Get(lease_key(LEASE))), "lease"),
        ((Permission("write"), Permission("read")), by_ann(Revoke(LEASE, ())), "lease"),
        ((Permission("write"), Permission("read"), Permission("lease")), by_ann(*list_after(b"", 1).success), "admin"),
        ((Permission("admin"),), by_ann(*list_after(b"", 1).success), None),
        ((Permission("lease"),), by_ann(Revoke(LEASE, ())), None),
        ((Permission("lease"),), by_ann(Append(lease_key(LEASE), b""), Get(lease_key(LEASE))), None),
        ((Permission("read", b"k", b"k\0"),), by_ann(Get(b"k")), None),
        ((Permission("read", b"k", b"k\0"),), by_ann(Get(b"k\0")), "read"),
    ],
)
def test_a_permission_is_for_one_thing_and_its_keys(
    permissions: tuple[Permission, ...], transaction: Transaction, missing: str | None
) -> None:
    denied = known(role(*permissions), HOLDER).denied(transaction)
    if missing is None:
        assert denied is None
    else:
        assert denied is not None and missing in denied[0]


def test_whoever_is_not_known_or_has_lost_his_role_may_do_nothing() -> None:
    asked = by_ann(Get(b"a/1"))
    assert known(EVERYTHING).denied(asked)
    assert known(HOLDER).denied(asked)
    assert not known(HOLDER, EVERYTHING).denied(asked)
    assert known(HOLDER, EVERYTHING, rule(ROLE + b"some")).denied(asked)
    assert known(HOLDER, EVERYTHING, rule(TOKEN + b"ann")).denied(asked)
    assert not known().denied(Transaction(success=(Get(b"a/1"),)))


@pytest.mark.parametrize(
    ("permission", "field"),
    [
        ({"access": ["read"]}, "prefix"),
        ({"access": [], "prefix": "a"}, "access"),
        ({"access": ["read"], "key": "a", "prefix": "b"}, "key"),
        ({"access": ["admin"], "prefix": "a"}, "access"),
        ({"access": ["read"], "prefix": "a" * 401}, "prefix"),
        ({"access": ["read"], "start": "b", "end": "a"}, "end"),
        ({"access": ["read"], "prefix": "a/", "start": "b"}, "end"),
    ],
)
def test_a_permission_that_makes_no_sense_is_refused(permission: dict[str, Any], field: str) -> None:
    asked = RoleJson(permissions=[msgspec.convert(permission, PermissionJson)])
    with pytest.raises(InvalidTransaction) as refused:
        rights.role_of(asked)
    assert refused.value.field == f"permissions[0].{field}"


def test_a_shard_that_is_added_gets_the_rights_of_the_step_with_which_it_begins() -> None:
    """What changed since an earlier step of that move went to all shards but this one."""
    two = Two(portion=2)
    target = Store.open(MemoryBackend())
    moves = {0: two.moves[0], 2: Moves(2, MAP, target, 0)}
    changes = [Rule(b"token/ann", b"1"), Rule(b"token/bob", b"2"), Rule(b"token/ann", b"")]
    move = Move(0, 2, MOVE.slots)
    for time in range(200, 300):
        if changes:
            Rights(two.stores[0]).change(changes.pop(0))
        given = moves[0].give(move, Timestamp(time, 0))
        assert given is not None
        for one in moves.values():
            one.step(move, given, Timestamp(time, 0))
        if given.last:
            break
        assert bool(moves[2].places) or Rights(target).given() == []
    assert not changes and given.last and Rights(target).given() == [(b"token/bob", b"2")]


def test_a_source_gives_rights_by_its_own_log_whatever_it_has_heard_of_the_target() -> None:
    """So all its replicas give the same."""
    store = Store.open(MemoryBackend())
    source = Moves(1, MAP, store, 0)
    Rights(store).change(Rule(b"token/ann", b"1"))
    source.learn([PlacedRun(own_slot(2), own_slot(2), 2, Timestamp(1, 0))])
    given = source.give(Move(1, 2, ()), Timestamp(2, 0))
    assert source.map.shards == (0, 1, 2) and given is not None and given.rules == [(b"token/ann", b"1")]


# -- in the order ------------------------------------------------------------------------------------------------------


def everywhere(bench: Bench, transaction: Transaction) -> None:
    """A transaction of all shards."""
    delivery = bench.deliver(transaction)
    for shard in (1, 2):
        bench.part(shard, delivery)


def allowed() -> Bench:
    """A replica that knows Ann, who may read and write everything."""
    bench = Bench(leader_reads=True)
    everywhere(bench, EVERYTHING)
    everywhere(bench, HOLDER)
    bench.answers()
    return bench


def test_what_is_ordered_after_a_token_was_taken_back_has_no_effect_whatever_its_entry_knew() -> None:
    bench = allowed()
    bench.deliver(by_ann(Put(key(0), b"before")))
    everywhere(bench, rule(TOKEN + b"ann"))
    bench.deliver(by_ann(Put(key(0), b"after")))
    before, _, after = bench.outcomes()[-3:]
    assert (before.status, after.status) == (APPLIED, FAILED)
    assert "forbidden" in after.reason and after.reason_key == key(0)
    row = bench.store.get(key(0))
    assert row is not None and row.value == b"before"


def test_every_shard_judges_all_of_a_transaction() -> None:
    """This shard's own key is allowed, the other shard's is not; that one votes for what it knows of its keys alone."""
    bench = Bench()
    everywhere(bench, role(Permission("write", key(0), key(0) + b"\0")))
    everywhere(bench, HOLDER)
    across = bench.deliver(by_ann(Put(key(0), b"v"), Put(key(1), b"v")))
    bench.part(1, across)
    assert bench.statuses()[-1] == FAILED
    assert bench.store.get(key(0)) is None


def test_who_may_not_is_told_that_and_not_why_it_would_be_impossible() -> None:
    """What another shard objects to tells of a value there."""
    bench = allowed()
    everywhere(bench, role(Permission("write")))
    across = bench.deliver(by_ann(Put(key(0), b"v"), Add(key(1), 1)))
    bench.part(1, across, Vote(success_failure="add: the value is not a decimal integer", success_key=key(1)))
    outcome = bench.outcomes()[-1]
    assert outcome.status == FAILED and "forbidden" in outcome.reason


def test_rights_are_those_of_the_log_after_a_restart() -> None:
    bench = allowed()
    bench.restart_replica()
    bench.deliver(by_ann(Put(key(0), b"v")))
    everywhere(bench, rule(ROLE + b"some"))
    bench.restart_replica()
    bench.deliver(by_ann(Put(key(0), b"w")))
    assert bench.statuses()[-1] == FAILED
    row = bench.store.get(key(0))
    assert row is not None and row.value == b"v"


def test_who_may_not_is_refused_where_he_asks_and_nothing_is_ordered() -> None:
    bench = Bench()
    for transaction, message_id in ((by_ann(Put(key(0), b"v")), None), (by_ann(Get(key(0))), NO_ID)):
        bench.request(transaction, message_id)
        (answer,) = bench.answers()
        assert isinstance(answer, Refused) and (answer.code, answer.outcome) == ("forbidden", "not_applied")
    assert bench.multicast() == []


def test_a_read_that_waits_while_its_token_is_taken_back_is_refused() -> None:
    bench = allowed()
    bench.deliver(write(key(0)))
    bench.request(by_ann(Get(key(0))), NO_ID)
    bench.tick()
    (question,) = bench.out.reads
    everywhere(bench, rule(TOKEN + b"ann"))
    bench.replica.on_readable(question, 3, bench.now, bench.out)
    (answer,) = bench.answers()
    assert isinstance(answer, Refused) and answer.code == "forbidden"


def test_who_watches_needs_to_read_all_that_he_watches() -> None:
    bench = Bench()
    everywhere(bench, role(READ))
    everywhere(bench, HOLDER)
    for first, end, refused in ((b"a/", b"a0", False), (b"a/", b"", True), (b"", b"", True)):
        bench.replica.on_request(9, Follow(None, first, end, by="ann"), bench.now, bench.out)
        assert [isinstance(answer, Refused) for answer in bench.answers()] == ([True] if refused else [])


def test_a_read_at_a_version_that_waits_while_its_token_is_taken_back_is_refused() -> None:
    bench = allowed()
    bench.deliver(write(key(0)))
    bench.request(by_ann(Get(key(0)), Get(key(1))), NO_ID, at=last_version(bench.delivered[-1][0].timestamp))
    ((_, question),) = bench.sent(ReadAt)
    everywhere(bench, rule(TOKEN + b"ann"))
    bench.hear(3, ReadAtTold(1, question.number, OperationResult(), ZERO))
    (answer,) = bench.answers()
    assert isinstance(answer, Refused) and answer.code == "forbidden"


@pytest.mark.parametrize("lost", [rule(TOKEN + b"ann"), role(Permission("read", key(1)))])
def test_whoever_watches_is_told_nothing_that_is_ordered_after_he_has_lost_his_rights(lost: Transaction) -> None:
    bench = allowed()
    bench.deliver(write(key(0)))
    watch = Follow(bench.store.complete_to, key(0), key(0) + b"\0", live=True, by="ann")
    bench.replica.on_request(9, watch, bench.now, bench.out)
    bench.tick()
    everywhere(bench, lost)
    bench.deliver(write(key(0), value=b"after"))
    for _ in range(3):  # rounds
        for to, question in bench.sent(ChangesAfter):
            upto = bench.store.complete_to
            bench.hear(to[0], ChangesTold(to[0] // 3, question.number, [], upto, upto))
        bench.tick(PROGRESS_US)
    (answer,) = bench.answers()
    assert isinstance(answer, Refused) and answer.code == "forbidden"


# -- a cluster ---------------------------------------------------------------------------------------------------------


class Guarded:
    """A cluster in which everybody needs a token: its directory, root's token, and one replica of each shard."""

    def __init__(self, directory: Path, root: str, replicas: list[Replica]):
        self.directory = directory
        self.root = root
        self.replicas = replicas

    def ask(self, method: str, path: str, token: str = "", body: bytes | None = None) -> Answer:
        named = {"Authorization": f"Bearer {token}"} if token else {}
        return self.replicas[0](method, path, body, Content_Type="application/json", **named)

    def token(self, *permissions: PermissionJson) -> MadeToken:
        """Of somebody who may do this; every replica knows it at once, or asks."""
        with Client(self.directory, timeout=60, token=self.root) as root:
            name = f"role{len(root.run(requests.list_rights()).roles)}"
            root.run(requests.put_role(name, permissions))
            made = root.run(requests.make_token("somebody", [name]))
        for replica in self.replicas:
            assert replica("GET", "/v1/limits", Authorization=f"Bearer {made.token}").status == 200
        return made


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    root = rights.token_of(rights.ROOT, os.urandom(32))
    made = config.new_cluster(
        shards=2, replicas=1, protocol="skeen", cluster_id="0" * 32, base_port=free_base_port(2)
    )  # fmt: skip
    identity.create(directory, msgspec.structs.replace(made, root=rights.digest_of(root).hex()))
    said: list[str] = []
    started = cluster.up(directory, said.append)
    try:
        yield Guarded(directory, root, [Replica(r.host, r.http_port) for r in made.replicas])
    finally:
        cluster.stop_started(directory, started, said.append)


BODIES = {
    "txn": {"success": [{"op": "get", "key": "secret"}]},
    "move": {"source": 0, "target": 1, "slots": [[0, 0]]},
    "put_role": {"permissions": [{"access": ["admin"]}]},
    "make_token": {"name": "mallory", "roles": ["all"]},
    "change_members": {"remove": 1},
}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_without_rights_no_route_tells_or_does_anything(guarded: Guarded, route: Any) -> None:
    path = route.path.replace("{key}", "secret").replace("{name}", "all")
    path = path.replace("{id}", "0198a0b2-7c00-7000-8000-000000000000").replace("{version}", "1-0")
    if route.name in ("delete_range", "scan"):
        path += "?prefix="
    body = json.dumps(BODIES[route.name]).encode() if route.name in BODIES else None
    if route.name == "put":
        body = b"value"
    nobody, unknown = guarded.ask(route.method, path, body=body), f"kv-{'0' * 16}-{'A' * 43}"
    assert nobody.status == (401 if route.access != "open" else 200), nobody
    if route.access != "open":
        assert nobody.headers["WWW-Authenticate"].startswith("Bearer")
        assert guarded.ask(route.method, path, unknown, body).status == 401
        forged = guarded.root[:-1] + ("A" if guarded.root[-1] != "A" else "B")
        assert guarded.ask(route.method, path, forged, body).status == 401
    powerless = guarded.ask(route.method, path, guarded.token().token, body)
    known = 404 if route.name == "outcome" else 200
    assert powerless.status == (403 if route.access not in ("open", "token") else known), powerless
    if powerless.status == 403:
        assert powerless.json["outcome"] == "not_applied"


def test_whoever_has_no_token_is_told_so_and_not_that_nobody_answers(guarded: Guarded) -> None:
    lines = statuses(guarded.directory)
    assert {line.state for line in lines} == {"denied"}
    assert all("a token is needed" in line.why and "KVSTORE_TOKEN" in line.why for line in lines)


def test_a_token_is_for_what_its_roles_say_until_it_is_taken_back(guarded: Guarded) -> None:
    made = guarded.token(PermissionJson(access=["read", "write"], prefix="app/"))
    rulers, anns = (Client(guarded.directory, timeout=60, token=token) for token in (guarded.root, made.token))
    with rulers as root, anns as ann:
        root.put("other", "v")
        made_at, *_ = [ann.put(f"app/{i}", "v") for i in range(8)]
        assert len(list(ann.scan("app/"))) == ann.count("app/") == 8
        own = client_sdk.new_id()
        ann.put("app/0", "v", message_id=own)
        outcome = ann.outcome(own)
        assert outcome is not None and outcome.outcome == "applied"
        for refused in (
            lambda: ann.get("other"),
            lambda: ann.count(""),
            lambda: ann.txn(success=[client_sdk.Put("app/1", "w"), client_sdk.Put("other", "w")]),
            lambda: ann.delete_range(prefix=""),
            lambda: next(ann.watch("other")),
            lambda: ann.run(requests.list_rights()),
        ):
            with pytest.raises(Denied):
                refused()
        with closing(ann.watch("app/", after=made_at)) as events:
            assert next(events).changes[0].key == b"app/1"
        assert root.get("other").value == b"v" and ann.get("app/1").value == b"v"  # type: ignore[union-attr]
        root.run(requests.delete_token(made.id))
        with pytest.raises(Denied):
            ann.put("app/1", "w")
    with Client(guarded.directory, token="") as nobody, pytest.raises(Denied, match="a token is needed"):
        nobody.get("app/1")
    with pytest.raises(ValueError, match="token: not a token"):
        Client(guarded.directory, token="secret\r\nX: y").get("app/1")


def test_a_backup_is_made_in_the_name_of_who_asks_for_it(guarded: Guarded) -> None:
    """It had been made in the name of who had made one before: of nobody any more."""
    made = guarded.token(PermissionJson(access=["admin"]))
    assert guarded.ask("POST", "/v1/backups", made.token).status == 200
    with Client(guarded.directory, timeout=60, token=guarded.root) as root:
        root.run(requests.delete_token(made.id))
    assert guarded.ask("POST", "/v1/backups", guarded.root).status == 200


def test_a_shard_that_was_added_knows_the_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = rights.token_of(rights.ROOT, os.urandom(32))
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="0" * 32, base_port=free_base_port(2)
    )  # fmt: skip
    identity.create(tmp_path, msgspec.structs.replace(made, root=rights.digest_of(root).hex()))
    monkeypatch.setenv("KVSTORE_TOKEN", root)
    started = cluster.up(tmp_path, lambda _: None)
    try:
        with Client(tmp_path, timeout=60, token=root) as ruler:
            permission = PermissionJson(access=["read", "write"], prefix="app/")
            ruler.run(requests.put_role("some", [permission]))
            made_token = ruler.run(requests.make_token("ann", ["some"]))
            shard, more = growing.add_shard(tmp_path, 1, "127.0.0.1", "", None, lambda _: None)
            started += more
            growing.move_slots(tmp_path, 0, shard, [(0, SLOTS - 1)], lambda _: None)
            with Client(tmp_path, timeout=60, token=made_token.token) as ann:
                ann.put("app/1", "v")
                with pytest.raises(Denied):
                    ann.put("other", "v")
                ruler.run(requests.delete_token(made_token.id))
                with pytest.raises(Denied):
                    ann.put("app/1", "w")
    finally:
        cluster.stop_started(tmp_path, started, lambda _: None)


def test_tokens_stand_in_no_file_of_a_replica(guarded: Guarded) -> None:
    made = guarded.token(PermissionJson(access=["read"], prefix=""))
    guarded.ask("GET", "/v1/kv/a?wrong=1", made.token)
    secrets = [token.rpartition("kv-")[2][-43:].encode() for token in (made.token, guarded.root)]
    files = [path for path in guarded.directory.rglob("*") if path.is_file()]
    assert any(path.name == "log" for path in files)
    for path in files:
        assert not any(secret in path.read_bytes() for secret in secrets), path
