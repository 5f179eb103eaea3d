"""An audit says the same with certificates as without: of simulated runs, every second one with a forgery in it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvstore.simulated.runner import run_seed
from kvstore.simulated.settings import Settings
from multicast import registry
from spark_etl.audit.case import Case
from spark_etl.audit.runner import Audit
from spark_etl.certify.proof import Proof
from spark_etl.report import Report
from tests.spark_etl.forged import FORGERIES, forge


def simulated(number: int, run: Path) -> bool:
    """Of each protocol in turn; every second one forged, each in another way. Whether it could be."""
    protocols = sorted(registry.names())
    protocol = protocols[number % len(protocols)]
    run_seed(Settings(protocol=protocol, shards=2, clients=6, seconds=2.0), number, run)
    if number % 2:
        kind = sorted(FORGERIES)[number * 7 % len(FORGERIES)]
        for path in sorted((run / "replicas/0/journal").glob("*.seg")):
            with suppress(LookupError, StopIteration):  # it has nothing of the kind
                path.write_bytes(forge(path.read_bytes(), FORGERIES[kind].forge))
                return True
    return False


def said(report: Report) -> dict[str, Any]:
    """All of it, but for how long it took."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    for one in (found, *found["properties"]):
        one["seconds"] = 0
    return found


@pytest.mark.timeout(3600)
@pytest.mark.full
def test_an_audit_says_the_same_without_certificates(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By default: of a run that is right, in `test_cut`."""
    forged = 0
    for number in range(24):
        forged += simulated(number, tmp_path / f"{number}")
        certified = Audit(spark, tmp_path / f"{number}", tmp_path / f"{number}-out")
        mine = said(certified.run())
        assert certified.proof.proved or number % 2, certified.proof.why
        with monkeypatch.context() as patch:
            patch.setattr(Case, "_certify", lambda self: Proof())
            assert mine == said(Audit(spark, tmp_path / f"{number}", tmp_path / f"{number}-out").run()), number
    assert forged > 8
