"""One Spark session for all tests of the audit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_etl.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory: Path = tmp_path_factory.mktemp("spark")
    with spark_session(directory, "local[2]", "1g") as session:
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")  # the frames are tiny
        session.conf.set("spark.sql.shuffle.partitions", "1")
        yield session
