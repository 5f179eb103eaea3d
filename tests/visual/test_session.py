"""A live world does what its script says, goes back, and says what may happen next."""

from __future__ import annotations

import random
from typing import Any

import pytest

from multicast import registry
from multicast.simulation.trace import apply_patch
from multicast.visual.answers import User
from multicast.visual.setup import Problem, default_setup, plain


def opened(protocol: str, **more: Any) -> tuple[User, dict[str, Any]]:
    user = User()
    setup = {**plain(default_setup(registry.load(protocol))), **more}
    return user, user.answer({"op": "open", "setup": setup})


def run(user: User, at: int, until: str = "end") -> dict[str, Any]:
    return user.answer({"op": "run", "at": at, "until": until})


def do(user: User, at: int, *actions: list[Any]) -> dict[str, Any]:
    return user.answer({"op": "do", "at": at, "actions": list(actions)})


def deliveries(recording: dict[str, Any]) -> list[tuple[int, str, int]]:
    """(process, message, t)."""
    lines = [line for line in recording["lines"] if line["event"] == "delivery"]
    return [(line["process"], line["message"], line["t"]) for line in lines if line["stage"] == 2]


def whole(user: User) -> dict[str, Any]:
    """Everything that is open now."""
    assert user._open is not None
    return user._open.recording()


@pytest.mark.parametrize("name", registry.names())
def test_a_multicast_is_delivered_everywhere_and_a_link_to_it_shows_the_same(name: str) -> None:
    user, answer = opened(name)
    assert answer["live"] and answer["at"] == 0 and answer["recording"]["steps"] == 0
    do(user, 0, ["multicast", 0, [0, 1]])
    grown = run(user, 1)
    recording = whole(user)
    assert recording["violations"] == []
    everybody = {p for members in recording["header"]["groups"].values() for p in members}
    assert {(process, message) for process, message, _ in deliveries(recording)} == {(p, "m1") for p in everybody}
    again = User().answer({"op": "open", "fragment": "#" + grown["fragment"]})
    assert again["recording"] == recording
    assert (again["enabled"], again["links"]) == (grown["enabled"], grown["links"])


def test_every_step_has_a_line_with_its_action_and_states_follow_from_what_changed() -> None:
    user, _ = opened("white_box")
    do(user, 0, ["multicast", 0, [0, 1]])
    grown = run(user, 1)
    recording = whole(user)
    firsts = {line["s"]: line["action"] for line in reversed(recording["lines"]) if "action" in line}
    assert sorted(firsts) == list(range(1, grown["steps"] + 1))
    assert [line["n"] for line in recording["lines"]] == list(range(1, len(recording["lines"]) + 1))
    states: dict[int, Any] = {}
    for line in recording["lines"]:
        if "changed" in line:
            states[line["process"]] = apply_patch(states.get(line["process"], {}), line["changed"])
    assert {state["messages"]["m1"]["phase"] for state in states.values()} == {"delivered"}


def test_arrivals_name_the_line_that_told_that_they_left() -> None:
    user, _ = opened("white_box")
    do(user, 0, ["multicast", 0, [0, 1]])
    run(user, 1)
    lines = {line["n"]: line for line in whole(user)["lines"]}
    arrivals = [line for line in lines.values() if line["event"] == "arrival" and line["from"] != line["process"]]
    assert arrivals
    for line in arrivals:
        left = lines[line["of"]]
        assert (left["event"], left["process"], left["type"]) == ("leave", line["from"], line["message"]["type"])
        assert line["process"] in left["to"]


def test_going_back_and_doing_something_else_leaves_no_trace_of_what_was() -> None:
    user, _ = opened("skeen")
    do(user, 0, ["multicast", 0, [0, 1]], ["multicast", 1, [0, 1]])
    run(user, 2)
    grown = do(user, 1, ["arrive", 0, 1])
    fresh, _ = opened("skeen")
    do(fresh, 0, ["multicast", 0, [0, 1]], ["arrive", 0, 1])
    assert whole(user) == whole(fresh)
    assert (grown["from"], grown["steps"]) == (2, 2)
    assert all(line["s"] == 2 for line in grown["lines"])
    assert user.answer({"op": "look", "at": 1})["links"][0]["queue"][0]["about"] == ["m1"]


def test_what_cannot_be_done_is_one_sentence_and_changes_nothing() -> None:
    user, _ = opened("skeen")
    do(user, 0, ["multicast", 0, [0, 1]])
    before = whole(user)
    for actions in (
        [["crash", 1], ["arrive", 0, 1]], [["restart", 1]], [["arrive", 1, 0]], [["mend", 0, 1]], [["lose_disk", 1]],
        [["crash", 7]], [["multicast", 0, [9]]], [["fly", 0]], [["arrive", 0]], "all", [["multicast", 0, []]],
    ):  # fmt: skip
        with pytest.raises(Problem, match=r"^[A-Z\[].*\.$"):
            user.answer({"op": "do", "at": 1, "actions": actions})
    with pytest.raises(Problem, match=r"There is no step 5; there are 1\."):
        user.answer({"op": "run", "at": 5})
    assert whole(user) == before


def test_time_passes_by_the_delays_of_the_links() -> None:
    delays = {"kind": "links", "us": 1_000, "links": [[0, 1, 5_000]]}
    user, _ = opened("skeen", delays=delays)
    do(user, 0, ["multicast", 0, [0, 1]])
    run(user, 1)
    assert deliveries(whole(user)) == [(1, "m1", 5_000), (0, "m1", 6_000)]


