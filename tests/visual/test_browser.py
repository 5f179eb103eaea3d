"""The page in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multicast.visual.inline import PAGE, joined, single_page
from multicast.visual.recorded import Run, play
from multicast.visual.scenario import described, find, scenarios, stage
from multicast.visual.server import Server, serve
from tests.browser import NEEDED, launched, sync_api
from tests.ports import free_ports

pytestmark = NEEDED

Page = Any

PANES = ("#legend", "#canvas", "#controls", "#words", "#code", "#tab-pane")
CHANGES_OF_A_STEP_MAX = 2_000
"""Of elements; drawing everything anew would be far more."""


# -- server and browser -------------------------------------------------------------------------------------------


class Running:
    """A server in a thread of its own, that can be stopped and started at the same port."""

    def __init__(self) -> None:
        (self.port,) = free_ports(1)
        self.start()

    def start(self) -> None:
        begun = threading.Event()

        def started(port: int) -> None:
            self.port = port
            begun.set()

        async def run() -> None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.ensure_future(serve(Server(), self.port, started))
            await asyncio.gather(self._task, return_exceptions=True)

        self._thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
        self._thread.start()
        assert begun.wait(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(60)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    running = Running()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from launched()


@pytest.fixture
def new_page(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages."""
    yield from pages(browser)


@pytest.fixture(scope="module")
def reader(browser: Any, server: Running) -> Iterator[Page]:
    """One page, for one scenario after the other."""
    for opened in pages(browser):
        yield opened(server.address)


def pages(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages; their consoles must stay without errors."""
    errors: list[str] = []
    contexts: list[Any] = []

    def opened(address: str, **more: Any) -> Page:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **more}))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.wait_for_selector(".name")
        return page

    yield opened
    for context in contexts:
        context.close()
    expected = re.compile(r"WebSocket connection to|ERR_CONNECTION_REFUSED")
    assert not [error for error in errors if not expected.search(error)]


def where(page: Page) -> tuple[int, int]:
    """The step that is shown, and how many there are."""
    found = re.match(r"step (\d+) of (\d+)", page.text_content(".where"))
    assert found
    return int(found[1]), int(found[2])


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def grown(page: Page, action: Callable[[], Any]) -> int:
    """Do something that makes a live run longer; its new length."""
    before = page.text_content(".where")
    action()
    sync_api.expect(page.locator(".where")).not_to_have_text(before)
    return where(page)[1]


def picture(page: Page) -> str:
    """All panes, as a hash."""
    text = "".join(page.evaluate("names => names.map((name) => document.querySelector(name).innerHTML)", list(PANES)))
    return hashlib.sha256(text.encode()).hexdigest()


def settled(page: Page) -> None:
    """What a live world offers at this step is there."""
    page.keyboard.press("4")
    page.wait_for_selector("#tab-pane .enabled, #tab-pane .empty:not(:text-is('…'))")


# -- first sight --------------------------------------------------------------------------------------------------


def test_the_first_page_shows_the_scenarios_and_a_run(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    assert page.locator(".scenario").count() == len(scenarios())
    assert page.locator("g.arrow").count() > 3
    assert page.locator("[aria-current=true]").count() == 1
    assert "#scenario=" in page.url


def test_every_control_has_a_name(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    for tab in "1234":
        page.keyboard.press(tab)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, select, input, [role=button], [role=separator]")]
                 .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length))
                 .map((one) => one.outerHTML)"""
        )
        assert nameless == []


# -- scenarios ----------------------------------------------------------------------------------------------------


SOME = ("01-skeen", "05-leader-crash", "06b-join-toto", "09b-erratum-primcast", "10c-three-groups-signals-off")
"""A plain one, a crash, somebody new, a planted bug, the store. That all say and show what they state needs no browser:
`test_scenarios`."""


@pytest.mark.parametrize(
    "name", [name if name in SOME else pytest.param(name, marks=pytest.mark.full) for name in scenarios()]
)
def test_a_scenario_is_clicked_through(name: str, reader: Page) -> None:
    page = reader
    press(page, "Home", "ArrowRight")  # Elsewhere than a scenario opens: so its answer is seen to have come.
    page.click(f"[data-key='scenario-{name}']")
    sync_api.expect(page.locator(".where")).to_contain_text(f"step {find(name).at} of")
    sync_api.expect(page.locator(".current .scenario")).to_contain_text(described(name)["title"])
    page.wait_for_selector("li.current .note")
    press(page, "Home")
    steps = where(page)[1]
    assert steps > 0
    settled(page)
    page.keyboard.press("1")
    seen = []
    for step in range(1, min(steps, 5) + 1):
        seen.append(picture(page))
        page.keyboard.press("ArrowRight")
        assert where(page) == (step, steps)
        settled(page)
        page.keyboard.press("1")
    for before in reversed(seen):
        page.keyboard.press("ArrowLeft")
        assert picture(page) == before
    press(page, "End", "2")
    assert where(page) == (steps, steps)
    assert page.locator("li.current", has_text=described(name)["learned"][:40]).count() == 1
    assert page.locator(".order tbody tr").count() > 0
    page.keyboard.press("3")
    assert page.locator(".figures tbody tr").count() > 0


