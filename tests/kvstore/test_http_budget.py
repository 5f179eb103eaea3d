"""The budget of request bytes: never overdrawn, first come first served, nothing lost to those who give up."""

from __future__ import annotations

import asyncio

from kvstore.http.budget import ByteBudget


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
