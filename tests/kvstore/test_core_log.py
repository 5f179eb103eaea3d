"""When a bundle may be signalled: the log's blocker against the rule as it is written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.api.model import Add, Compare, DeleteRange, Put, Transaction
from kvstore.core.log import Entry, Item, Log
from kvstore.core.messages import Part
from kvstore.core.plans import LocalPlan
from multicast.types import AppMessage, Timestamp

KEYS = [b"a", b"b", b"c"]
FATES = {"first": (False, None), "repeated": (False, b"digest"), "expired": (True, None)}

some_keys = st.sets(st.sampled_from(KEYS), max_size=2)
few_keys = st.sets(st.sampled_from(KEYS), max_size=1)
branches = st.tuples(few_keys, some_keys, st.sampled_from([False] * 5 + [True]))
transactions = st.tuples(few_keys, branches, branches, st.sampled_from(["first", "first", *FATES]))
deliveries = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1, max_size=3).map(lambda s: tuple(sorted(s | {0}))),
        st.lists(transactions, min_size=1, max_size=3),
        st.integers(0, 2),
    ),
    max_size=25,
)


Branch = tuple[set[bytes], set[bytes], bool]
"""What is added to, which may be impossible, what is put, and whether a range is deleted."""


def operations(branch: Branch) -> tuple[Add | Put | DeleteRange, ...]:
    added, put, deletes = branch
    return (*(Add(k, 1) for k in sorted(added)), *(Put(k, b"") for k in sorted(put)), *[DeleteRange(b"")] * deletes)


def item(
    number: int, compared: set[bytes], success: Branch, failure: Branch = (set(), set(), False), fate: str = "first"
) -> Item:
    conditions = tuple(Compare(k, "exists", "==", True) for k in sorted(compared))
    plan = LocalPlan(Transaction(conditions, operations(success), operations(failure)))
    return Item(number.to_bytes(16, "big"), plan, b"", Timestamp(number, 0), *FATES[fate])


def votes_depend_on(transaction: Transaction) -> set[bytes]:
    """On what is compared, and on what an addition in either branch finds; on everything if it deletes a range."""
    branches = (*transaction.success, *transaction.failure)
    if any(isinstance(op, DeleteRange) for op in branches):
        return set(KEYS)
    return {c.key for c in transaction.compare} | {op.key for op in branches if isinstance(op, Add)}


def may_write(transaction: Transaction) -> set[bytes]:
    branches = (*transaction.success, *transaction.failure)
    return set(KEYS) if any(isinstance(op, DeleteRange) for op in branches) else {op.key for op in branches}


def entry(position: int, shards: tuple[int, ...], items: list[Item]) -> Entry:
    message = AppMessage(b"m%015d" % position, shards, b"", 0)
    return Entry(position, message, Timestamp(position, 0), items, shards[1:], None, 0)


def may_signal(earlier: list[Entry], m: Entry, signal_at_delivery: bool) -> bool:
    """The rule, word for word, for what has a part: a bundle of several shards, of which something is in time."""
    if len(m.message.destinations) == 1 or all(i.expired for i in m.items):
        return False
    subset = all(set(e.message.destinations) <= set(m.message.destinations) for e in earlier)
    writing = [i for e in earlier for i in e.items if i.takes_effect]
    voting = [i for i in m.items if i.takes_effect]
    untouched = not any(
        may_write(w.plan.transaction) & votes_depend_on(v.plan.transaction) for w in writing for v in voting
    )
    if any(isinstance(op, DeleteRange) for i in voting for _, op in i.plan.every_operation()):
        untouched = not earlier
    return (subset or signal_at_delivery) and untouched


@settings(max_examples=200, deadline=None)
@given(deliveries, st.booleans())
def test_a_part_is_sent_exactly_when_the_rule_allows_it(plan, signal_at_delivery):
    log = Log(signal_at_delivery=signal_at_delivery)
    signalled: set[int] = set()

    def complete_what_is_ready() -> None:
        while log.entries and log.entries[0].ready:
            signalled.update(e.position for e in log.complete())
        pending = list(log.entries)
        for i, m in enumerate(pending):
            assert (m.position in signalled) == may_signal(pending[:i], m, signal_at_delivery), (i, m.position)

    for position, (shards, contents, completions) in enumerate(plan, start=1):
        m = entry(position, shards, [item(100 * position + n, *one) for n, one in enumerate(contents)])
        signalled.update(e.position for e in log.append(m))
        complete_what_is_ready()
        for _ in range(completions):
            if log.entries:
                head = log.entries[0]
                assert head.position in signalled
                head.parts = {shard: Part(head.message.id, head.timestamp, []) for shard in head.needed}
                complete_what_is_ready()


def test_a_range_that_is_deleted_and_votes_wait_for_one_another():
    log = Log()
    deletes, compares = (set(), set(), True), (set(), set(), False)
    first = entry(1, (0, 1), [item(1, set(), deletes)])
    second = entry(2, (0, 1), [item(2, {b"a"}, compares)])
    third = entry(3, (0, 1), [item(3, set(), deletes)])
    assert [log.append(m) for m in (first, second, third)] == [[first], [], []]
    assert [log.complete(), log.complete()] == [[second], [third]]


def test_nothing_is_remembered_of_what_is_complete():
    log = Log()
    for position in range(1, 50):
        items = [item(position, {b"a"}, (set(), {b"b", b"a"}, False))]
        log.items[items[0].id] = items[0]
        log.append(entry(position, (0, 1 + position % 3), items))
    for _ in range(1, 50):
        log.complete()
    assert not (log._last_writer or log._last_of_shards or log._blocked or log.by_id or log.items)
    assert log.completed == 49
