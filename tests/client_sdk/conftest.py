"""Clients whose time is not over because the machine stands still for a while."""

from __future__ import annotations

import pytest

from client_sdk import attempts, connections, routing


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that takes more than a second to accept a connection, or to say what its cluster is, is not dead."""
    for module in (attempts, connections):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_SECONDS", 60.0)


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call makes six attempts; the pause after them would be longer than any time. So it ends by what they have
    shown, and not in the midst of one more that was begun a moment before its time was over."""
    monkeypatch.setattr(attempts, "_backoff", lambda state: 0.01 if state.attempt_number < 6 else 3600.0)


@pytest.fixture
def long_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was too slow is asked last until the test is over."""
    monkeypatch.setattr(routing, "SUSPECT_SECONDS", 3600.0)
