"""Every scenario's script runs to its stated end, and that end is no empty statement."""

from __future__ import annotations

import msgspec
import pytest

from multicast.visual.answers import User
from multicast.visual.scenario import Scenario, missed, record, scenarios


@pytest.mark.parametrize("name", scenarios())
def test_it_ends_as_stated(name: str) -> None:
    answer = User().answer({"op": "open", "fragment": f"#scenario={name}"})
    assert missed(scenarios()[name], answer["recording"]) == []
    assert answer["fragment"] == f"scenario={name}"
    assert answer["scenario"]["id"] == name and 0 <= answer["at"] <= answer["recording"]["steps"]


@pytest.mark.parametrize("name", scenarios())
def test_it_says_what_to_look_at_and_what_to_learn(name: str) -> None:
    one = scenarios()[name]
    assert min(len(text.split()) for text in (one.text, one.watch, one.learned)) > 10
    assert one.title and one.end and [one.setup, one.run, one.schedule].count(None) == 2


def test_an_end_that_does_not_come_is_missed() -> None:
    one = scenarios()["01-skeen"]
    wrong = (
        ("delivers", 0, ["m2"]), ("latency", "m1", 0, 3.0), ("waits", 0, "m1", "anything"),
        ("phase", 0, "m1", "proposed"), ("is", 0, "role", "leader"), ("line", {"event": "crash"}),
        ("violation", "order"),
    )  # fmt: skip
    changed: Scenario = msgspec.structs.replace(one, end=wrong)
    assert len(missed(changed, record(one))) == len(wrong)


def test_ten_chapters_are_there() -> None:
    assert sorted({one.chapter for one in scenarios().values()}) == list(range(1, 11))
