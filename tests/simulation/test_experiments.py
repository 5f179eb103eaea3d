"""The papers' experiments: points are reproducible, claims are judged by their criteria, and results are written."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from multicast.simulation.commands import experiments
from multicast.simulation.experiments import figures
from multicast.simulation.experiments.calibrate import RECORDED, calibrate
from multicast.simulation.experiments.claims import CLAIMS, Claim, ahead, judge, saturates_first
from multicast.simulation.experiments.deployments import COLOCATED, DISTRIBUTED, LAN
from multicast.simulation.experiments.figures import (
    EARLY,
    FASTCAST,
    HYBRID,
    PRIMCAST,
    WHITE_BOX,
    Figure,
    Panel,
    Results,
)
from multicast.simulation.experiments.load import ALONE, Measured, Point, Variant, measure, quantile
from multicast.simulation.experiments.recovery import recover
from multicast.simulation.network import Cpu
from tests.simulation.conftest import Done


def point(variant: Variant, **changes: Any) -> Point:
    values: dict[str, Any] = {
        "deployment": DISTRIBUTED, "groups": 3, "destinations": 2, "outstanding": ALONE, "samples": 40,
        "cpu": RECORDED, "seed": 5, **changes,
    }  # fmt: skip
    return Point(variant=variant, **values)


@pytest.fixture(scope="module")
def distributed() -> Results:
    """Messages alone, with leaders 45 ms apart."""
    return Results([measure(point(variant)) for variant in (PRIMCAST, WHITE_BOX, EARLY)])


# -- points ------------------------------------------------------------------------------------------------------------


def test_a_point_is_reproducible_and_seeds_differ() -> None:
    once, again = (measure(point(PRIMCAST, outstanding=2)) for _ in range(2))
    assert once == again
    assert once.leaders and once.followers
    assert measure(point(PRIMCAST, outstanding=2, seed=6)).all != once.all


def test_alone_latency_is_the_papers_number_of_delays() -> None:
    """In a LAN of equal delays, with a free processor, three for PrimCast, and a fourth for White-Box's followers."""
    free = Cpu(batch_us=0, input_us=0, send_us=0)
    for variant, leaders, followers in ((PRIMCAST, 3, 3), (WHITE_BOX, 3, 4)):
        one = measure(point(variant, deployment=LAN, cpu=free))
        # A sender that is itself the leader needs no first delay to itself, but one to the other group's.
        assert set(one.leaders) <= {leaders * 50}
        assert max(one.followers) == followers * 50


def test_a_dearer_processor_makes_messages_slower_and_fewer() -> None:
    cheap, dear = (
        measure(point(PRIMCAST, deployment=LAN, outstanding=4, cpu=Cpu(batch_us=c, input_us=c, send_us=c)))
        for c in (1.0, 20.0)
    )
    assert dear.throughput < cheap.throughput / 3
    assert dear.mean_us > 3 * cheap.mean_us


def test_quantiles() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0.01, 0.25, 0.5, 0.95, 1)] == [1, 1, 2, 4, 4]


def test_calibration_finds_costs_of_this_world() -> None:
    cpu = calibrate(repetitions=60)
    assert 0 < cpu.input_us < 1_000
    assert 0 < cpu.send_us < 1_000
    assert 0 <= cpu.batch_us < 5_000


def test_a_group_recovers_from_its_leaders_crash() -> None:
    one = recover(point(WHITE_BOX, deployment=COLOCATED, outstanding=1))
    assert one.leader_us is not None and one.resumed_us is not None and one.cleared_us is not None
    assert 300_000 < one.leader_us < 3_000_000
    assert one.leader_us < one.resumed_us <= one.leader_us + 1_000_000
    assert one.held > 0
    while_dead = [rate for at, rate in one.affected if 200_000 <= at < one.leader_us - 200_000]
    assert while_dead and not any(while_dead)
    assert any(rate for at, rate in one.affected if at > one.resumed_us)


# -- claims ------------------------------------------------------------------------------------------------------------


def claim(judged: Any, **changes: Any) -> Claim:
    return Claim(figure="f", source="s", text="t", criterion="c", judge=judged, **changes)


def test_primcast_is_one_delay_ahead_and_a_planted_wrong_claim_is_noticed(distributed: Results) -> None:
    assert judge(claim(ahead((WHITE_BOX,), 15, 3), otherwise="why"), distributed).agrees == "yes"
    assert judge(claim(ahead((FASTCAST, EARLY), 15, 3)), distributed).agrees == "yes"
    wrong = judge(claim(ahead((WHITE_BOX,), 40, 3), otherwise="it is one delay, not three"), distributed)
    assert (wrong.agrees, wrong.reason) == ("no", "it is one delay, not three")
    assert "ms" in wrong.ours


