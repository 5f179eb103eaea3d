"""A put goes the way that its page (`kvstore/WAY.md`) names; that the names exist is checked of all pages."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from tests.house import ROOT
from tests.kvstore.backups import serving
from tests.kvstore.live import make_cluster
from tests.multicast.live import eventually

PAGE = (ROOT / "kvstore" / "WAY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]+\.py):([\w.]+)`")
AFTERWARDS = "## Afterwards"


def test_the_steps_are_numbered() -> None:
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))


def steps(text: str) -> list[str]:
    """What its numbered steps name, in order."""
    lines = text[text.index("\n1. ") :] if "\n1. " in text else text
    found = re.findall(r"^\d+\. .*(?:\n {3,4}\S.*)*", lines, re.MULTILINE)
    return [f"{path}:{name}" for step in found for path, name in NAMED.findall(step)]


class Tracer:
    """Notes which functions of this project are entered, in order, in every thread."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self._names: dict[Any, str] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self._names:
                path = Path(code.co_filename)
                inside = path.is_relative_to(ROOT)
                self._names[code] = f"{path.relative_to(ROOT).as_posix()}:{code.co_qualname}" if inside else ""
            if name := self._names[code]:
                self.entered.append(name)


def not_passed(way: list[str], entered: list[str]) -> list[str]:
    """From the first of these functions on that was not entered after those before it; empty if all were."""
    left = iter(entered)
    for n, name in enumerate(way):
        if name not in left:
            return way[n:]
    return []


def test_what_is_entered_in_another_order_is_noticed() -> None:
    assert not_passed(["a", "b"], ["x", "a", "a", "b"]) == []
    assert not_passed(["a", "b"], ["b", "a"]) == ["b"]


async def test_a_put_goes_this_way(tmp_path: Path) -> None:
    before, _, after = PAGE.partition(AFTERWARDS)
    way, afterwards = steps(before), steps(after)
    assert len(way) > 30 and len(afterwards) >= 6
    made = make_cluster(tmp_path, 1, 1, "white_box", commit_interval_ms=50)
    tracer = Tracer()
    threading.setprofile(tracer)
    try:
        async with serving(tmp_path, made) as [replica]:
            reader, writer = await asyncio.open_connection(replica.me.host, replica.me.http_port)
            try:
                began = len(tracer.entered)
                sys.setprofile(tracer)
                writer.write(b"PUT /v1/kv/k HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\nv")
                answer = await reader.readuntil(b"\r\n\r\n")
                answered = len(tracer.entered)
                # Since it began: the interval of commits may have passed before the answer was read here.
                await eventually(lambda: set(afterwards) <= set(tracer.entered[began:]), "it is in LMDB")
            finally:
                sys.setprofile(None)
                writer.close()
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not_passed(way, tracer.entered[:answered]) == []