def test_nothing_arrives_on_a_cut_link_until_it_is_mended() -> None:
    user, _ = opened("skeen")
    do(user, 0, ["cut", 0, 1], ["multicast", 0, [0, 1]])
    assert run(user, 2)["enabled"] != []
    assert deliveries(whole(user)) == []
    with pytest.raises(Problem, match="is cut"):
        do(user, 2, ["arrive", 0, 1])
    do(user, 2, ["mend", 0, 1])
    run(user, 3)
    assert {message for _, message, _ in deliveries(whole(user))} == {"m1"}


def test_what_reaches_a_paused_process_waits_and_is_one_batch_when_it_resumes() -> None:
    user, _ = opened("skeen")
    do(user, 0, ["multicast", 0, [0, 1]], ["multicast", 0, [0, 1]], ["pause", 1], ["arrive", 0, 1], ["arrive", 0, 1])
    events = [line["event"] for line in whole(user)["lines"] if line.get("process") == 1 and line["s"] > 3]
    assert events == ["waiting", "waiting"]
    grown = do(user, 5, ["resume", 1])
    arrived = [line["message"]["type"] for line in grown["lines"] if line["event"] == "arrival" and line["from"] == 0]
    left = [line["type"] for line in grown["lines"] if line["event"] == "leave"]
    assert (arrived, left) == (["Multicast", "Propose"], ["Propose"])


def test_a_crash_loses_what_the_disk_had_not_synced() -> None:
    user, _ = opened("skeen", fsync_us=500)
    do(user, 0, ["multicast", 0, [0, 1]], ["arrive", 0, 1])
    assert whole(user)["lines"][-1]["event"] != "flush"
    do(user, 2, ["crash", 1], ["restart", 1])
    state = [line["changed"] for line in whole(user)["lines"] if line["event"] == "start" and line["s"] == 4]
    assert state[0]["messages"] == {}
    do(user, 2, ["sync", 1], ["crash", 1], ["restart", 1])
    state = [line["changed"] for line in whole(user)["lines"] if line["event"] == "start" and line["s"] == 5]
    assert state[0]["messages"]["m1"]["phase"] == "proposed"


def test_what_was_sent_to_a_process_that_died_reaches_its_next_life() -> None:
    user, _ = opened("skeen")
    do(user, 0, ["multicast", 0, [0, 1]], ["crash", 1], ["multicast", 0, [1]], ["restart", 1], ["arrive", 0, 1])
    arrived = [line["message"] for line in whole(user)["lines"] if line["event"] == "arrival" and line["s"] == 5]
    assert arrived[0] == {"type": "Multicast", "message": "m1"}


def test_a_lost_disk_comes_back_through_the_group() -> None:
    user, _ = opened("white_box")
    do(user, 0, ["multicast", 0, [0, 1]])
    steps = run(user, 1)["steps"]
    steps = do(user, steps, ["lose_disk", 2], ["restart", 2])["steps"]
    steps = run(user, steps)["steps"]
    steps = do(user, steps, ["multicast", 2, [0]])["steps"]
    run(user, steps)
    recording = whole(user)
    assert [m for p, m, _ in deliveries(recording) if p == 2] == ["m1", "m1", "m2"]
    assert recording["violations"] == []


def test_one_process_of_a_group_at_a_time_may_lose_its_disk() -> None:
    user, _ = opened("white_box")
    do(user, 0, ["multicast", 0, [0, 1]], ["lose_disk", 2])
    with pytest.raises(Problem, match="Process 2 lost its disk and is no member again yet"):
        do(user, 2, ["lose_disk", 1])
    do(user, 2, ["lose_disk", 3], ["restart", 2])
    steps = run(user, 4)["steps"]
    assert do(user, steps, ["lose_disk", 1])["violations"] == []


def test_an_outside_sender_multicasts_to_groups_that_it_is_not_in() -> None:
    user, answer = opened("white_box", senders=[100])
    assert answer["recording"]["header"]["senders"] == [100]
    do(user, 0, ["multicast", 100, [0, 1]])
    run(user, 1)
    assert {p for p, _, _ in deliveries(whole(user))} == {0, 1, 2, 3, 4, 5}


def test_a_hybrid_clock_takes_the_offset_of_its_process() -> None:
    user, _ = opened("skeen", clock="hybrid", clock_offsets_us={"1": 70_000_000})
    do(user, 0, ["multicast", 0, [0, 1]])
    run(user, 1)
    finals = [line["at"] for line in whole(user)["lines"] if line["event"] == "delivery"]
    begin = whole(user)["header"]["epoch_us"]
    assert all(at[0] - begin > 69_000_000 for at in finals) and len(finals) == 2


@pytest.mark.parametrize("name", registry.names())
def test_whatever_one_does_a_correct_protocol_violates_nothing_and_the_link_shows_the_same(name: str) -> None:
    rng = random.Random(f"anything/{name}")
    user, grown = opened(name, seed=3, fsync_us=300, delays={"kind": "drawn", "low_us": 100, "high_us": 5_000})
    processes = [p for members in grown["recording"]["header"]["groups"].values() for p in members]
    at = 0
    for _ in range(120):
        chance, some = rng.random(), rng.choice(processes)
        action = (
            ["multicast", some, [0, 1]] if chance < 0.1
            else [rng.choice(("crash", "pause")), some] if chance < 0.13
            else [rng.choice(("restart", "resume")), some] if chance < 0.2
            else [rng.choice(("cut", "mend")), *rng.sample(processes, 2)] if chance < 0.24
            else rng.choice(grown["enabled"])["action"] if chance < 0.7 and grown.get("enabled")
            else None
        )  # fmt: skip
        try:
            grown = run(user, at, "step") if action is None else do(user, at, action)
        except Problem:
            continue
        assert grown["violations"] == [], action
        at = grown["steps"]
    assert at > 30
    assert User().answer({"op": "open", "fragment": "#" + grown["fragment"]})["recording"] == whole(user)
