"""Keys and names as people type them: one, or all that begin alike; and what is none."""

from __future__ import annotations

import sys
import time
from unittest.mock import Mock
from uuid import UUID

import pytest

from client_sdk import Client, KvError, OutcomeUnknown, Timestamp, Unavailable, leases_cli
from client_sdk.blocking import Election
from client_sdk.requests import Lease
from tests.workloads.test_cli import Shell, directory, error_of, shell

__all__ = ["directory", "shell"]


def test_a_prefix_is_told_as_etcdctl_has_it(shell: Shell) -> None:
    for key in ("p/1", "p/2", "p/3"):
        shell.data("put", key, "v")
    assert shell.data("get", "p/1", "--prefix").out == "p/1\tv\n"
    assert "unexpected extra argument" in error_of(shell.data("get", "p/1", "--prefix", "p/"))
    assert shell.data("del", "p/2", "--prefix").out == "1\n"
    assert "give a KEY, or a range" in error_of(shell.data("delete", "--prefix"))
    assert "give a KEY, or a range" in error_of(shell.data("delete", "p/3", "--start", "p/1"))
    assert "--if-version: a range" in error_of(shell.data("delete", "p/3", "--prefix", "--if-version", "1-1"))
    assert shell.data("delete", "", "--prefix", "--end", "p/3").out == "1\n"
    assert shell.data("get", "", "--prefix").out == "p/3\tv\n"


def test_a_watch_is_of_a_prefix_or_of_one_key(shell: Shell) -> None:
    with Client(shell.directory) as store:
        before = str(store.put("w", "0"))
        longest = b"w" + b"x" * 399
        for key in (b"w1", b"w", longest):
            store.put(key, "1")
    long = longest.decode()
    for how, told in ((("w", "--prefix"), "w1"), (("w",), "w1"), (("--key", "w"), "w"), (("--key", long), long)):
        watched = shell.data("watch", *how, "--from", before, "--limit", "1")
        assert watched.out == f"PUT\t{told}\t1\n", how
    assert "key: give a key, or bounds" in error_of(shell.data("watch", "w", "--key", "w"))


@pytest.mark.parametrize("name", ["", "\udcff"], ids=["empty", "no text"])
def test_a_lock_has_a_name(shell: Shell, name: str) -> None:
    for command in ("lock", "elect"):
        ran = shell(command, name, "--cluster", str(shell.directory), "--", sys.executable, "-c", "")
        assert error_of(ran) == f"error: name: {'text that is no Unicode' if name else 'not empty'}\n"


def test_what_a_command_has_ended_with_is_told_though_nobody_hears_that_it_leads_no_longer(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(Election, "resign", nobody)
    command = "elect", "e", "me", "--cluster", str(shell.directory), "--", sys.executable, "-c", "raise SystemExit(7)"
    assert shell(*command).status == 7


def test_a_lease_is_kept_alive_as_long_as_it_lives_though_nobody_answers_for_a_while(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = Lease(bytes(16), 3600.0, Timestamp(1, 0), 3600.0)
    told: list[Lease | KvError | None] = [alive, Unavailable("nobody"), OutcomeUnknown("who knows"), alive, None]

    def renew(*_: object) -> Lease | None:
        one = told.pop(0)
        if isinstance(one, KvError):
            raise one
        return one

    monkeypatch.setattr(Client, "renew_lease", renew)
    monkeypatch.setattr(leases_cli, "time", Mock(monotonic=time.monotonic))
    kept = shell.data("lease", "keepalive", str(UUID(int=0)))
    assert kept.status == 3 and len(kept.out.splitlines()) == 2 and not told
    told = [alive._replace(ttl=0.01), *[Unavailable("nobody")] * 1_000_000]
    assert shell.data("lease", "keepalive", str(UUID(int=0))).status == 1
