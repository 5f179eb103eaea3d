"""Pictures of a typical run of each protocol, for the pages about them (multicast/docs): drawn by the page itself.

A picture says of which run it is, by a digest of all that is drawn; `is_current` needs no browser, drawing does.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from multicast import registry
from multicast.simulation.pages import DOCS
from multicast.visual.inline import single_page
from multicast.visual.scenario import Scenario, stage
from multicast.visual.setup import Problem, default_setup

PICTURES = DOCS / "pictures"
_EVENTS = ("submit", "leave", "delivery")
_DRAWN = ("event", "t", "process", "to", "type", "about", "position")
_DIGEST = re.compile(r"<!-- run: (\w+) -->")
_WIDTH, _HEIGHT = 1280, 800


def typical(protocol: str) -> Scenario:
    """Two messages to two groups, multicast at the same instant in each of them."""
    setup = default_setup(registry.load(protocol))
    senders = [members[0] for members in setup.groups.values()]
    groups = list(setup.groups)
    return Scenario(
        chapter=0, title=f"{protocol}: two messages to two groups", text="", watch="", learned="", setup=setup,
        script=(*(("multicast", sender, groups) for sender in senders), ("run", "end")), end=(),
    )  # fmt: skip


def digest(recording: dict[str, Any]) -> str:
    """Of what happens to the messages, in the order in which it is drawn."""
    told = [
        [line.get(name) for name in _DRAWN]
        for line in recording["lines"]
        if line["event"] in _EVENTS and not line.get("housekeeping") and line["s"] > 0
    ]
    return hashlib.blake2b(msgspec.json.encode(told), digest_size=16).hexdigest()


def is_current(protocol: str) -> bool:
    """Whether the picture is there, and shows what the protocol does now."""
    file = PICTURES / f"{protocol}.svg"
    found = _DIGEST.search(file.read_text(encoding="utf-8")) if file.exists() else None
    return found is not None and found[1] == digest(stage(typical(protocol)).recording())


def draw(protocols: list[str], browser: str) -> None:
    """Write the pictures. browser: the program, a Chromium. Problem without playwright or browser."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError:
        raise Problem("Drawing needs playwright (pip install playwright), which drives the browser.") from None
    PICTURES.mkdir(exist_ok=True)
    try:
        with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
            chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = chromium.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
            for name in protocols:
                recorded = stage(typical(name)).recording()
                file = Path(folder) / "page.html"
                file.write_text(single_page({**recorded, "at": recorded["steps"]}, name), encoding="utf-8")
                page.goto(file.as_uri())
                page.wait_for_function("window.visual && document.querySelector('svg.diagram')")
                svg = page.evaluate("window.visual.svg({ whole: true })")
                text = svg.replace("?>", f"?>\n<!-- run: {digest(recorded)} -->", 1)
                (PICTURES / f"{name}.svg").write_text(text, encoding="utf-8")
            chromium.close()
    except Error as error:
        raise Problem(f"The browser {browser} cannot draw: {str(error).splitlines()[0]}") from None
