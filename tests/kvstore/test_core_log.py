"""When a transaction may be signalled: the log's blocker against the rule as it is written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.api.model import Compare, Put, Transaction
from kvstore.core.execution import LocalPlan
from kvstore.core.log import Entry, Log
from multicast.types import AppMessage, Timestamp

KEYS = [b"a", b"b", b"c"]

deliveries = st.lists(
    st.tuples(
        st.sets(st.integers(0, 3), min_size=1, max_size=3).map(lambda s: tuple(sorted(s | {0}))),
        st.sets(st.sampled_from(KEYS), max_size=2),
        st.sets(st.sampled_from(KEYS), max_size=2),
        st.integers(0, 2),
    ),
    max_size=25,
)


def entry(position: int, shards: tuple[int, ...], reads: set[bytes], writes: set[bytes]) -> Entry:
    transaction = Transaction(
        tuple(Compare(k, "exists", "==", True) for k in sorted(reads)), tuple(Put(k, b"") for k in sorted(writes))
    )
    message = AppMessage(position.to_bytes(16, "big"), shards, b"", 0)
    return Entry(position, message, Timestamp(position, 0), False, LocalPlan(transaction), b"", (), None, 0)


def may_signal(earlier: list[Entry], m: Entry, signal_at_delivery: bool) -> bool:
    """The rule, word for word, for what has a part: a transaction of several shards."""
    subset = all(set(e.message.destinations) <= set(m.message.destinations) for e in earlier)
    untouched = not any(e.plan.written_keys() & m.plan.condition_keys() for e in earlier)
    return len(m.message.destinations) > 1 and (subset or signal_at_delivery) and untouched


@settings(max_examples=300, deadline=None)
@given(deliveries, st.booleans())
def test_a_part_is_sent_exactly_when_the_rule_allows_it(plan, signal_at_delivery):
    log = Log(signal_at_delivery)
    signalled: set[int] = set()

    def check() -> None:
        pending = list(log.entries)
        for i, m in enumerate(pending):
            assert (m.position in signalled) == may_signal(pending[:i], m, signal_at_delivery), (i, m.position)

    for position, (shards, reads, writes, completions) in enumerate(plan, start=1):
        m = entry(position, shards, reads, writes)
        signalled.update(e.position for e in log.append(m))
        check()
        for _ in range(completions):
            if log.entries:
                head = log.entries[0]
                assert head.position in signalled or len(head.message.destinations) == 1
                signalled.update(e.position for e in log.complete())
                check()


def test_nothing_is_remembered_of_what_is_complete():
    log = Log()
    for position in range(1, 50):
        log.append(entry(position, (0, position % 3), {b"a"}, {b"b", b"a"}))
    for _ in range(1, 50):
        log.complete()
    assert not (log._last_writer or log._last_of_shards or log._blocked or log.by_id) and log.completed == 49