# -- acting -------------------------------------------------------------------------------------------------------


def test_any_protocol_is_set_up_and_delivers(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    page.click("#new-world")
    names = page.eval_on_selector_all("dialog.setup [data-key=protocol] option", "all => all.map((one) => one.value)")
    assert len(names) >= 8
    page.keyboard.press("Escape")
    for name in names:
        page.click("#new-world")
        page.select_option("dialog.setup [data-key=protocol]", name)
        page.click("#setup-start")
        sync_api.expect(page.locator("#title")).to_contain_text(name)
        page.keyboard.press("4")
        grown(page, lambda: page.click("#tab-pane .primary"))
        grown(page, lambda: page.keyboard.press("End"))
        page.keyboard.press("2")
        sync_api.expect(page.locator(".order .waiting")).to_have_count(0)
        assert page.locator(".order .chip").count() >= 2


def test_a_world_is_set_up_by_click(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    page.click("#new-world")
    page.select_option("dialog.setup [data-key=protocol]", "white_box")
    for key in ("add-group", "add-2", "add-senders", "remove-0"):
        page.click(f"dialog.setup [data-key={key}]")
    page.click("dialog.setup [data-key=clock-hybrid]")
    page.click("dialog.setup [data-key='delays-per link']")
    page.click("dialog.setup [data-key=add-link]")
    page.click("#setup-start")
    sync_api.expect(page.locator("g.name")).to_have_count(8)
    assert page.locator(".band").count() == 4
    page.click("#new-world")
    assert page.is_checked("dialog.setup [data-key=clock-hybrid]"), "the dialog begins with the world that is open"
    for process in (3, 4, 5):
        page.click(f"dialog.setup [data-key=remove-{process}]")
    page.fill("dialog.setup .number input >> nth=-1", "-5")
    assert page.locator("dialog.setup .row", has_text="group 1").count() == 0


def test_messages_arrive_and_processes_fail_by_click(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    page.click("#new-world")
    page.select_option("dialog.setup [data-key=protocol]", "white_box")
    page.click("#setup-start")
    sync_api.expect(page.locator("g.name")).to_have_count(6)
    page.click("g.name >> nth=1")
    page.uncheck(".menu input >> nth=1")
    grown(page, lambda: page.click(".menu .primary"))
    assert "to group 0" in page.text_content(".sentence")
    letter = page.locator("g.letter").first
    text = letter.get_attribute("aria-label")
    grown(page, lambda: letter.locator(".face").click())
    assert re.search(r"receives \w+ of m1 from process 1", page.text_content(".sentence")), text
    page.keyboard.press("4")
    for key, words in (
        ("crash-1", "crashes"), ("restart-1", "starts again"), ("pause-1", "paused"), ("resume-1", "goes on"),
        ("link-1-0", "cut"), ("link-1-0", "works again"), ("wait", "Time passes"),
    ):  # fmt: skip
        grown(page, lambda key=key: page.click(f"#tab-pane [data-key={key}]"))
        assert words in page.text_content(".sentence")
    assert page.locator(".mark.crash").count() == 1
    assert page.locator(".mark.life").count() == 1


def test_another_branch_replaces_what_came_and_the_browser_goes_back(
    server: Running, new_page: Callable[..., Page]
) -> None:
    page = new_page(f"{server.address}#scenario={next(iter(scenarios()))}")
    steps = where(page)[1]
    press(page, "Home", "ArrowRight", "4")
    page.wait_for_selector(".enabled")
    assert grown(page, lambda: page.click("#tab-pane [data-key='crash-0']")) == 2
    assert "#script=" in page.url
    page.go_back()
    sync_api.expect(page.locator(".where")).to_contain_text(f"of {steps}")


def test_the_address_reproduces_what_is_shown(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    press(page, "Home", "ArrowRight", "ArrowRight", "4")
    page.wait_for_selector(".enabled")
    grown(page, lambda: page.click("#tab-pane .enabled button >> nth=0"))
    press(page, "ArrowLeft")
    settled(page)
    other = new_page(page.url)
    settled(other)
    assert where(other) == where(page)
    assert picture(other) == picture(page)


def test_a_second_browser_is_a_second_world(server: Running, new_page: Callable[..., Page]) -> None:
    one, other = new_page(server.address), new_page(server.address)
    one.keyboard.press("4")
    one.wait_for_selector(".enabled, #tab-pane .primary:not(:disabled)")
    grown(one, lambda: one.click("#tab-pane .primary"))
    assert where(other)[1] == stage(scenarios()[next(iter(scenarios()))]).steps


# -- keys and views -----------------------------------------------------------------------------------------------


def test_keys(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    steps = where(page)[1]
    press(page, "End")
    assert where(page)[0] == steps
    press(page, "Home", "Shift+ArrowRight")
    assert where(page)[0] > 1
    assert "delivers" in page.text_content("#words")
    press(page, "Shift+ArrowLeft", "t")
    assert page.locator(".toggle", has_text="Axis: steps").count() == 1
    press(page, "f")
    assert page.locator("g.arrow.later").count() == 0
    press(page, "f")
    assert page.locator("g.arrow.later").count() > 0
    before = page.get_attribute("g.arrow.later .shaft >> nth=-1", "d")
    press(page, "+")
    assert page.get_attribute("g.arrow.later .shaft >> nth=-1", "d") != before
    press(page, "Home", " ")
    sync_api.expect(page.locator(".where")).to_contain_text(re.compile(r"step ([2-9]|\d\d)"))
    press(page, " ")
    assert page.get_attribute("#control-play", "aria-label") == "Play"
    press(page, "?")
    assert page.locator("dialog[open]", has_text="Keys").count() == 1


def test_a_multicast_is_highlighted_and_a_type_is_hidden(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    page.click("[data-key=legend-m1]")
    assert page.locator("g.arrow.dim").count() > 0
    assert page.locator("g.arrow:not(.dim)").count() > 0
    page.keyboard.press("Escape")
    assert page.locator("g.arrow.dim").count() == 0
    shown = page.locator("g.arrow").count()
    page.click(".type >> nth=0")
    assert page.locator("g.arrow").count() < shown


def test_panes_change_their_size_by_keyboard_and_mouse(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    before = page.locator(".side").bounding_box()["width"]
    page.focus(".splitter.vertical")
    press(page, "ArrowLeft", "ArrowLeft")
    wider = page.locator(".side").bounding_box()["width"]
    assert wider > before
    box = page.locator(".splitter.vertical").bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + 103, box["y"] + 300)
    page.mouse.up()
    assert page.locator(".side").bounding_box()["width"] < wider


def test_dark_and_light(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address, color_scheme="dark")
    paper = "getComputedStyle(document.querySelector('#words')).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != dark
    assert page.evaluate(paper) == "rgb(255, 255, 255)"


def test_the_diagram_is_saved_as_svg(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    press(page, "End")
    with page.expect_download() as download:
        page.click("#svg")
    text = Path(download.value.path()).read_text()
    shafts = ET.fromstring(text).findall(".//{*}g/{*}path[@stroke][@fill='none']")
    assert len(shafts) >= page.locator("g.arrow").count()
    assert len({shaft.get("stroke") for shaft in shafts}) > 1, "the colours are those of the multicasts"
    assert "var(" not in text, "it needs no style sheet"
    before = picture(page)
    whole = page.evaluate("visual.svg({ whole: true })")
    assert whole.count("<path") > 0 and picture(page) == before


# -- runs that fail -----------------------------------------------------------------------------------------------


def test_a_planted_bug_is_seen_in_red_with_its_witnesses(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(server.address)
    page.click("#open")
    page.select_option("dialog[open] [name=protocol]", "skeen")
    page.fill("dialog[open] [name=bug]", "FinalTooEarly")
    page.click("dialog[open] .primary")
    sync_api.expect(page.locator("#title .alarm")).to_be_visible()
    assert page.locator("#words .violation").count() >= 1, "it opens at the violation"
    press(page, "2")
    assert page.locator(".order td.wrong").count() >= 1
    assert page.locator(".verdict.bad .witnesses .chip").count() >= 1
    assert page.locator(".verdict.bad .witness").all_text_contents() == ["p0", "p1"]
    assert page.locator(".mark.violation:not(.later)").count() >= 1
    assert page.locator("g.arrow:not(.later)").count() >= 1, "the events that led to it"
    press(page, "Home")
    assert page.locator(".verdict.good .later").count() == 1
    press(page, "v")
    assert page.locator(".verdict.bad").count() == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "empty"), ("hello", "not JSON"), ('{"trace": 99, "groups": {}}', "format 99"), ("{}", "Line 1")],
)
def test_a_bad_trace_is_a_sentence_and_the_run_stays(
    text: str, words: str, server: Running, new_page: Callable[..., Page], tmp_path: Path
) -> None:
    page = new_page(server.address)
    before = page.text_content("#title")
    file = tmp_path / "run.jsonl"
    file.write_text(text)
    page.click("#open")
    page.set_input_files("#trace-file", file)
    sync_api.expect(page.locator("dialog[open] .problem")).to_contain_text(words)
    page.keyboard.press("Escape")
    assert page.text_content("#title") == before


def test_an_address_that_means_nothing_is_a_sentence(server: Running, new_page: Callable[..., Page]) -> None:
    page = new_page(f"{server.address}#script=abc")
    sync_api.expect(page.locator(".toast")).to_contain_text("damaged")
    assert page.locator("g.arrow").count() > 0


def test_a_lost_connection_keeps_the_run(new_page: Callable[..., Page]) -> None:
    server = Running()
    page = new_page(server.address)
    press(page, "Home", "ArrowRight")
    server.stop()
    sync_api.expect(page.locator("#banner")).to_be_visible()
    press(page, "ArrowRight", "4")
    assert where(page)[0] == 2
    assert page.locator("#tab-pane .primary").is_disabled()
    page.click("#reconnect")
    sync_api.expect(page.locator("#banner")).to_contain_text("does not answer")
    server.start()
    page.click("#reconnect")
    sync_api.expect(page.locator("#banner")).to_be_hidden()
    assert where(page)[0] == 2
    grown(page, lambda: page.click("#tab-pane .primary"))
    server.stop()


# -- one file -----------------------------------------------------------------------------------------------------


def exported(name: str) -> str:
    recording = stage(scenarios()[name]).recording()
    return single_page({**recording, "scenario": described(name)}, described(name)["title"])


def test_an_exported_file_works_without_a_server(new_page: Callable[..., Page], tmp_path: Path) -> None:
    name = next(iter(scenarios()))
    file = tmp_path / "page.html"
    file.write_text(exported(name))
    page = new_page(file.as_uri(), offline=True)
    steps = where(page)[1]
    before = picture(page)
    press(page, *["ArrowRight"] * steps)
    assert where(page) == (steps, steps)
    assert page.locator("li.current", has_text=described(name)["learned"][:40]).count() == 1
    press(page, *["ArrowLeft"] * steps)
    assert picture(page) == before
    press(page, "4")
    assert "recording" in page.text_content("#tab-pane")


def test_what_is_recorded_cannot_become_part_of_the_page() -> None:
    text = "</script><script>alert(1)</script><!--"
    page = single_page({"header": {"title": text}, "lines": [], "steps": 0}, text)
    assert text not in page
    data = re.search(r'<script type="application/json" id="recording">(.*?)</script>', page)
    assert data and json.loads(data[1])["header"]["title"] == text


def test_every_module_is_in_the_exported_file() -> None:
    script = joined("main.js")
    for module in PAGE.glob("*.js"):
        if module.name != "d3.min.js":
            assert f"module_{module.stem} = " in script
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


# -- long runs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [2_500, pytest.param(10_000, marks=pytest.mark.full)])
def test_thousands_of_events_stay_usable(
    new_page: Callable[..., Page], tmp_path: Path, capsys: pytest.CaptureFixture[str], events: int
) -> None:
    messages = events // 110
    recording = play(Run(protocol="white_box", seed=3, profile="calm", groups=3, replicas=3, messages=messages))
    lines = recording["lines"][:events]
    assert len(lines) == events
    file = tmp_path / "long.html"
    file.write_text(single_page({**recording, "lines": lines, "steps": lines[-1]["s"], "violations": []}, "long"))
    page = new_page(file.as_uri())
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        """Seconds of processor time of the page's thread; nobody else's work counts."""
        found = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in found if one["name"] == "ThreadTime"))

    before = spent()
    page.reload()
    page.wait_for_selector(".name")
    first = spent() - before
    middle = lines[-1]["s"] // 2
    costs = []
    for step in (middle, *range(middle, middle + 10), middle, 10, lines[-1]["s"], middle):
        before = spent()
        page.evaluate("step => { visual.app.go(step); document.body.offsetHeight; }", step)
        costs.append(1000 * (spent() - before))
    costs.sort()
    with capsys.disabled():
        middle_cost = costs[len(costs) // 2]
        print(f" [processor time: first picture {first:.2f} s, step {middle_cost:.0f} ms, worst {costs[-1]:.0f} ms]")
    assert page.locator("g.arrow").count() < 1_000, "only what is in the window is drawn"
    page.evaluate("step => visual.app.go(step)", middle)
    changes = page.evaluate(
        """step => {
             const observer = new MutationObserver(() => {});
             observer.observe(document.body, { subtree: true, childList: true, attributes: true });
             visual.app.go(step);
             return observer.takeRecords().length;
           }""",
        middle + 1,
    )
    assert changes < CHANGES_OF_A_STEP_MAX, "a step changes what it is about"
