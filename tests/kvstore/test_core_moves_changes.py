"""What changes in the source while its slots move."""

from __future__ import annotations

import pytest

from kvstore.api.model import RANGE_BYTES_MAX
from kvstore.api.shard_map import slot_of
from tests.kvstore.test_core_moves import KEYS, Two


def test_a_move_goes_on_until_no_row_is_left_that_has_changed() -> None:
    two = Two(portion=2)
    assert two.step() and two.step()
    changed = sorted(sorted(KEYS)[:4], key=slot_of)[:3]
    for one in changed:
        two.write(one, b"new")
    expected = two.rows(0)
    assert two.step() and two.handed()[:2] == [0, 0], "all rows were looked at, and one is left"
    assert [two.moves[0].owns(one) for one in changed] == [False, False, True]
    while two.step():
        pass
    assert two.rows(1) == expected


@pytest.mark.parametrize(("portion", "size", "rows"), [(3, 1, 1), (9, 30, 1), (4, 1, 6)])
def test_a_move_ends_though_more_changes_between_two_steps_than_one_gives(
    portion: int, size: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slot by slot, of which each goes at once."""
    monkeypatch.setattr("kvstore.core.moves.RANGE_BYTES_MAX", 50)
    two, crowd = Two(portion), [b"{%b}%d" % (key, i) for key in KEYS[: 2 if rows > 1 else 6] for i in range(rows)]
    for i in range(40):
        for one in [one for one in crowd if two.moves[0].owns(one)]:
            two.write(one, bytes([i]) * size)
        expected = two.rows(0) | two.rows(1)
        if not two.step():
            break
    assert two.given[-1].last and two.rows(0) == {} and two.rows(1) == expected


def test_rows_that_are_given_again_are_given_in_portions_of_bytes() -> None:
    """Each is short of what a message may hold, all together are not."""
    two, changed, size = Two(portion=5), sorted(KEYS)[:4], RANGE_BYTES_MAX * 2 // 3
    assert two.step()
    two.moves[0].portion = two.moves[0].handed = 9
    for one in changed:
        two.write(one, bytes(size))
    assert two.step(), "two of them, and what had not been given"
    while two.step():
        pass
    assert all([sum(len(row.value or b"") for row in given.rows) <= 2 * size + 99 for given in two.given])
    rows = [two.stores[1].get(one) for one in changed]
    assert [row and len(row.value) for row in rows] == [size] * 4
