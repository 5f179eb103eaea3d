"""The files of `deploy/` are understood by what reads them, agree with the configuration, and open nothing outside."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstore import config
from tests.house import ROOT
from tests.ports import free_base_port

UNIT = ROOT / "deploy" / "systemd" / "kvstore@.service"
COMPOSE = ROOT / "deploy" / "compose"

DIRECTIVES = {
    "Unit": "Description After Wants StartLimitIntervalSec StartLimitBurst",
    "Service": """
        Type NotifyAccess TimeoutStartSec User Group
        StateDirectory StateDirectoryMode ExecStart KillSignal TimeoutStopSec Restart RestartSec
        LimitNOFILE NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome
        ProtectProc ProtectClock ProtectHostname ProtectControlGroups ProtectKernelLogs ProtectKernelModules
        ProtectKernelTunables PrivateDevices PrivateTmp PrivateUsers RestrictAddressFamilies RestrictNamespaces
        RestrictRealtime RestrictSUIDSGID LockPersonality RemoveIPC SystemCallArchitectures SystemCallFilter
        SystemCallErrorNumber UMask
    """,
    "Install": "WantedBy",
}
SERVICE_KEYS = frozenset(
    (
        *("image", "build", "init", "restart", "stop_grace_period", "read_only", "cap_drop", "security_opt"),
        *("pids_limit", "tmpfs", "healthcheck", "hostname", "command", "ports", "volumes", "profiles"),
    )
)
HEALTHCHECK_KEYS = {"test", "interval", "timeout", "retries", "start_period"}
BUILD_KEYS = {"context", "dockerfile"}


# -- systemd -----------------------------------------------------------------------------------------------------------


def directives(unit: str) -> Iterator[tuple[str, str, str]]:
    """(section, directive, value) of a unit file. ValueError for a line that is none of its syntax."""
    section = ""
    for line in unit.splitlines():
        if not line.strip() or line.startswith(("#", ";")):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            section = heading[1]
        elif section and (entry := re.fullmatch(r"(\w+)=(.*)", line)):
            yield section, entry[1], entry[2]
        else:
            raise ValueError(f"not a line of a unit: {line!r}")


def test_the_unit_uses_known_directives_in_their_sections() -> None:
    for section, directive, value in directives(UNIT.read_text()):
        assert directive in DIRECTIVES[section].split(), f"[{section}] {directive}={value}"


def test_a_malformed_unit_is_noticed() -> None:
    with pytest.raises(ValueError, match="ExecStart"):
        list(directives("[Service]\nExecStart kvstore\n"))


def test_the_unit_serves_the_replica_that_it_is_named_after() -> None:
    (command,) = [value for _, directive, value in directives(UNIT.read_text()) if directive == "ExecStart"]
    assert command.split()[0].startswith("/")
    assert command.split()[1] == "serve"
    assert command.endswith("--replica %i")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    def verify(text: str) -> str:
        copy = tmp_path / UNIT.name
        copy.write_text(text)
        command = ["systemd-analyze", "--man=no", "verify", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return "\n".join(line for line in done.stderr.splitlines() if "kvstore@" in line)

    installed = re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", UNIT.read_text())
    assert verify(installed) == ""
    assert "Protekt" in verify(installed.replace("ProtectHome=", "ProtektHome="))


def test_a_replica_tells_its_service_manager_when_it_serves_and_when_it_stops(tmp_path: Path) -> None:
    made = config.new_cluster(
        shards=1, replicas=1, protocol="skeen", cluster_id="0" * 32, base_port=free_base_port(1)
    )  # fmt: skip
    config.create(tmp_path / "cluster", made)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path / "cluster"), "--replica", "0"]
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as replica:
            try:
                assert manager.recv(100) == b"READY=1"
                socket.create_connection(("127.0.0.1", made.replicas[0].http_port), timeout=10).close()
            finally:
                replica.terminate()
            assert manager.recv(100) == b"STOPPING=1"
        assert replica.returncode == 0


# -- compose -----------------------------------------------------------------------------------------------------------


def faults(compose: dict[str, Any]) -> list[str]:
    """Faults of a compose file: keys that nobody reads, ports open to the world, volumes not declared."""
    found = [f"unknown key {key}" for key in compose if key not in ("name", "services", "volumes", "x-replica")]
    for name, service in compose["services"].items():
        found += [f"{name}: unknown key {key}" for key in service if key not in SERVICE_KEYS]
        for part, known in (("healthcheck", HEALTHCHECK_KEYS), ("build", BUILD_KEYS)):
            found += [f"{name}: unknown key {part}.{key}" for key in service.get(part, {}) if key not in known]
        for port in service.get("ports", ()):
            if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
                found.append(f"{name}: port {port} is not on loopback")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith("./") and source not in compose["volumes"]:
                found.append(f"{name}: volume {source} is not declared")
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return loaded


def test_the_compose_file_has_no_fault(compose: dict[str, Any]) -> None:
    assert faults(compose) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ports": ["7500:7500"]}, "replica-0: port 7500:7500 is not on loopback"),
        ({"port": []}, "replica-0: unknown key port"),
        ({"volumes": ["lost:/data"]}, "replica-0: volume lost is not declared"),
        ({"healthcheck": {"every": "1s"}}, "replica-0: unknown key healthcheck.every"),
    ],
)
def test_a_planted_fault_in_the_compose_file_is_noticed(
    compose: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    services = {**compose["services"], "replica-0": {**compose["services"]["replica-0"], **change}}
    assert faults({**compose, "services": services}) == [said]


def test_the_services_are_the_replicas_of_the_configuration(compose: dict[str, Any]) -> None:
    cluster = config.load(COMPOSE)
    replicas = {name: service for name, service in compose["services"].items() if "profiles" not in service}
    assert sorted(replicas) == [replica.host for replica in cluster.replicas]
    for replica in cluster.replicas:
        service = replicas[replica.host]
        assert service["hostname"] == replica.host
        assert service["command"] == ["serve", "--dir", "/data", "--replica", str(replica.id), "--insecure"]
        assert service["ports"] == [f"127.0.0.1:{7500 + replica.id}:{replica.http_port}"]
        assert f":{replica.http_port}/readyz" in service["healthcheck"]["test"][-1]


def test_the_image_copies_what_is_there() -> None:
    dockerfile = (COMPOSE / "Dockerfile").read_text()
    ignored = (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