def test_what_was_not_measured_is_not_judged(distributed: Results) -> None:
    found = judge(claim(ahead((FASTCAST,), 15, 3), otherwise="why"), distributed)
    assert (found.agrees, found.ours, found.reason) == ("not measured", "", "")
    for one in CLAIMS:
        assert judge(one, Results([])).agrees == "not measured", one.text


def test_the_order_of_saturation_is_that_of_the_highest_throughputs() -> None:
    def made(variant: Variant, us: int) -> Measured:
        return Measured(point=point(variant), leaders=[us], followers=[us], elapsed_us=us, sent=1.0)

    results = Results([made(FASTCAST, 400), made(FASTCAST, 300), made(WHITE_BOX, 200), made(PRIMCAST, 100)])
    assert judge(claim(saturates_first(FASTCAST, (WHITE_BOX, PRIMCAST))), results).agrees == "yes"
    assert judge(claim(saturates_first(WHITE_BOX, (FASTCAST, PRIMCAST))), results).agrees == "no"


def test_every_figure_has_claims_and_every_claim_a_figure() -> None:
    assert {one.figure for one in CLAIMS} == set(figures.names())
    assert {figure.name for figure in figures.figures(True)} < set(figures.names())


def test_a_leader_crashes_under_the_papers_load() -> None:
    """As many times fewer clients than its 6,000 as processors are slower: the same share of what they can do."""
    for quick in (True, False):
        (figure,) = [figure for figure in figures.figures(quick) if figure.name == "recovery"]
        for one in figures.points(figure, RECORDED, 1):
            slower = one.cpu.input_us / RECORDED.input_us
            assert one.in_flight * slower == 6_000
            assert one.destinations == 4


# -- the command -------------------------------------------------------------------------------------------------------


def small(quick: bool) -> list[Figure]:
    panel = Panel(
        deployment=DISTRIBUTED, groups=2, destinations=2, loads=(ALONE, 1), variants=(PRIMCAST, HYBRID, WHITE_BOX),
        samples=10,
    )  # fmt: skip
    crash = msgspec.structs.replace(panel, loads=(1,), variants=(WHITE_BOX,))
    kinds = (("wan-distributed", "curves"), ("cdf", "cdf"), ("convoy", "convoy"), ("recovery", "recovery"))
    return [
        Figure(
            name=name, title=name, source="nowhere", kind=kind,
            panels=(crash if kind == "recovery" else panel,),
        )
        for name, kind in kinds
    ]  # fmt: skip


def run(out: Path, **arguments: Any) -> None:
    usual = {"quick": True, "figure": None, "seed": 1, "jobs": 1, "cpu": None, "calibrating": False}
    values: dict[str, Any] = {**usual, **arguments}
    experiments.command(out=out, **values)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_and_claims_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "figures", small)
    run(tmp_path / "out")
    for name in ("wan-distributed", "cdf", "convoy", "recovery"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG"), name
        assert read(tmp_path / "out" / f"{name}.csv"), name
    points = read(tmp_path / "out" / "wan-distributed.csv")
    assert {row["protocol"] for row in points} == {"PrimCast", "PrimCast HC", "White-Box"}
    assert all(float(row["p50_ms"]) > 90 for row in points)
    claims = read(tmp_path / "out" / "claims.csv")
    assert {row["agrees"] for row in claims} <= {"yes", "no", "not measured"}
    assert any(row["agrees"] == "yes" and "15 ms" in row["claim"] for row in claims)
    run(tmp_path / "beside", jobs=2, figure=["convoy"])
    assert read(tmp_path / "beside" / "convoy.csv") == read(tmp_path / "out" / "convoy.csv")


def test_an_interrupted_run_writes_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Point] = []

    def interrupted(one: Point, advance: Any) -> Measured:
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(one)
        return measure(one, advance)

    monkeypatch.setattr(experiments, "figures", small)
    monkeypatch.setattr(experiments, "measure", interrupted)
    with pytest.raises(typer.Exit) as stopped:
        run(tmp_path)
    assert stopped.value.exit_code == 130
    assert len(read(tmp_path / "wan-distributed.csv")) == 2
    assert (tmp_path / "wan-distributed.png").exists()
    assert not (tmp_path / "recovery.csv").exists()
    assert all(row["agrees"] == "not measured" for row in read(tmp_path / "claims.csv") if row["figure"] == "recovery")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--figure", "lam"), "there are lan, "),
        (("--quick", "--figure", "wan-saturation"), "too long for --quick"),
        (("--out", "/no/such/place"), "/no/such/place: No such file"),
        (("--out", __file__), "is not a directory"),
        (("--cpu", "1,2"), "BATCH,INPUT,SEND"),
        (("--cpu", "1,2,-3"), "from 0 to"),
        (("--seed", "-1"), "--seed is from 0"),
    ],
)
def test_bad_usage_is_one_clear_line(
    arguments: tuple[str, ...], text: str, tmp_path: Path, simulate: Callable[..., Done]
) -> None:
    done = simulate("experiments", "--out", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert text in done.stderr
