"""The files of `deploy/` are understood by what reads them, agree with the configuration, and open nothing outside."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from kvstore import cli, config, identity
from kvstore.api.routes import ROUTES
from tests.house import ROOT
from tests.ports import free_base_port

UNIT = ROOT / "deploy" / "systemd" / "kvstore@.service"
COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"

DIRECTIVES = {
    "Unit": "Description After Wants StartLimitIntervalSec StartLimitBurst",
    "Service": """
        Type NotifyAccess TimeoutStartSec User Group
        StateDirectory StateDirectoryMode ExecStart ExecReload KillSignal TimeoutStopSec Restart RestartSec
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
        *("pids_limit", "tmpfs", "healthcheck", "hostname", "command", "ports", "volumes", "profiles", "depends_on"),
    )
)
COMPOSE_KEYS = {"name", "services", "volumes", "x-replica", "x-tool"}
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
    identity.create(tmp_path / "cluster", made)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path / "cluster"), "--replica", "0"]
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as replica:
            try:
                assert manager.recv(100) == b"READY=1"
                socket.create_connection(("127.0.0.1", made.replicas[0].http_port), timeout=60).close()
            finally:
                replica.terminate()
            assert manager.recv(100) == b"STOPPING=1"
        assert replica.returncode == 0


# -- compose -----------------------------------------------------------------------------------------------------------


