"""How often clients that change one key at the same time have to begin again.

    python -m workloads.contention TARGET [--writers 50] [--commits 20] [--key contended]

TARGET: a cluster's directory, or URLs with commas between them. Every writer is a client of its own, and adds one to
the key in an interactive transaction, `--commits` times. Exit status 0 if a commit took at most ATTEMPTS_MAX attempts
in the mean, and nothing was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

from client_sdk import AsyncClient, Done, InteractiveTransaction, KvError

ATTEMPTS_MAX = 3.0
COMMIT_SECONDS = 60.0


async def write(target: str, key: str, commits: int) -> list[int]:
    """One writer: with how many attempts it has made each of its commits. KvError."""
    attempts: list[int] = []

    def noted(done: Done) -> None:
        if done.operation == "transact":
            attempts.append(done.attempts)

    async def add_one(t: InteractiveTransaction) -> None:
        t.put(key, b"%d" % (int(await t.get(key) or b"0") + 1))

    async with AsyncClient(target, on_done=noted) as client:
        for _ in range(commits):
            await client.transact(add_one, timeout=COMMIT_SECONDS)
    return attempts


async def run(target: str, key: str, writers: int, commits: int) -> int:
    """The exit status; says what was found. KvError."""
    async with AsyncClient(target) as client:
        found = await client.get(key)
        before = int(found.value) if found else 0
        began = time.monotonic()
        counts = await asyncio.gather(*(write(target, key, commits) for _ in range(writers)))
        seconds = time.monotonic() - began
        found = await client.get(key)
        added = (int(found.value) if found else 0) - before
    mean = sum(map(sum, counts)) / (writers * commits)
    print(
        f"{writers} writers, {writers * commits} commits in {seconds:.1f} s: {mean:.2f} attempts for a commit, at most"
        f" {max(map(max, counts))}; {added} were added"
    )
    return 0 if mean <= ATTEMPTS_MAX and added == writers * commits else 1


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m workloads.contention", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--key", default="contended")
    given = parser.parse_args()
    if given.writers < 1 or given.commits < 1:
        parser.error("--writers, --commits: at least 1")
    try:
        sys.exit(asyncio.run(run(given.target, given.key, given.writers, given.commits)))
    except (KvError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
