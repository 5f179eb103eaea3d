"""Metrics: what is exported is declared, documented, and all that dashboard and alerts ask for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvstore.http.admission import Admission
from kvstore.http.metrics import DECLARED, Metrics, exported_names
from tests.house import ROOT

STATUS = {
    "id": 3, "shard": 1, "ready": True, "role": "leader", "protocol": "white_box", "durability": "fsync",
    "leader_changes": 2, "leaderless_seconds": 0.5,
    "incarnation": 1_700_000_000_000_000, "position": 7, "batches": 5, "requests": 1, "syncs": 4, "journal_bytes": 100,
    "journal_held_bytes": 90, "unwritten_bytes": 2, "archived_bytes": 10, "disk_free_bytes": 1000,
    "write_buffer_bytes": 20, "clock": {"off": False, "ahead_us": -500, "heard": 2},
    "peers": {"1": {"connected": True, "queued": 2}, "2": {"connected": False, "queued": 9}},
    "fdatasync_us": {"p50": 500, "p99": 2000}, "disk_hangs": True,
    "syncs_us": {"bounds": (100, 1_000_000), "counts": [3, 2, 1], "sum": 2_500_000},
    "details": {"clock": 17, "ballot": "1/0"},
    "store": {
        "position": 6, "log_length": 1, "head_waiting_us": 1_500_000, "requests_waiting": 2, "bundles": 3, "bundled": 9,
        "reads_unordered": 8, "read_barriers": 1, "reads_at_version": 3, "parts_pushed": 1, "parts_pulled": 0,
        "watches_waiting": 2, "watch_buffer_bytes": 100, "watched_transactions": 9, "watches_lagged": 1,
        "leases": 2, "leases_expired": 1,
        "transactions": {"applied": 6, "failed": 1},
    },
}  # fmt: skip
"""As `kvstore.host` gives it."""


def page(status: dict[str, object]) -> str:
    """What `GET /metrics` answers."""
    metrics = Metrics(lambda: status)
    metrics.observe("GET", "/v1/kv/", 200, 0.002)
    metrics.refused("late")
    metrics.certificate_expires = lambda: 1_800_000_000.0
    metrics.admission = Admission(10)
    metrics.admission.begin(1.0)
    return metrics.render()[0].decode()


def samples(status: dict[str, object]) -> dict[tuple[str, str], float]:
    """(name, its label if it has one) -> number."""
    found = {}
    for family in text_string_to_metric_families(page(status)):
        for sample in family.samples:
            found[sample.name, next(iter(sample.labels.values()), "")] = sample.value
    return found


def test_all_that_is_declared_is_exported_and_nothing_else() -> None:
    found = {name for name, _ in samples(STATUS) if name.startswith("kvstore_")}
    assert found == exported_names()


def test_numbers_are_in_the_units_of_their_names_and_labels_tell_them_apart() -> None:
    found = samples(STATUS)
    assert found["kvstore_journal_sync_p50_seconds", ""] == 0.0005
    assert found["kvstore_head_waiting_seconds", ""] == 1.5
    syncs = [found["kvstore_journal_sync_seconds_bucket", bound] for bound in ("0.0001", "1.0", "+Inf")]
    assert syncs == [3, 5, 6] and found["kvstore_journal_sync_seconds_sum", ""] == 2.5
    assert found["kvstore_disk_hangs", ""] == 1
    assert found["kvstore_clock_ahead_seconds", ""] == -0.0005
    assert found["kvstore_peer_queued_frames", "2"] == 9 and found["kvstore_peer_connected", "2"] == 0
    assert found["kvstore_transactions_total", "failed"] == 1
    assert found["kvstore_http_refused_total", "late"] == 1 and found["kvstore_http_under_way_max", ""] == 10
    assert found["kvstore_http_admitted_total", ""] == found["kvstore_http_under_way", ""] == 1
    assert found["kvstore_leader", ""] == 1 and found["kvstore_replica_info", "fsync"] == 1


def test_what_a_starting_replica_does_not_know_is_left_out() -> None:
    found = samples({"id": 3, "shard": 1, "ready": False, "role": "starting", "position": 0, "clock": None})
    assert found["kvstore_ready", ""] == 0 and ("kvstore_clock_off", "") not in found


def lint(text: str) -> list[str]:
    """What `promtool check metrics` says of a page of metrics (prometheus/util/promlint), of the rules that apply."""
    found = []
    for family in text_string_to_metric_families(text):
        counter, name = family.type == "counter", family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels}
        rules = {
            "no help text": not family.documentation,
            "non-counter ends with _total": not counter and name.endswith("_total"),
            "reserved suffix": family.type != "histogram" and re.search("_(bucket|count|sum)$", name),
            "the name contains the type": re.search(f"_{family.type}(_|$)", name),
            "camelCase or a colon": re.search("[a-z][A-Z]|:", name),
            "an abbreviated unit": re.search("_(s|ms|us|ns|sec|b|kb|mb|gb)(_|$)", name),
            "no base unit": re.search("(milli|micro|nano)seconds|minutes|hours|(kilo|mega|giga)bytes|percent", name),
            "a label is a unit": labels & {"seconds", "bytes"},
        }
        found += [f"{name}: {rule}" for rule, broken in rules.items() if broken]
    return found


def test_names_say_what_they_count() -> None:
    rendered = page(STATUS)
    assert lint(rendered) == []
    assert [d.name for d in DECLARED if not re.fullmatch(r"kvstore(_[a-z0-9]+)+", d.name)] == []
    wrong = "# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n# TYPE c_total gauge\nc_total 2\n"
    said = ["a_ms: an abbreviated unit", "c_total: no help text", "c_total: non-counter ends with _total"]
    assert lint(wrong) == said


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_is_silent() -> None:
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=page(STATUS), text=True, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("path", ["deploy/prometheus/alerts.yml", "deploy/prometheus/dashboard.json"])
def test_dashboard_and_alerts_ask_for_what_is_exported(path: str) -> None:
    asked = set(re.findall(r"kvstore_\w+", (ROOT / path).read_text()))
    assert len(asked) > 5 and asked <= exported_names()


def test_the_dashboard_can_be_loaded() -> None:
    panels = json.loads((ROOT / "deploy/prometheus/dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and all(panel["targets"] for panel in panels)


def test_the_list_is_complete() -> None:
    listed = set(re.findall(r"^\| `(kvstore_\w+)`", (ROOT / "kvstore/METRICS.md").read_text(), re.MULTILINE))
    assert listed == {re.sub("_seconds_(bucket|count|sum)$", "_seconds", name) for name in exported_names()}
