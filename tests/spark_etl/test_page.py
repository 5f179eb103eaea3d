"""The page and its drawings: complete, well-formed, and nothing of a run is taken for markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import spark_etl
from spark_etl import names
from spark_etl.blackbox.compare import public_name
from spark_etl.blackbox.history import read
from spark_etl.blackbox.judge import judge
from spark_etl.blackbox.report import HistoriesReport, HistoryReport
from spark_etl.page import drawing, parts, summary
from spark_etl.page import histories as histories_page
from spark_etl.page import run as run_page
from spark_etl.page.style import STYLE
from spark_etl.report import (
    Course,
    Edge,
    Evidence,
    Life,
    ModelVerdict,
    Operation,
    Point,
    Property,
    Report,
    Violation,
    from_json,
    to_json,
    visible,
)

NASTY = "<script>alert(1)</script>\"'&\u202e\x00</svg>"
_VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Every element must be closed; elements, attributes and text are counted."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def cycle(count: int, key: str = "k") -> Violation:
    operations = [Operation(f"id-{n}", "inc", f"{n}-1") for n in range(count)]
    edges = [Edge(n, (n + 1) % count, "rw", key, f"sentence {n}") for n in range(count)]
    steps = [edge.sentence for edge in edges]
    return Violation("G-single", "a circle", steps=steps, operations=operations, edges=edges)


def report(*violations: Violation, run: str = "run", verdict: str = "violated") -> Report:
    lives = [Life(3, 1, 0.0, 12.0, "crashed"), Life(3, 1, 22.0, 30.0, "stopped"), Life(0, 0, 0.0, 30.0, "stopped")]
    points = [Point(second / 2, 10 + second % 7, second % 2, 1.5, 20.0, 3000.0) for second in range(60)]
    course = Course(0.5, points, {0: points, 3: points[:20]}, lives)
    prop = Property("serializability", verdict, 1234, 0.5, len(violations), list(violations))
    models = [ModelVerdict(prefix + "serializable", "violated") for prefix in ("", "strong-session-", "strong-")]
    return Report(
        run, [prop, Property("integrity", "valid", 7, 0.1)], [], [], {"replicas": 6}, 1.5, course, models=models
    )


def test_the_page_needs_nothing_else():
    page = Page(run_page.page(report(cycle(3))))
    links = [value for name, value in page.attributes if name in ("src", "href") and value]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert page.tags.count("style") == page.tags.count("script") == 1


def test_the_summary_says_it_all_and_every_property_has_its_section():
    whole = report(cycle(3))
    page = Page(run_page.page(whole))
    assert "✗ violated" in page.text and "1 found" in page.text
    for number, prop in enumerate(whole.properties):
        assert ("id", f"p{number}") in page.attributes and ("href", f"#p{number}") in page.attributes
        assert prop.name in page.text and names.GUARANTEES[prop.name] in page.text


def test_one_line_says_what_was_judged_and_operators_are_told_gaps_and_recovery():
    whole = report(cycle(3))
    line = summary.judged(whole)
    assert line.startswith("804 operations of clients, in 30 s, 6 replicas of 0 shards, killed replica 3, ")
    assert line.endswith("something did not hold")
    whole.course.lives += [Life(3, 1, 30.0, 31.0, "crashed"), Life(3, 1, 32.0, 33.0, "crashed")]
    whole.course.lives.append(Life(5, 1, 0.0, 30.0, "crashed"))
    whole.input |= {"protocol": "skeen", "durability": "os", "audited by": "this 1.0"}
    said = "skeen, durability os, killed replica 3 (2 times), not stopped replicas 3 5, audited by this 1.0, "
    assert said in summary.judged(whole)
    del whole.course.lives[3:]
    told = summary.operators(whole.course)
    assert told["answers a second"] == "26" and told["longest time without an answer"] == "less than a slice"
    assert told["p99, worst slice"] == "20 ms" and told["answers after a crash, at most"] == "0 s"
    whole.course.operations = [p for p in whole.course.operations if not 12.0 <= p.second < 15.0]
    told = summary.operators(whole.course)
    assert told["longest time without an answer"] == told["answers after a crash, at most"] == "3 s"


def test_what_holds_is_folded_and_transactions_of_a_cycle_have_short_names():
    one = cycle(3)
    times = ("was answered at 1912.500000 s", "was invoked at 1913.000000 s")
    one.steps[0] = f"rt: inc id-0 (version 0-1) {times[0]}, before inc id-1 (version 1-1) {times[1]}"
    one.steps[1] = 'rw: id-1 read the key "12.000000 s"'
    whole = report(one)
    page = Page(run_page.page(whole))
    assert "rt: T1 was answered at +0.000000 s, before T2 was invoked at +0.500000 s" in page.text
    assert '"12.000000 s"' in page.text and "T1: inc" in page.text
    one.evidence = [Evidence("history/a.jsonl", "it", line=1), Evidence("history/b.jsonl", "it", line=1)]
    assert times[0] in Page(run_page.page(whole)).text, "there is no one beginning of two clocks"
    one.evidence = []
    assert page.text.count("id-0"), "the drawing names it in full"
    assert run_page.page(whole).count("<details><summary><h2>") == 1, "integrity holds"


def test_a_tile_says_why_it_is_grey():
    whole = report()
    whole.properties.append(Property("set", "not applicable", 0, 0.0, note="no set_read in <it>"))
    tile = run_page.page(whole).split('class="card none"')[1].split("</a>")[0]
    assert "<span>no set_read in &lt;it&gt;</span>" in tile


def test_of_a_long_cycle_the_beginning_and_the_end_are_shown():
    long = cycle(300)
    page = Page(run_page.page(report(long)))
    assert "sentence 0" in page.text and "sentence 299" in page.text and "sentence 150" not in page.text
    assert "… and 276 more, in the JSON" in page.text


def test_nothing_from_a_run_is_markup():
    good = cycle(2)
    good.evidence = [Evidence("a file", "a record", line=1)]
    plain = Page(run_page.page(report(good)))
    bad = cycle(2, NASTY)
    bad.name = bad.sentence = bad.steps[0] = bad.edges[0].sentence = NASTY
    bad.operations[0] = Operation(NASTY, NASTY, NASTY)
    bad.evidence = [Evidence(NASTY, NASTY, line=1)]
    whole = report(bad, run=NASTY)
    whole.problems, whole.notes, whole.input["protocol"] = [NASTY], [NASTY], NASTY
    whole.properties[0].note = NASTY
    page = Page(run_page.page(whole))
    assert page.tags.count("script") == plain.tags.count("script")
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    assert "<script>alert(1)</script>\"'&\\u202e\\u0000</svg>" in page.text
    assert "\u202e" not in run_page.page(whole) and "\x00" not in run_page.page(whole)


@pytest.mark.parametrize("count", [2, 3, 4, 9, drawing.OPERATIONS_MAX])
def test_a_cycle_has_a_box_per_operation_and_an_arrow_per_edge(count: int):
    violation = cycle(count)
    svg = drawing.cycle(violation.operations, violation.edges)
    page = Page(svg)
    assert page.tags.count("rect") == count and svg.count("marker-end") == count
    wide, high = (float(n) for n in re.findall(r"viewBox=\"0 0 (\d+) (\d+)\"", svg)[0])
    found = re.findall(r'x="([\d.-]+)" y="([\d.-]+)" width="(\d+)" height="(\d+)"', svg)
    boxes = [tuple(map(float, box)) for box in found]
    for n, (x, y, width, height) in enumerate(boxes):
        assert x >= 0 and x + width <= wide and y >= 0 and y + height <= high
        assert all(abs(x - a) >= width or abs(y - b) >= height for a, b, _, _ in boxes[:n])  # none covers another
    for n in range(count):
        assert f"{n + 1} rw k" in page.text and f"sentence {n}" in page.text


def test_a_cycle_too_long_to_draw_is_told():
    violation = cycle(drawing.OPERATIONS_MAX + 1)
    assert "25 operations, too many" in drawing.cycle(violation.operations, violation.edges)


def test_failures_are_marked_in_every_chart():
    charts = drawing.course(report().course)
    expected = ("Operations answered per second", "Latency of answers", "Delivery lag", "Lives of the replicas")
    assert [title.startswith(name) for (title, _), name in zip(charts, expected, strict=True)] == [True] * 4
    for _, svg in charts[:3]:
        assert ">3 gone<" in svg and ">3 back<" in svg
        assert "replica 3 gone at 12 s, replica 3 back at 22 s" in re.findall(r'aria-label="([^"]*)"', svg)[0]
    assert charts[3][1].count('class="bar"') == 3 and charts[3][1].count('class="gone"') == 1


def test_a_run_without_clients_or_without_anything_has_fewer_charts():
    course = report().course
    course.operations = []
    assert drawing.course(course)[0][0] == "Deliveries per second, all replicas"
    assert drawing.course(Course()) == []


def test_a_run_of_microseconds_or_of_days_has_times_to_read():
    for slice_seconds, tick, lag in ((1e-6, "40 µs", "2 ms"), (3600.0, "40 h", "2 ms")):
        points = [Point(n * slice_seconds, 1, 0, 2.0, 20.0, 30.0) for n in range(60)]
        lives = [Life(0, 0, 0.0, 60 * slice_seconds, "stopped")]
        charts = drawing.course(Course(slice_seconds, points, {0: points}, lives))
        assert len(charts) == 4 and all(f">{tick}<" in svg for _, svg in charts)
        assert f"between {lag} and {lag}" in charts[1][1]


def test_a_clock_that_is_far_off_makes_the_page_no_larger():
    course = report().course
    usual = len("".join(svg for _, svg in drawing.course(course)))
    course.operations.append(Point(1e12, 1, 0, 2.0, 20.0, 30.0))
    charts = dict(drawing.course(course))
    assert len("".join(charts.values())) < 2 * usual
    (line,) = re.findall(r'<polyline class="one" points="([^"]*)"', charts[next(iter(charts))])
    *_, gone, still_gone, wrong = line.split()
    assert gone.split(",")[1] == still_gone.split(",")[1] > wrong.split(",")[1], "nothing was answered in between"


def test_many_replicas_and_crashes_are_drawn_or_counted():
    lives = [Life(n, n // 10, 0.1 * at, 0.1 * at + 0.05, "crashed") for n in range(70) for at in range(5)]
    course = Course(0.1, [Point(0.1 * n, 1) for n in range(6)], {}, lives)
    charts = dict(drawing.course(course))
    assert "and 6 more replicas" in charts["Lives of the replicas, as shard: replica"]
    rate = charts["Operations answered per second"]
    assert rate.count('class="died"') + rate.count('class="born"') == 400
    named = [float(x) for x in re.findall(r'<text x="([\d.]+)"[^>]*class="(?:died|born)text"', rate)]
    assert 2 <= len(named) <= 12 and all(b - a >= 40 for a, b in pairwise(named))


def test_a_long_text_is_cut_and_what_steers_a_terminal_is_told():
    assert visible("k" * 1_000_000).endswith("k… (1,000,000 characters)") and len(visible("k" * 10**6)) < 2100
    assert visible("\x1b[31mred\x07\u202e\u2066\ud800") == "\\u001b[31mred\\u0007\\u202e\\u2066\\ud800"
    assert parts.esc("key \u05d0\u05d1: 12") == "key <bdi>\u05d0\u05d1</bdi>: 12"
    whole = report(cycle(2, "k" * 1_000_000))
    whole.properties[0].examples[0].keys = ["k" * 1_000_000]
    assert len(run_page.page(whole)) < 100_000


def test_who_cannot_see_it_is_told():
    bad = cycle(3)
    bad.evidence = [Evidence("f", "text", byte=7)]
    text = run_page.page(report(bad, cycle(4)))
    page = Page(text)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    pictures = re.findall(r"<svg [^>]*>", text)
    assert len(pictures) == 7 and all('aria-label="' in one or 'aria-hidden="true"' in one for one in pictures)
    assert text.count("<th ") == text.count("<th scope=")


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_stands_out_from_what_is_behind_it(scheme: int):
    """A contrast of at least 4.5 to 1 (WCAG 2.1, 1.4.3), light and dark."""
    part = STYLE.split("@media (prefers-color-scheme:dark)")[scheme].split("}}")[0]
    colours = dict(re.findall(r"--(\w+):#(\w+)", part))
    pairs = [(text, "card") for text in ("fg", "dim", "a", "bad", "open", "good", "wait", "none")]
    pairs += [("good", "goodbg"), ("bad", "badbg"), ("open", "openbg"), ("wait", "waitbg")]
    pairs += [("dim", "badbg"), ("a", "badbg")]
    for text, behind in pairs:
        one, other = sorted((luminance(colours[text]), luminance(colours[behind])), reverse=True)
        assert (one + 0.05) / (other + 0.05) >= 4.5, (text, behind)


def luminance(colour: str) -> float:
    """WCAG 2.1, relative luminance."""
    digits = colour if len(colour) == 6 else "".join(c * 2 for c in colour)
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_names_and_their_meanings_are_those_of_the_readme():
    text = (Path(spark_etl.__file__).parent / "README.md").read_text()
    section = text.split("## Names\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")]
    said = {name: row[2] for row in rows[1:] for name in re.findall(r"`([\w-]+)`", row[1])}
    for name in names.CYCLES:
        assert said.pop(name)
    assert said.pop("-realtime") and said == names.VIOLATIONS
    assert [row[0] for row in rows[1:] if row[0]] == list(names.GUARANTEES)
    second = text.split("| anomaly | means |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in second.splitlines() if line.startswith("| ")]
    assert {*re.findall(r"`([\w-]+)`", "".join(first))} == {*names.ANOMALIES, *names.CYCLES, "-process", "-realtime"}


def test_a_page_of_histories_draws_every_cycle_and_shows_the_lines(tmp_path: Path):
    files = {path.name: path for path in sorted((Path(__file__).parent / "histories").glob("*.jsonl"))}
    judged = [history_report(name, path) for name, path in files.items()]
    whole = HistoriesReport(str(tmp_path), judged, 1.0)
    text = histories_page.page(whole, files)
    Page(text)
    cycles = [a for one in judged for a in one.anomalies if a.steps and a.edges]
    assert len(cycles) >= 10 and text.count("marker-end") == sum(len(a.steps) for a in cycles)
    assert all(f">{one.history}<" in text for one in judged)
    one = next(one for one in judged if one.anomalies)
    alone = histories_page.page(HistoriesReport("h", [one], 1.0, directory=False), files)
    number = one.anomalies[0].transactions[0]
    line = files[one.history].read_text().splitlines()[number]
    assert f"{one.history}, line {number + 1}</code></td><td>{parts.esc(f'T{number}: {line}')}" in alone
    assert one.anomalies[0].text in Page(alone).text
    broken = next(one for one in judged if any(guarantee.violations for guarantee in one.sessions.values()))
    found = next(guarantee for guarantee in broken.sessions.values() if guarantee.violations)
    assert f"<code>{found.violations[0].name}</code>" in text and found.violations[0].text in Page(text).text


def history_report(name: str, path: Path) -> HistoryReport:
    judgement = judge(read(path))
    return HistoryReport(
        name, "", judgement.transactions, public_name(judgement.asked), judgement.models[judgement.asked].verdict,
        [public_name(m) for m in judgement.strongest], judgement.anomalies,
        {public_name(m): v for m, v in judgement.models.items()}, judgement.sessions,
    )  # fmt: skip


def test_a_history_with_markup_in_it_stays_text(tmp_path: Path):
    path = tmp_path / "<b>.jsonl"
    write = {"process": 0, "type": "ok", "invoke": 0, "complete": 1, "ops": [["append", NASTY, 1]]}
    skipped = {"process": 0, "type": "ok", "invoke": 2, "complete": 3, "ops": [["r", NASTY, []]]}
    path.write_text(json.dumps(write) + "\n" + json.dumps(skipped) + "\n")
    one = history_report(path.name, path)
    page = Page(histories_page.page(HistoriesReport(path.name, [one], 1.0, directory=False), {path.name: path}))
    assert one.verdict == "violated" and page.tags.count("script") == 1 and "b" in page.tags
    assert "<b>.jsonl, line 1" in page.text and "alert(1)" in page.text


def test_a_report_comes_back_as_it_was():
    whole = report(cycle(3))
    assert from_json(to_json(whole), "r") == whole
    for data in (b"{", b"[]", b'{"version":99}'):
        with pytest.raises(ValueError, match=r"^r: "):
            from_json(data, "r")