def faults(compose: dict[str, Any]) -> list[str]:
    """Faults of a compose file: keys that nobody reads, ports open to the world, volumes not declared."""
    found = [f"unknown key {key}" for key in compose if key not in COMPOSE_KEYS]
    for name, service in compose["services"].items():
        found += [f"{name}: unknown key {key}" for key in service if key not in SERVICE_KEYS]
        for part, known in (("healthcheck", HEALTHCHECK_KEYS), ("build", BUILD_KEYS)):
            found += [f"{name}: unknown key {part}.{key}" for key in service.get(part, {}) if key not in known]
        for port in service.get("ports", ()):
            if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
                found.append(f"{name}: port {port} is not on loopback")
        if "hostname" in service and service.get("restart") != "unless-stopped":
            found.append(f"{name}: is not there after its machine was down")
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
        ({"restart": "on-failure"}, "replica-0: is not there after its machine was down"),
        ({"volumes": ["lost:/data"]}, "replica-0: volume lost is not declared"),
        ({"healthcheck": {"every": "1s"}}, "replica-0: unknown key healthcheck.every"),
    ],
)
def test_a_planted_fault_in_the_compose_file_is_noticed(
    compose: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    services = {**compose["services"], "replica-0": {**compose["services"]["replica-0"], **change}}
    assert faults({**compose, "services": services}) == [said]


def made_by(arguments: list[str], directory: Path) -> config.ClusterConfig:
    """The cluster that this `kvstore cluster init` makes, here."""
    assert arguments[:2] == ["cluster", "init"]
    with pytest.raises(SystemExit) as ended:
        cli.main(["cluster", "init", str(directory), *arguments[3:]])
    assert ended.value.code == 0
    return config.load(directory)


def served_by(arguments: list[str]) -> tuple[Any, ...]:
    """What `kvstore.serve.serve` is told by this command line."""
    with patch("kvstore.serve.serve") as serve, pytest.raises(SystemExit):
        cli.main(arguments)
    told: tuple[Any, ...] = serve.call_args.args
    return told


def test_the_services_are_the_replicas_of_a_cluster_that_is_made_anew(compose: dict[str, Any], tmp_path: Path) -> None:
    init = compose["services"]["init"]["command"]
    made = made_by(init, tmp_path / "one")
    assert made_by(init, tmp_path / "one") == made and made_by(init, tmp_path / "two").cluster_id != made.cluster_id
    replicas = {name: service for name, service in compose["services"].items() if "hostname" in service}
    assert sorted(replicas) == [replica.address for replica in made.replicas]
    for replica in made.replicas:
        service = replicas[replica.address]
        directory, name, _, _, insecure, bootstrap, _ = served_by(service["command"])
        assert made.named(name) == replica and insecure and service["hostname"] == replica.address
        assert (directory, bootstrap) == (Path("/data"), Path("/cluster/cluster.json"))
        assert service["volumes"] == ["cluster:/cluster:ro", f"data-{replica.id}:/data"]
        assert service["ports"] == [f"127.0.0.1:{7500 + replica.id}:{replica.http_port}"]
        assert f":{replica.http_port}/readyz" in service["healthcheck"]["test"][-1]


def test_the_audit_finds_the_journals_of_all_volumes(tmp_path: Path) -> None:
    """With a stand-in for Spark."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "python").write_text('#!/bin/sh\necho "$@"\n')
    (bin_ / "python").chmod(0o755)
    made = config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id="0" * 32)
    (tmp_path / "cluster").mkdir()
    config.save(tmp_path / "cluster", made)
    for replica in range(3):
        volume = tmp_path / "journals" / str(replica)
        (volume / "replicas" / str(replica) / "journal").mkdir(parents=True)
        (volume / "archive" / "replicas" / str(replica) / "journal-1").mkdir(parents=True)
    run = tmp_path / "run"
    places = {"CLUSTER": tmp_path / "cluster", "JOURNALS": tmp_path / "journals", "RUN": run}
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", **{name: str(path) for name, path in places.items()}}
    command = [str(COMPOSE / "audit.sh"), "--no-history"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"-m spark_etl audit {run} --no-history\n"
    journals, archived = list(run.glob("replicas/*/journal")), list(run.glob("archive/replicas/*/journal-1"))
    assert len(journals) == len(archived) == 3 and config.load(run) == made


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.audit"])
def test_the_image_copies_what_is_there(name: str) -> None:
    dockerfile = (COMPOSE / name).read_text()
    ignored = (COMPOSE / f"{name}.dockerignore").read_text().splitlines()
    sources = [word for line in re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE) for word in line.split()]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def objects(*names: str) -> list[dict[str, Any]]:
    return [one for name in names for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def init_of(text: str) -> list[str]:
    """The arguments of the `kvstore cluster init` in a comment."""
    (line,) = re.findall(r"^#   kvstore (cluster init .*)$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, config.ClusterConfig]:
    """A copy of the manifests, with the cluster that their comment makes."""
    copy = tmp_path_factory.mktemp("kubernetes") / "kubernetes"
    shutil.copytree(KUBERNETES, copy, ignore=shutil.ignore_patterns("cluster"))
    return copy, made_by(init_of((copy / "kustomization.yaml").read_text()), copy / "cluster")


def test_a_pod_is_the_replica_that_its_name_says(kubernetes: tuple[Path, config.ClusterConfig]) -> None:
    _, made = kubernetes
    found = []
    for stateful in (one for one in objects("shard-0.yaml", "shard-1.yaml") if one["kind"] == "StatefulSet"):
        spec = stateful["spec"]
        labels = spec["template"]["metadata"]["labels"]
        (container,) = spec["template"]["spec"]["containers"]
        for ordinal in range(spec["replicas"]):
            pod = f"{stateful['metadata']['name']}-{ordinal}"
            arguments = [argument.replace("$(POD_NAME)", pod) for argument in container["args"]]
            _, name, _, _, insecure, *_ = served_by(arguments)
            replica = made.named(name)
            assert replica.address == f"{pod}.{spec['serviceName']}.default.svc" and not insecure
            assert str(replica.shard) == labels["kvstore/shard"] and replica.host == "0.0.0.0"
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            assert ports == {"http": replica.http_port, "peers": replica.peer_port}
            found.append(replica.id)
        assert spec["podManagementPolicy"] == "Parallel", "they wait for one another"
        assert {e["name"] for e in container["env"]} == {"POD_NAME"}
    assert found == [replica.id for replica in made.replicas]


def test_the_parts_of_the_manifests_fit_together(kubernetes: tuple[Path, config.ClusterConfig]) -> None:
    copy, made = kubernetes
    parts = objects("services.yaml", "shard-0.yaml", "shard-1.yaml")
    known = yaml.safe_load((copy / "kustomization.yaml").read_text())
    generated = {one["name"]: one["files"] for one in known["secretGenerator"]}
    assert all((copy / file).is_file() for files in generated.values() for file in files)
    assert not any("ca.key" in file for files in generated.values() for file in files)
    (headless,) = [one for one in parts if one["kind"] == "Service"]
    assert headless["spec"]["clusterIP"] == "None" and headless["spec"]["publishNotReadyAddresses"]
    budgets = [one["spec"] for one in parts if one["kind"] == "PodDisruptionBudget"]
    paths = {route.path for route in ROUTES}
    for stateful, budget in zip((p for p in parts if p["kind"] == "StatefulSet"), budgets, strict=True):
        spec = stateful["spec"]
        pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
        (container,) = pod["containers"]
        assert budget["selector"]["matchLabels"] == spec["selector"]["matchLabels"] == labels
        assert headless["spec"]["selector"].items() <= labels.items() and budget["maxUnavailable"] == 1
        (apart,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert apart["labelSelector"]["matchLabels"] == labels and apart["topologyKey"] == "kubernetes.io/hostname"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["path"] in paths and asked["port"] == "http" and asked["scheme"] == "HTTPS"
        secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        assert set(secrets.values()) <= set(generated)
        claims = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
        mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounted) == claims | {volume["name"] for volume in pod["volumes"]}
        assert Path(mounted["certificates"]) == Path(mounted["data"]) / made.tls
        assert Path(mounted["cluster"]) / "cluster.json" == Path(container["args"][4])


def test_the_operators_rules_are_prometheus_rules() -> None:
    (rules,) = objects("monitoring/rules.yaml")
    alerts = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())
    assert rules["spec"] == alerts
    (monitor,) = objects("monitoring/servicemonitor.yaml")
    (headless,) = [one for one in objects("services.yaml") if one["kind"] == "Service"]
    assert monitor["spec"]["selector"]["matchLabels"] == headless["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in headless["spec"]["ports"]}
    assert endpoint["path"] in {route.path for route in ROUTES}


def test_who_does_not_answer_prometheus_at_all_is_told_of() -> None:
    """All other rules are about what replicas say of themselves and of one another. (In Kubernetes a job has its
    service's name.)"""
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    ((_, job),) = [re.findall(r'^(up)\{job="(\w+)"\} == 0$', r["expr"])[0] for r in rules if "up{" in r["expr"]]
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "kvstore" / "METRICS.md").read_text(), re.M | re.S)
    (scraped,) = yaml.safe_load(block)["scrape_configs"]
    (headless,) = [one for one in objects("services.yaml") if one["kind"] == "Service"]
    assert job == scraped["job_name"] == headless["metadata"]["name"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("part", [".", "monitoring"])
def test_kustomize_builds_them(kubernetes: tuple[Path, config.ClusterConfig], part: str) -> None:
    command = ["kubectl", "kustomize", str(kubernetes[0] / part)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    built = [one for one in yaml.safe_load_all(done.stdout) if one]
    assert len(built) == (9 if part == "." else 2)
    assert {one["metadata"].get("namespace") for one in built} == {"default"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_rules() -> None:
    rules = ROOT / "deploy" / "prometheus" / "alerts.yml"
    command = ["promtool", "check", "rules", str(rules)]
    assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
