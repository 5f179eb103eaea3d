"""The demo's own care: other people's directories and ports. The demo as a whole is run by `make demo`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from multicast import registry
from workloads import demo, directories, ports


@pytest.mark.parametrize("name", ["letter.txt", "cluster.json"])
async def test_what_no_demo_has_made_is_left_alone(tmp_path: Path, name: str) -> None:
    """Another one's cluster, above all."""
    (tmp_path / name).write_text("dear")
    with pytest.raises(demo.DemoFailed, match="was not made by a demo; nothing was changed"):
        await demo.Demo(tmp_path, "white_box", 3.0, 1).run()
    assert [path.name for path in tmp_path.iterdir()] == [name]


async def test_what_a_demo_has_made_is_replaced(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    for _ in range(2):
        await demo.Demo(directory, "white_box", 3.0, 1)._prepare()
        assert [path.name for path in directory.iterdir()] == [directories.MARK]
        (directory / "rest").touch()


def test_a_busy_port_is_passed_over() -> None:
    free = ports.free_base_port(6)
    with socket.socket() as busy:
        # As the replicas do: a port whose last connection has just ended may be used.
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        busy.bind(("127.0.0.1", free + ports.HTTP_PORT_OFFSET + 2))
        busy.listen()
        assert ports.free_base_port(6) > free


def test_an_unknown_protocol_is_named_with_its_neighbour(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["demo", "--protocol", "white_bx"])
    assert demo.main() == 1
    assert "did you mean 'white_box'?" in capsys.readouterr().err


def test_only_fault_tolerant_protocols_lose_a_leader(tmp_path: Path) -> None:
    for name in registry.names():
        made = demo.Demo(tmp_path, name, 3.0, 1)
        assert made.fault_tolerant == registry.load(name).specification.fault_tolerant
