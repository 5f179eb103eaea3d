"""The command `kvstore` against a real cluster of one shard with one replica: output, and exit status 0, 1 or 2."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from typer import main as typer_main
from typer.main import get_command

import kvstore
from client_sdk import Client, Denied, Put, attempts, leases_cli, locks_cli, rights_cli
from client_sdk import cli as client_cli
from client_sdk.etcd_cli import INSTEAD
from client_sdk.keyspace import Keyspace
from kvstore import cli as server_cli
from kvstore import cluster_cli, config
from kvstore.cli import COMPLETE
from kvstore.cluster_cli import STATUS_HEADINGS
from kvstore.console import INSTEAD_OF_OPTIONS, UserError, together
from kvstore.top import HEADINGS
from multicast.types import Timestamp
from tests.house import ROOT
from tests.kvstore.live import running_cluster
from workloads import contention
from workloads.cli import main


class Ran:
    """A finished command."""

    def __init__(self, status: int, out: str, err: str):
        self.status = status
        self.out = out
        self.err = err


class Shell:
    """Runs commands in this process, and checks that none prints a stack trace."""

    def __init__(self, capture: pytest.CaptureFixture[str], directory: Path):
        self.capture = capture
        self.directory = directory

    def __call__(self, *arguments: str) -> Ran:
        self.capture.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, err = self.capture.readouterr()
        assert "Traceback" not in err
        return Ran(int(str(ended.value.code)), out, err)

    def data(self, command: str, *arguments: str) -> Ran:
        return self(command, *arguments, "--cluster", str(self.directory))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli")
    with running_cluster(path, 1, 1, "skeen"):
        yield path


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], directory: Path) -> Shell:
    return Shell(capsys, directory)


@pytest.fixture
def alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    """Without a cluster."""
    return Shell(capsys, tmp_path)


def error_of(ran: Ran, status: int = 1) -> str:
    """The one line of a failed command."""
    assert ran.status == status and ran.err.startswith("error: ") and ran.err.count("\n") == 1, ran.err
    return ran.err


def test_put_get_scan_delete(shell: Shell) -> None:
    put = shell.data("put", "a/b", "hello")
    assert put.status == 0
    assert (shell.data("get", "a/b").out, shell.data("get", "a/b").status) == ("hello\n", 0)
    version = put.out.strip()
    assert json.loads(shell.data("get", "a/b", "-o", "json").out) == {
        "key": "a/b",
        "value": "hello",
        "version": version,
        "create_version": version,
    }
    assert shell.data("scan", "a/").out == "a/b\thello\n"
    assert shell.data("delete", "a/b").out == "deleted\n"
    assert shell.data("delete", "a/b").out == "no such key\n"
    gone = shell.data("get", "a/b", "-o", "json")
    assert json.loads(gone.out) == {"key": "a/b", "value": None} and "no such key" in error_of(gone, status=3)


def test_results_for_programs_and_bytes_as_they_are(shell: Shell) -> None:
    version = json.loads(shell.data("put", "j", "a\n", "-o", "json").out)["version"]
    found = {"key": "j", "value": "a\n", "version": version, "create_version": version}
    assert json.loads(shell.data("get", "j", "-o", "json").out) == found
    assert shell.data("get", "j", "--raw").out == "a\n" and shell.data("get", "j").out == "a\n\n"
    assert json.loads(shell.data("del", "j", "-o", "json").out) == {"deleted": True}
    assert json.loads(shell.data("delete", "--prefix", "j", "-o", "json").out) == {"deleted": 0}
    assert shell.data("range", "j", "--count-only").out == "0\n"
    assert re.fullmatch("[0-9a-f-]{36}", json.loads(shell("id", "-o", "json").out)["id"])


def test_what_became_of_a_write(shell: Shell) -> None:
    identity = json.loads(shell("id", "-o", "json").out)["id"]
    assert "nothing is remembered" in error_of(shell.data("outcome", identity), status=3)
    shell.data("put", "o", "1", "--id", identity)
    assert shell.data("outcome", identity).out.startswith("applied, success at ")
    assert json.loads(shell.data("outcome", identity, "-o", "json").out)["outcome"] == "applied"


def test_a_watch_prints_every_change_within_its_bounds(shell: Shell) -> None:
    before = shell.data("put", "w/0", "v").out.strip()
    version = shell.data("put", "w/1", "v").out.strip()
    shell.data("put", "other", "v")
    shell.data("delete", "w/0")
    watched = shell.data("watch", "w/", "--from", before, "--limit", "2")
    assert (watched.out, watched.status) == ("PUT\tw/1\tv\nDELETE\tw/0\n", 0)
    told = shell.data("watch", "w/", "--from", before, "--limit", "1", "-o", "json").out
    assert json.loads(told) == {"version": version, "changes": [{"key": "w/1", "value": "v"}]}
    assert "--from" in error_of(shell.data("watch", "--from", "x"))


def test_ranges(shell: Shell) -> None:
    for n in range(4):
        shell.data("put", f"r/{n}", "v")
    assert shell.data("scan", "r/", "--start", "r/1", "--end", "r/3", "--keys-only").out == "r/1\nr/2\n"
    assert shell.data("scan", "r/", "--reverse", "--keys-only", "--limit", "2").out == "r/3\nr/2\n"
    assert shell.data("scan", "r/", "--count-only").out == "4\n"
    assert shell.data("delete", "--prefix", "r/", "--end", "r/3").out == "3\n"
    assert shell.data("scan", "r/", "--keys-only").out == "r/3\n"
    assert shell.data("delete", "r/3", "--prefix", "r").status == 1 and shell.data("delete").status == 1
    assert shell.data("delete", "--start", "r/", "--end", "r0").out == "1\n"


def test_a_scan_of_up_to_a_thousand_keys_is_one_point_in_time(shell: Shell) -> None:
    puts = [{"op": "put", "key": f"many/{i:03}", "value": ""} for i in range(150)]
    assert shell.data("txn", json.dumps({"success": puts})).status == 0
    with patch.object(Keyspace, "page", autospec=True, side_effect=Keyspace.page) as page:
        assert len(shell.data("scan", "many/").out.splitlines()) == 150
    assert page.call_count == 1


def test_conditions(shell: Shell) -> None:
    first = shell.data("put", "c", "1", "--if-absent").out.strip()
    refused = error_of(shell.data("put", "c", "2", "--if-absent"))
    assert refused == f"error: --if-absent does not hold: the key has version {first}\n"
    assert shell.data("put", "c", "2", "--if-version", first).status == 0
    assert "error: --if-version does not hold: the key has version" in error_of(
        shell.data("delete", "c", "--if-version", first)
    )
    both = shell.data("put", "c", "3", "--if-version", first, "--if-absent")
    assert error_of(both) == "error: --if-version and --if-absent: give one of them\n"
    assert "--if-version: not a version" in error_of(shell.data("put", "c", "3", "--if-version", "x"))
    assert shell.data("get", "c").out == "2\n"


def test_a_write_can_be_repeated_under_its_id(shell: Shell) -> None:
    identity = shell("id").out.strip()
    assert identity != shell("id").out.strip()
    transaction = '{"success": [{"op": "add", "key": "once", "delta": 1}]}'
    first = shell.data("txn", transaction, "--id", identity, "-o", "json")
    assert shell.data("txn", transaction, "--id", identity, "-o", "json").out == first.out
    assert shell.data("get", "once").out == "1\n"
    refused = error_of(shell.data("put", "k", "v", "--id", "1"))
    assert "--id: a UUIDv7 is needed, as `kvstore id` prints one" in refused
    [example] = re.findall("[0-9a-f-]{36}", refused)
    assert shell.data("put", "k", "v", "--id", example).status == 0
    assert "this id belongs to a request with" in error_of(shell.data("put", "k", "other", "--id", example))


def test_transactions(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "txn.json"
    compare = {"key": "t", "target": "exists", "op": "==", "value": True}
    file.write_text(json.dumps({"compare": [compare], "failure": [{"op": "put", "key": "t", "value": "1"}]}))
    ran = shell.data("txn", str(file), "-o", "json")
    assert ran.status == 0 and json.loads(ran.out)["succeeded"] is False
    assert shell.data("txn", str(file)).out.startswith("success at ")
    added = shell.data("txn", '{"success": [{"op": "add", "key": "t3", "delta": 3}]}')
    assert '  add: {"value":3,"version":"' in added.out
    assert "did you mean 'success'" in error_of(shell.data("txn", '{"sucess": []}'))
    assert "No such file" in error_of(shell.data("txn", str(tmp_path / "missing")))
    assert "value" in error_of(shell.data("txn", '{"success": [{"op": "put", "key": "a"}]}'))
    failed = shell.data(
        "txn", '{"success": [{"op": "put", "key": "w", "value": "x"}, {"op": "add", "key": "w", "delta": 1}]}'
    )
    error_of(failed)
    assert shell.data("get", "w").status == 3


def test_status_shows_every_replica(shell: Shell) -> None:
    ran = shell("cluster", "status", str(shell.directory))
    head, line = ran.out.splitlines()
    assert head.split() == list(STATUS_HEADINGS)
    assert re.fullmatch(r"[0-9]+ 0 - [0-9.]+G ok", " ".join(line.split()[-5:]))
    url = config.load(shell.directory).replicas[0].url
    assert line.split()[:3] == ["0", "0", url] and line.split()[4:6] == ["ready", "member"]
    (replica,) = json.loads(shell("cluster", "status", str(shell.directory), "-o", "json").out)
    assert {"id": 0, "shard": 0, "url": url, "state": "ready", "role": "member"}.items() <= replica.items()
    assert replica["pid"] == int(line.split()[3]) and replica["position"] >= 0


@pytest.mark.parametrize("output", ["text", "json"])
def test_status_of_what_is_down_is_a_failure(shell: Shell, tmp_path: Path, output: str) -> None:
    shell("cluster", "init", str(tmp_path / "idle"), "--shards", "1", "--replicas", "1", "--protocol", "skeen")
    ran = shell("cluster", "status", str(tmp_path / "idle"), "-o", output)
    assert ran.status == 1 and "down" in ran.out


def test_top_shows_what_replicas_do_between_two_looks(shell: Shell) -> None:
    url = config.load(shell.directory).replicas[0].url
    head, line = shell("top", url.removeprefix("http://"), "--once", "--interval", "0.1").out.splitlines()
    assert head.split() == list(HEADINGS)
    words = " ".join(line.split())
    assert re.fullmatch(r"0 0 member ready [0-9]+ 0 .* 0 0\.0ms [0-9.]+ms 0M [0-9]+M [0-9]+[MG] ok", words)
    [row] = json.loads(shell("top", str(shell.directory), "--once", "--interval", "0.1", "-o", "json").out)
    assert row["id"] == 0 and row["requests_per_second"] > 0 and row["memory_bytes"] > 1_000_000


def test_what_writers_of_one_key_add_is_added_and_their_attempts_are_counted(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        asyncio.run(contention.run(str(shell.directory), "contended", 3, 2))
    told = capsys.readouterr().out.splitlines()
    assert len(told) == 2 and all("3 writers, 6 commits" in line and "6 were added" in line for line in told)


def test_a_lock_is_held_while_a_command_runs_which_knows_its_token(shell: Shell, tmp_path: Path) -> None:
    look = f"import os, sys; open({str(tmp_path / 'told')!r}, 'a').write(os.environ['KVSTORE_LOCK_TOKEN'] + ' ')"
    for command in (("lock", "l"), ("lock", "l"), ("elect", "e", "me")):
        with_command = (*command, "--cluster", str(shell.directory), "--", sys.executable, "-c", f"{look}; sys.exit(7)")
        assert shell(*with_command).status == 7
    tokens = [Timestamp.parse(text) for text in (tmp_path / "told").read_text().split()]
    assert tokens == sorted(set(tokens)) and len(tokens) == 3
    with Client(shell.directory, timeout=60) as client, client.lock("l", ttl=600):
        told = (error_of(shell.data("lock", "l", "--wait", wait)) for wait in ("0.2", "2", "20"))
        assert any("others were before" in one for one in told), "else nobody had answered in that time"


def test_what_is_wrong_is_told_in_the_words_of_who_typed_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for ttl in ("0.5", "0", "inf"):
        assert error_of(shell.data("lease", "grant", ttl)) == f"error: ttl: from 1 to 86400 seconds, not {ttl}\n"
    told = error_of(shell.data("get", "x", "--consistency", "s"))
    assert "'--consistency': 's' is not one of 'linearizable'" in told
    assert error_of(shell.data("outcome", "x")).startswith("error: UUID: ")
    denied = Denied("Authorization: ...", status=401, field="Authorization")
    monkeypatch.setattr(Client, "get", lambda *_, **__: (_ for _ in ()).throw(denied))
    assert "--token-file FILE, or a token in KVSTORE_TOKEN" in error_of(shell.data("get", "x"))
    monkeypatch.undo()
    monkeypatch.setattr(attempts, "_backoff", lambda _: 3600.0)  # one attempt
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_hear_and_close, args=(listening,), daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        told = error_of(shell("get", "x", "--cluster", address, "--timeout", "60"))
        assert "its address begins with https://" in told


def _hear_and_close(listening: socket.socket) -> None:
    with suppress(OSError):
        while True:
            with listening.accept()[0] as connection:
                connection.recv(1 << 16)


def test_leaders_may_say_what_is_no_text(shell: Shell) -> None:
    command = [sys.executable, "-m", "workloads", "elect", "odd", "-l", "--cluster", str(shell.directory)]
    with Client(shell.directory) as client, client.election("odd") as election:
        token = election.campaign(b"\xff")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as looking:
            assert looking.stdout is not None and looking.stdout.readline() == f"{token}\t\\xff\n"
            looking.terminate()


def test_a_command_whose_lock_is_lost_is_ended(tmp_path: Path) -> None:
    mark = tmp_path / "went on"
    with pytest.raises(UserError, match="another may have it: sh was ended"):
        locks_cli._run(["sh", "-c", f"sleep 60; touch {mark}"], "1-0", lambda: True)
    with pytest.raises(UserError, match="another may have it by now"):
        locks_cli._hold(lambda: True)
    assert not mark.exists() and locks_cli._run(["sh", "-c", "kill -9 $$"], "1-0", lambda: False) == 128 + 9


def test_what_etcdctl_calls_otherwise_is_known(shell: Shell, tmp_path: Path) -> None:
    url = config.load(shell.directory).replicas[0].url
    assert shell("member", "list", "--endpoints", url).out.split() == ["0", "0", url]
    assert shell.data("endpoint", "health").out == f"{url} is ready\n"
    assert json.loads(shell.data("endpoint", "status", "-o", "json").out)[0]["url"] == url
    nobody = shell("endpoint", "health", "--cluster", "127.0.0.1:1")
    assert "no replica says what its cluster is: http://127.0.0.1:1: [Errno 111] Connection refused" in error_of(nobody)
    assert shell.data("snapshot", "save", str(tmp_path / "saved")).status == 0
    assert json.loads(shell("snapshot", "status", str(tmp_path / "saved"), "-o", "json").out)["shards"] == 1
    shell.data("put", "e/1", "v")
    for typed in (("--prefix", "e/"), ("e/", "--prefix")):
        assert shell.data("get", *typed).out == "e/1\tv\n"
    lease = json.loads(shell.data("lease", "grant", "60", "-o", "json").out)["id"]
    assert shell.data("lease", "keep-alive", lease, "--once").status == 0
    assert lease in [one["id"] for one in json.loads(shell.data("lease", "list", "-o", "json").out)]
    assert json.loads(shell.data("lease", "revoke", lease, "-o", "json").out) == {"revoked": True}
    for command, sentence in INSTEAD.items():
        assert error_of(shell(*command.split(), "some", "--thing")) == f"error: {sentence}\n"
    for typed, known in (("get k --rev=3", "get --rev"), ("txn -i", "txn -i"), ("lease list -w json", "-w")):
        sentence = f"{known.split()[-1]}: {INSTEAD_OF_OPTIONS[known]}"
        assert error_of(shell(*typed.split())) == f"error: No such option: {sentence} (`--help` tells more)\n"
    names = dict(commands(get_command(together(client_cli.app))))
    assert all(f"kvstore {known.split()[0]}" in names for known in INSTEAD_OF_OPTIONS if " " in known)


def test_a_scan_prints_all_of_it_unless_a_limit_is_given(shell: Shell) -> None:
    with Client(shell.directory) as client:
        client.txn(success=[Put(f"all/{number:04}", "") for number in range(1001)])
    assert len(shell.data("scan", "all/", "--keys-only").out.split()) == 1001
    assert shell.data("scan", "all/", "--keys-only", "--limit", "1").out == "all/0000\n"


def commands(group: Any, name: str = "kvstore") -> Iterator[tuple[str, Any]]:
    """(name, command) of everything that can be run."""
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def test_every_command_that_prints_a_result_prints_it_for_programs() -> None:
    groups = (cluster_cli.app, server_cli.app, client_cli.app, leases_cli.app, locks_cli.app, rights_cli.app)
    silent = {"kvstore serve", "kvstore completion"}  # its log, and a script
    hidden = {"kvstore auth enable", "kvstore auth status", *(f"kvstore {command}" for command in INSTEAD)}
    found = dict(commands(get_command(together(*groups))))
    without = {name for name, command in found.items() if "--output" not in {o for p in command.params for o in p.opts}}
    assert without - hidden == silent and len(found) > 40


def test_of_all_commands_only_the_one_that_is_asked_for_is_made(alone: Shell) -> None:
    def told(command: Any) -> Any:
        if hasattr(command, "commands"):
            return {name: told(inner) for name, inner in command.commands.items()}
        return [(param.name, param.opts, param.required, param.envvar) for param in command.params]

    groups = (cluster_cli.app, server_cli.app, client_cli.app, leases_cli.app, locks_cli.app, rights_cli.app)
    whole = told(get_command(together(*groups)))
    assert all(told(get_command(together(*groups, asked=name))) == {name: of} for name, of in whole.items())
    assert told(get_command(together(*groups, asked="--ca"))) == whole
    with patch.object(typer_main, "get_command_from_info", side_effect=typer_main.get_command_from_info) as made:
        assert alone("id").status == 0
    assert made.call_count == 1


def test_a_shell_completes_commands(alone: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bash", "zsh", "fish"):
        assert COMPLETE in alone("completion", name).out
    for variable, value in (("COMP_WORDS", "kvstore clu"), ("COMP_CWORD", "1"), (COMPLETE, "complete_bash")):
        monkeypatch.setenv(variable, value)
    assert alone().out.split() == ["cluster"]


def test_a_url_names_a_cluster_too(shell: Shell) -> None:
    url = config.load(shell.directory).replicas[0].url
    assert shell("put", "u", "1", "--cluster", url).status == 0
    assert shell("get", "u", "--cluster", url).out == "1\n"
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        refusing = f"127.0.0.1:{unused.getsockname()[1]}"
        assert shell("get", "u", "--cluster", f"{refusing},{url.removeprefix('http://')}").out == "1\n"


def test_up_on_a_running_cluster_changes_nothing(shell: Shell) -> None:
    ran = shell("cluster", "up", str(shell.directory), "--detach")
    assert ran.status == 0 and ran.out.splitlines()[-1] == "all replicas were running already"


def test_an_oversized_key_is_named(shell: Shell) -> None:
    assert "1 to 400 bytes, this one 401" in error_of(shell.data("put", "k" * 401, "v"))


def test_an_unanswered_write_is_status_2_and_names_the_id(alone: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        taken: list[socket.socket] = []

        def accept() -> None:
            for _ in range(100):
                try:
                    taken.append(silent.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        port = silent.getsockname()[1]
        ran = alone("put", "k", "v", "--cluster", f"http://127.0.0.1:{port}", "--timeout", "1")
        silent.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()
    assert "outcome unknown; id " in error_of(ran, status=2)


def test_nobody_there_is_status_1(alone: Shell) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        for target in (f"http://127.0.0.1:{port}", f"127.0.0.1:{port}"):
            said = error_of(alone("get", "k", "--cluster", target, "--timeout", "100"))
            assert said == f"error: nobody listens at http://127.0.0.1:{port}: Connection refused\n"
    said = error_of(alone("get", "k", "--cluster", "http://a..b:1", "--timeout", "100"))
    assert said == "error: nobody listens at http://a..b:1: no host has such a name\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("put",), "Missing argument"),
        (("get", "--cluster", "127.0.0.1:1"), "Missing argument"),
        (("get", "k"), "Missing option '--cluster'"),
        (("get", "k", "--cluster", "/nowhere"), "neither a URL, nor host:port, nor the directory of a cluster"),
        (("get", "k", "--clutser", "x"), "No such option"),
        (("got", "k"), "No such command 'got'"),
        (("put", "k", "v", "--cluster", "x", "--timeout", "0"), "--timeout"),
        (("cluster", "init", "D", "--protocol", "whitebox"), "did you mean 'white_box'?"),
        (("cluster", "init", "D", "--protocol", "skeen"), "not fault-tolerant"),
        (("cluster", "init", "D", "--shards", "0"), "at least one shard"),
        (("cluster", "init", "D", "--base-port", "65500"), "http_port: from 1 to 65535"),
        (("cluster", "init", "D", "--durability", "maybe"), "durability: one of fsync, os"),
        (("cluster", "status", "D"), "kvstore cluster init"),
        (("cluster", "up", "D"), "kvstore cluster init"),
        (("cluster", "down", "D"), "kvstore cluster init"),
        (("serve", "--dir", "D", "--replica", "0"), "kvstore cluster init"),
        (("bench",), "give one of TARGET, a running cluster, --protocols"),
        (("bench", "D", "--protocols", "all"), "give one of TARGET"),
        (("bench", "--against", "consul"), "--against: only etcd, not 'consul'"),
        (("bench", "--against", "etcd", "--rounds", "21"), "rounds: from 1 to 20"),
        (("bench", "--against", "etcd", "--kinds", "ycsb-a", "--load", "wrk"), "wrk sends put, get, txn1, txn"),
        (("bench", "D"), "neither a URL, nor host:port, nor the directory of a cluster"),
        (("bench", "--protocols", "whitebox"), "did you mean 'white_box'?"),
        (("bench", "--protocols", ","), "all, or names with commas between them"),
        (("bench", "--protocols", "skeen", "--clients", "1,many"), "--clients: whole numbers"),
        (("bench", "--protocols", "skeen", "--clients", "0"), "clients: each from 1 to 8192"),
        (("bench", "--protocols", "skeen", "--kinds", "push"), "(ycsb: all of those), not 'push'"),
        (("bench", "--protocols", "skeen", "--seconds", "0"), "seconds: from 0.1 to 600"),
    ],
)
def test_a_mistake_is_one_line_and_status_1(
    alone: Shell, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(alone.directory)
    assert says in error_of(alone(*arguments))
    assert list(alone.directory.iterdir()) == []


def test_a_command_of_the_whole_program_is_named_where_it_is_not() -> None:
    command = [sys.executable, "-m", "kvstore", "bench"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "the command `kvstore` has all" in ran.stderr


def test_init_never_overwrites(alone: Shell) -> None:
    directory = str(alone.directory / "new")
    assert alone("cluster", "init", directory).status == 0
    before = (alone.directory / "new" / "cluster.json").read_bytes()
    assert "exists already" in error_of(alone("cluster", "init", directory, "--shards", "5"))
    assert (alone.directory / "new" / "cluster.json").read_bytes() == before


def test_serve_refuses_a_replica_that_is_not_there(alone: Shell) -> None:
    directory = str(alone.directory / "new")
    alone("cluster", "init", directory)
    assert "no replica 6 in this cluster; it has 0 to 5" in error_of(
        alone("serve", "--dir", directory, "--replica", "6")
    )


def test_the_version_is_the_distributions(alone: Shell) -> None:
    assert alone("--version").out == f"kvstore {kvstore.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "kvstore.__version__"}
    for package in ("kvstore", "workloads"):
        done = subprocess.run([sys.executable, "-m", package, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout == alone("--version").out


def test_the_command_line_starts_without_what_only_some_commands_need() -> None:
    program = "import sys, workloads.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"aiohttp", "hdrh", "lmdb", "locust", "matplotlib", "multicast.registry", "numpy", "prometheus_client",
             "pyspark", "rich", "structlog", "workloads.bench.measure"}  # fmt: skip
    assert heavy.isdisjoint(done.stdout.split())


def test_what_is_not_for_clients_starts_without_the_client(tmp_path: Path) -> None:
    program = "import sys, workloads.cli\ntry: workloads.cli.main()\nfinally: print('client_sdk' in sys.modules)"
    for words, told in ((["--version"], "False"), (["cluster", "status", str(tmp_path)], "False"), (["id"], "True")):
        done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
        assert done.stdout.split()[-1] == told, words


def test_help_is_for_everything(alone: Shell) -> None:
    ran = alone("--help")
    assert ran.status == 0
    for command in ("cluster", "serve", "get", "put", "delete", "scan", "txn", "bench"):
        assert f"  {command} " in ran.out
    assert alone("cluster", "--help").status == 0


def test_the_installed_script_runs_these_commands(capsys: pytest.CaptureFixture[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    script = EntryPoint("kvstore", project["project"]["scripts"]["kvstore"], "console_scripts").load()
    with patch.object(sys, "argv", ["kvstore", "--help"]), pytest.raises(SystemExit) as ended:
        script()
    assert ended.value.code == 0 and "bench" in capsys.readouterr().out
