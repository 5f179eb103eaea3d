"""What clocks that jump do: multicast/simulation/clocks.py, and the planted bugs of tests/planted/clocks.py by name."""

from __future__ import annotations

import pytest

from multicast import registry
from multicast.simulation.clocks import measure

SECOND = 1_000_000
LEADING = ("white_box", "primcast", "ft_skeen", "fastcast", "quasi_genuine")


@pytest.mark.parametrize("protocol", [*LEADING, "toto"])
def test_a_leader_of_each_group_five_minutes_ahead_expires_nothing_and_hands_over(protocol: str) -> None:
    effect = measure(registry.load(protocol), "leaders", 300 * SECOND, True)
    assert (effect.expired, effect.missing) == (0, 0)
    assert effect.ahead_us <= 500_000
    assert effect.handed_over == (2 if protocol in LEADING else 0)


@pytest.mark.parametrize("jump_us", [SECOND, -SECOND, -300 * SECOND, 86_400 * SECOND, -86_400 * SECOND])
@pytest.mark.parametrize("where", ["one", "minority"])
def test_no_minority_moves_time(where: str, jump_us: int) -> None:
    effect = measure(registry.load("white_box"), where, jump_us, True)
    assert (effect.expired, effect.missing, effect.handed_over) == (0, 0, 0)
    assert effect.ahead_us <= 500_000


def test_a_leader_that_is_believed_makes_everything_expire() -> None:
    effect = measure(registry.load("white_box"), "leaders", 300 * SECOND, False)
    assert effect.expired > effect.messages // 2 and effect.ahead_us > 290 * SECOND
