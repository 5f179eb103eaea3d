"""Locks of real processes that are killed, at a cluster whose leaders are."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from client_sdk import Client, Timestamp
from tests.client_sdk.test_live import directory, kill, status

__all__ = ["directory"]

pytestmark = pytest.mark.timeout(120)

TTL = 2.0
HOLDER = f"""
import sys, time
from client_sdk import Client
with Client(sys.argv[1]) as store, store.lock("job", ttl={TTL}) as lock:
    print(lock.token, flush=True)
    time.sleep(1000)
"""


def test_whoever_is_killed_with_a_lock_is_followed_after_its_time_to_live_and_tokens_rise(directory: Path) -> None:
    tokens: list[Timestamp] = []
    with Client(directory, timeout=30) as store:
        for leader_dies in (False, True):
            command = [sys.executable, "-c", HOLDER, str(directory)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
                try:
                    assert holder.stdout is not None
                    tokens.append(Timestamp.parse(holder.stdout.readline().strip()))
                    if leader_dies:
                        kill(next(replica for replica in status(directory) if replica["role"] == "leader"))
                finally:
                    holder.kill()
            begun = time.monotonic()
            with store.lock("job", ttl=TTL, timeout=60) as lock:
                assert time.monotonic() - begun > TTL / 2, "its last renewal was at most a third of that ago"
                tokens.append(lock.token)
                lock.check()
        assert tokens == sorted(tokens) and len(set(tokens)) == len(tokens)
        assert list(store.scan("locks/")) == []


def test_an_election_goes_to_the_next_when_its_leader_resigns(directory: Path) -> None:
    with Client(directory) as store, store.election("e", ttl=TTL) as first, store.election("e", ttl=TTL) as second:
        token = first.campaign("one")
        leader = second.leader()
        assert leader is not None and (leader.value, leader.create_version) == (b"one", token)
        with pytest.raises(TimeoutError):
            second.campaign("two", timeout=0.1)
        first.resign()
        assert second.campaign("two") > token
        seen = next(iter(second.observe()))
        assert seen.value == b"two"


def test_two_do_not_hold_a_lock_at_a_time(directory: Path) -> None:
    with Client(directory) as store:
        with store.lock("}{ odd name", ttl=TTL) as lock:
            with pytest.raises(TimeoutError), store.lock("}{ odd name", ttl=TTL, timeout=0.1):
                raise AssertionError("both have it")
            assert not lock.lost
        with store.lock("}{ odd name", ttl=TTL, timeout=10) as later:
            assert later.token > lock.token
