"""Room for request bytes: first come first served, nothing lost to those who give up, and never all wait at once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from kvstore.http.budget import Arrivals, ByteBudget


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_fits_does_not_wait_and_the_rest_waits_in_line() -> None:
    budget, order = ByteBudget(10), []

    async def take(name: str, size: int) -> None:
        await budget.take(size)
        order.append(name)

    await take("first", 8)
    tasks = [asyncio.create_task(take("large", 9)), asyncio.create_task(take("small", 1))]
    await settle()
    assert order == ["first"] and budget.free == 2
    budget.give(8)
    await settle()
    assert order == ["first", "large", "small"] and budget.free == 0
    await asyncio.gather(*tasks)


async def test_nobody_overtakes_those_who_wait() -> None:
    budget = ByteBudget(10)
    assert budget.take_now(8) and not budget.take_now(3)
    waiting = asyncio.create_task(budget.take(5))
    await settle()
    assert not budget.take_now(1) and budget.free == 2
    budget.give(8)
    assert await waiting == 5 and budget.take_now(5) and budget.free == 0


async def test_more_than_everything_is_everything() -> None:
    budget = ByteBudget(10)
    assert await budget.take(50) == 10 and budget.free == 0
    budget.give(10)
    assert await budget.take(0) == 0 and budget.free == 10


async def test_who_gives_up_takes_nothing_and_lets_others_pass() -> None:
    budget = ByteBudget(10)
    await budget.take(5)
    large, small = asyncio.create_task(budget.take(10)), asyncio.create_task(budget.take(5))
    await settle()
    assert not small.done()
    large.cancel()
    await settle()
    assert large.cancelled() and small.result() == 5 and budget.free == 0


async def test_who_gives_up_just_as_its_turn_comes_gives_back() -> None:
    budget = ByteBudget(10)
    await budget.take(10)
    waiting = asyncio.create_task(budget.take(10))
    await settle()
    budget.give(10)
    waiting.cancel()
    await settle()
    assert waiting.cancelled() and budget.free == 10


# -- arrivals ----------------------------------------------------------------------------------------------------------


def test_an_announced_body_holds_what_has_come_and_the_oldest_goes_on_without_room() -> None:
    arrivals, went_on = Arrivals(10), []
    assert arrivals.grow("oldest", 4, lambda: None) and arrivals.grow("second", 6, lambda: None)
    assert not arrivals.grow("second", 7, lambda: went_on.append("second")) and arrivals.free == 0
    assert not arrivals.grow("third", 1, lambda: went_on.append("third"))
    assert arrivals.grow("oldest", 9, lambda: None) and arrivals.free == -5
    arrivals.leave("oldest")
    assert went_on == ["second", "third"] and arrivals.free == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.booleans()), max_size=60))
def test_somebody_can_always_go_on_and_all_room_comes_back(plan: list[tuple[int, int, bool]]) -> None:
    """Bodies grow one piece after the other and leave at any time; those that wait grow no further."""
    arrivals, sizes, waiting = Arrivals(8), {}, set()  # type: ignore[var-annotated]
    for body, piece, leaves in plan:
        if leaves:
            sizes.pop(body, None)
            waiting.discard(body)
            arrivals.leave(body)
        elif body not in waiting:
            sizes[body] = sizes.get(body, 0) + piece
            waiting.add(body)
            if arrivals.grow(body, sizes[body], lambda body=body: waiting.remove(body)):  # type: ignore[misc]
                waiting.remove(body)
        assert not sizes or set(sizes) - waiting
        assert arrivals.free >= 0 or len(set(sizes)) >= 1
    for body in sizes:
        arrivals.leave(body)
    assert arrivals.free == 8
