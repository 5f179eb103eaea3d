"""Many seeds, in order, in one or several processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from multicast.protocol import MulticastProtocol
from multicast.simulation.beside import each
from multicast.simulation.reached import measured
from multicast.simulation.runner import Outcome, Settings
from multicast.simulation.worlds import run_seed

_CHUNK = 16
"""So many seeds are handed to a process at once."""


class _Chunk(msgspec.Struct):
    protocol: type[MulticastProtocol]
    seeds: range
    settings: Settings
    directory: Path | None


def outcomes(
    protocol: type[MulticastProtocol], seeds: range, settings: Settings, jobs: int, coverage: Path | None = None
) -> Iterator[Outcome]:
    """Of every seed, in their order. coverage: see `reached.measured`; it lacks what is under way when it is ended."""
    size = 1 if jobs == 1 and coverage is None else _CHUNK
    chunks = (
        _Chunk(protocol, seeds[first : first + size], settings, coverage) for first in range(0, len(seeds), size)
    )
    for _, found in each(_run, chunks, jobs, ordered=True):
        yield from found


def _run(chunk: _Chunk) -> list[Outcome]:
    with measured(chunk.protocol, chunk.directory):
        return [run_seed(chunk.protocol, seed, chunk.settings) for seed in chunk.seeds]
