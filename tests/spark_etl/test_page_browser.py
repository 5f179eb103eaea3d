"""The page in a real browser: nothing stands over something else, nothing is wider than the screen, no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spark_etl.checks.genuineness import NO_TRACE
from spark_etl.page import run as run_page
from spark_etl.report import Property
from tests.browser import NEEDED, launched
from tests.spark_etl.test_page import NASTY, cycle, report

pytestmark = NEEDED

BEYOND_THEIR_TILES = """[...document.querySelectorAll(".cards li")].filter(li => [...li.querySelectorAll("*")].some(
    e => e.getBoundingClientRect().right > li.getBoundingClientRect().right + 1)).map(li => li.textContent)"""
WIDER_THAN_THE_SCREEN = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from launched()


@pytest.mark.parametrize("width", [1300, 1000, 390])
def test_tiles_hold_their_words_and_sections_unfold(browser: Any, tmp_path: Path, width: int):
    found = report(cycle(3, NASTY), cycle(40, "k" * 300), run=NASTY)
    notes = {"genuineness": NO_TRACE, "optimistic deliveries": "it delivers nothing early", "bank": "x" * 200}
    more = [Property(name, "not applicable", 0, 0.0, note=note) for name, note in notes.items()]
    found = msgspec.structs.replace(found, properties=[*found.properties, *more])
    path, errors = tmp_path / "page.html", list[str]()
    path.write_text(run_page.page(found), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    assert page.evaluate(BEYOND_THEIR_TILES) == [] and page.evaluate(WIDER_THAN_THE_SCREEN) == 0
    for summary in page.query_selector_all("summary"):
        if summary.is_visible() and not summary.evaluate("e => e.parentElement.open"):
            summary.click()
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert page.evaluate(WIDER_THAN_THE_SCREEN) == 0 and errors == []
    page.close()
