"""Which log lines are looked for, by what a sentence says."""

from __future__ import annotations

import pytest

from spark_etl.audit.evidence import _written
from spark_etl.report import Violation


@pytest.mark.parametrize("key", ["version 00-1", "version 1-", "version 00000000000000001-1", "says f-0f"])
def test_what_looks_like_a_version_in_the_name_of_a_key_is_none(key: str):
    sentence = f"a read of key {key} returned version 1f-2, but version 20-0 had been written"
    assert _written(Violation("stale-read", sentence, keys=[key])) == ["1f-2", "20-0"]
    assert _written(Violation("order-cycle", sentence)) == []
