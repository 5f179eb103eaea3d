"""A correct history of lists, as `check-history` takes it, of any length."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec

KEYS = 5_000
LENGTH_MAX = 20
"""Of a list; then its key is another one."""
PROCESSES = 32


def write_lists(path: Path, transactions: int, seed: int = 1) -> None:
    """Each appends to one list and reads another, one after the other in real time."""
    rng, encode = Random(f"{seed}/lists"), msgspec.json.Encoder().encode
    lists: dict[int, list[int]] = {}
    names = dict.fromkeys(range(KEYS), 0)
    with path.open("wb") as file:
        for number in range(transactions):
            mine, other = rng.randrange(KEYS), rng.randrange(KEYS)
            written = lists.setdefault(mine, [])
            if len(written) == LENGTH_MAX:
                names[mine], written = names[mine] + 1, []
                lists[mine] = written
            written.append(number)
            seen = list(lists.get(other, ()))
            ops = [["append", f"{mine}/{names[mine]}", number], ["r", f"{other}/{names[other]}", seen]]
            line = {"process": number % PROCESSES, "type": "ok", "invoke": 10 * number, "complete": 10 * number + 5}
            file.write(encode({**line, "ops": ops}) + b"\n")
