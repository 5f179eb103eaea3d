"""The runbook: every alert has a place in it, and what can be run on a small cluster is run, in its order.

That every command in it is understood: `tests/test_readme.py`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kvstore import cluster, config
from tests.house import ROOT
from tests.kvstore.live import make_cluster
from tests.test_readme import in_blocks
from workloads import cli

PAGE = (ROOT / "kvstore" / "OPERATIONS.md").read_text()
ELSEWHERE = {
    "kvstore archive prune": "test_retention.py",
    "kvstore serve": "test_lost_disk.py",
    "kvstore certs": "test_tls.py",
    "kvstore token": "../workloads/test_cli_rights.py",
    "kvstore auth": "../workloads/test_cli_rights.py",
    "kvstore backup DIR TARGET --at": "test_backup.py",
    "kvstore cluster replace-replica": "test_replacing.py",
    "kvstore cluster add-replica": "test_members_live.py",
    "kvstore cluster remove-replica": "test_members_live.py",
    "kvstore cluster add-shard": "test_growing_live.py",
    "kvstore cluster move-slots": "test_moves_live.py",
    "python -m": "../spark_etl/test_command.py",
}
"""What needs more than a small cluster -> the test in which it runs."""


def test_every_alert_has_its_place() -> None:
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert len(alerts) > 8 and sorted(alerts - set(re.findall(r"Kvstore\w+", PAGE))) == []
    assert sorted(set(re.findall(r"Kvstore\w+", PAGE)) - alerts) == []


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Of a cluster that runs."""
    path = tmp_path / "cluster"
    make_cluster(path, 1, 1, "white_box")
    cluster_before = cluster.up(path, lambda _: None)
    yield path
    cluster.down(path, lambda _: None)
    for one in cluster_before:
        one.process.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # commands leave what they have started
def test_what_looks_and_what_restores_does_what_it_says(directory: Path, tmp_path: Path) -> None:
    places = {"DIR": str(directory), "TARGET": str(tmp_path / "backup"), "NEW_DIR": str(tmp_path / "new"), "ID": "0"}
    ran = []
    for command in in_blocks(PAGE):
        words = shlex.split(command)
        if any(command.startswith(prefix) for prefix in ELSEWHERE):
            continue
        with pytest.raises(SystemExit) as ended:
            cli.main([places.get(word, word) for word in words[1:]])
        assert ended.value.code == 0, command
        ran.append(" ".join(words[1:3]))
    assert {"cluster status", "top DIR", "config show", "cluster up", "cluster restart", "cluster down"} <= set(ran)
    assert config.load(tmp_path / "new").cluster_id != config.load(directory).cluster_id


@pytest.mark.parametrize(("command", "test"), ELSEWHERE.items())
def test_the_rest_is_run_by_other_tests(command: str, test: str) -> None:
    assert any(line.startswith(command) for line in in_blocks(PAGE))
    assert (ROOT / "tests" / "kvstore" / test).is_file()
