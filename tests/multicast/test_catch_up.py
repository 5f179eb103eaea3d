"""Whom a process asks for the deliveries that it misses."""

from __future__ import annotations

from multicast.catch_up import RETRY_US, CatchUp


def test_one_is_asked_at_a_time_and_anew_after_a_while() -> None:
    catch_up = CatchUp(0, lambda: (0, 1, 2))
    assert [catch_up.ask(peer, now) for peer, now in ((1, 5), (2, 6), (2, 5 + RETRY_US))] == [1, None, 2]
    catch_up.answered()
    assert catch_up.ask(1, 6 + RETRY_US) == 1


def test_who_is_not_there_is_not_waited_for_if_somebody_is() -> None:
    """All whom a newcomer knows have gone, and the one that is left sends it a state now and then."""
    catch_up = CatchUp(9, lambda: (1, 2))
    for peer in (1, 2):
        catch_up.connected(peer, False)
    assert catch_up.ask(1, 5) == 1, "perhaps it comes back"
    assert [catch_up.ask(peer, 6) for peer in (1, 2)] == [None, None]
    assert catch_up.ask(6, 7) == 6
    assert [catch_up.ask(peer, 8) for peer in (1, 6)] == [None, None]
    catch_up.connected(1, True)
    assert catch_up.ask(1, 9) is None
    assert catch_up.connected(6, False) and catch_up.ask_instead_of(6, 10) == 1
