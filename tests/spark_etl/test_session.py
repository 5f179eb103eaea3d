"""Starting Spark, and being interrupted meanwhile."""

from __future__ import annotations

import os
import signal

from spark_etl import session


def test_an_interruption_waits_until_spark_has_started():
    before = signal.getsignal(signal.SIGINT)
    with session._later() as interrupted:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert set(interrupted) == {signal.SIGINT, signal.SIGTERM}
    assert signal.getsignal(signal.SIGINT) is before
