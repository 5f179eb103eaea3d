"""The benchmark of the multicast layer alone: everybody delivers everything, and it is counted as it says."""

from __future__ import annotations

import json

import pytest

from multicast import bench, registry


@pytest.mark.parametrize("protocol", registry.names())
@pytest.mark.parametrize("destinations", bench.DESTINATIONS)
def test_every_protocol_delivers_everything_to_all(protocol: str, destinations: int) -> None:
    memory = bench.Memory(protocol, destinations, 4, 5, {})
    memory.submit()
    assert sum(node.submitted for node in memory.processes.values()) == 5 * bench.GROUPS
    for _ in range(100_000):
        if memory.idle():
            break
        memory.turn()
    assert memory.delivered() == 5 * bench.GROUPS
    each = 5 * destinations
    assert {node.application.delivered for node in memory.processes.values()} == {each}


def test_a_multicast_counts_when_the_slowest_has_it() -> None:
    memory = bench.Memory("white_box", 1, 1, 3, {})
    memory.submit()
    while not memory.idle():
        memory.turn()
    memory.processes[1].application.delivered -= 2
    assert memory.delivered() == 3 * bench.GROUPS - 2
    assert not memory.idle()


def test_a_bundle_counts_as_the_messages_in_it() -> None:
    result = bench.measure("white_box", 2, 16, seconds=0.3, warmup=0.0, outstanding=10)
    assert result.per_second == pytest.approx(16 * result.multicasts_per_second, rel=0.01)
    assert result.frames > 1
    assert result.cpu_us_per_multicast > 0
    assert len(bench.row(result)) == len(bench._COLUMNS)


def test_the_command_prints_the_published_figures_beside_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--protocols", "skeen", "--bundles", "2", "--destinations", "1", "--seconds", "0.05"]
    assert bench.main(arguments) == 0
    *head, last = capsys.readouterr().out.splitlines()
    assert any("211,000 to 256,000" in line for line in head)
    assert last.split()[:3] == ["skeen", "1", "2"]
    assert bench.main([*arguments, "-o", "json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["results"]
    assert (told["protocol"], told["bundle"]) == ("skeen", 2)


def test_the_profile_names_what_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--protocols", "skeen", "--seconds", "0.05", "--profile", "100"]) == 0
    assert "multicast/engine.py" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--protocols", "white-box"], ["--bundles", "0"], ["--destinations", "3"], ["--seconds", "0"]]
)
def test_a_bad_option_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert arguments[0] in capsys.readouterr().err
