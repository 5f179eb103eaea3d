"""Locks of real processes that are killed, at a cluster whose leaders are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

from client_sdk import Client, Timestamp
from tests.client_sdk.stores import LOSERS_TTL, is_a_timeout
from tests.client_sdk.test_live import directory, kill, leader

__all__ = ["directory"]

TTL = 2.0
"""Of who is killed: the others wait for it."""
LONG = 60.0
"""Of who lives, and is not to lose it on a machine that stands still for a while."""
HOLDER = f"""
import contextlib, sys
from client_sdk import Client, KvError
with Client(sys.argv[1], timeout=60) as store:
    while True:
        with contextlib.suppress(KvError), store.lock("job", ttl={TTL}) as lock:  # else its time was over already
            print(lock.token, flush=True)
            sys.stdin.read()  # until it is killed, or whoever waits for it has ended
            break
"""


def test_whoever_is_killed_with_a_lock_is_followed_after_its_time_to_live_and_tokens_rise(directory: Path) -> None:
    tokens: list[Timestamp] = []
    with Client(directory, timeout=60) as store:
        for leader_dies in (False, True):
            command = [sys.executable, "-c", HOLDER, str(directory)]
            with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as holder:
                try:
                    assert holder.stdout is not None
                    tokens.append(Timestamp.parse(holder.stdout.readline().strip()))
                    if leader_dies:
                        kill(leader(directory, 0))
                finally:
                    holder.kill()
            with store.lock("job", ttl=LONG, timeout=60) as lock:
                tokens.append(lock.token)
                lock.check()
        assert tokens == sorted(tokens) and len(set(tokens)) == len(tokens)
        assert list(store.scan("locks/")) == []


def test_an_election_goes_to_the_next_when_its_leader_resigns(directory: Path) -> None:
    made = Client(directory, timeout=60)
    with made as store, store.election("e", ttl=LONG) as first, store.election("e", ttl=LONG) as second:
        token = first.campaign("one")
        leader = second.leader()
        assert leader is not None and (leader.value, leader.create_version) == (b"one", token)
        is_a_timeout(lambda seconds: second.campaign("two", timeout=seconds))
        first.resign()
        assert second.campaign("two") > token
        seen = next(iter(second.observe()))
        assert seen.value == b"two"


def test_two_do_not_hold_a_lock_at_a_time(directory: Path) -> None:
    with Client(directory, timeout=60) as store:
        with store.lock("}{ odd name", ttl=LONG) as lock:
            is_a_timeout(lambda seconds: store.lock("}{ odd name", ttl=LOSERS_TTL, timeout=seconds).__enter__())
            assert not lock.lost
        with store.lock("}{ odd name", ttl=LONG, timeout=60) as later:
            assert later.token > lock.token
