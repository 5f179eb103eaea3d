"""One Spark session for all tests of the audit, which have more time than others on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_etl.session import spark_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Fit for many tiny frames: nothing of their queries is compiled, nor looked through for what comes twice; all of
    Java is compiled."""
    directory: Path = tmp_path_factory.mktemp("spark")
    with spark_session(directory, "local[2]", "1g", lasting=True) as session:
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session
