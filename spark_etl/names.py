"""What properties, violations and anomalies mean, in words for people."""

from __future__ import annotations

GUARANTEES = {
    "integrity": "Nothing is delivered twice, and nothing expired has an effect.",
    "validity": "What is delivered was multicast by somebody, to that shard.",
    "agreement in a shard": "The replicas of a shard deliver the same messages at the same positions.",
    "prefix order": "Each replica delivers in the order of positions and of timestamps.",
    "one order across shards": "All shards deliver in one order without a circle, and none leaves a message out.",
    "genuineness": "Only the sender and the destinations of a message take part in ordering it.",
    "optimistic deliveries": "How often an early delivery was in another order than the final one.",
    "results complete and equal": "Every delivery has one outcome, equal at all replicas; so are state digests.",
    "reads return what the order says": "Every read returned the last version before it.",
    "exactly once": "No transaction has its effect twice.",
    "moves of slots": "With each slot its new shard got all rows that the old one had, and no shard serves another's.",
    "clients saw what the journals say": "What was acknowledged is there, with the answer that the client was given.",
    "values as asked and as written": "Transactions did what was asked, and clients were told the values written.",
    "unknown outcomes resolved": "What became of operations whose outcome no client knows.",
    "leader reads": "Reads in no journal saw a position of the log, and none behind what clients already knew.",
    "reads as promised": "Other reads in no journal saw what stood there, no older than asked for, of one instant.",
    "watches": "Watches told every change within their bounds, once, in the order of versions, and nothing else.",
    "leases": "What is attached to a lease goes when that ends, all of it and nothing else.",
    "serializability": "Some order of all transactions, one at a time, explains every read.",
    "strict serializability": "Such an order also respects who was answered before whom was invoked.",
    "monotonic reads": "Within a session, no read goes back behind an earlier one.",
    "monotonic writes": "Within a session, writes take effect in their order.",
    "read your writes": "A session's reads see its own earlier writes.",
    "writes follow reads": "A session's writes come after what it has read.",
    "linearizability per key": "Each key for itself behaves as one copy, at one moment between call and answer.",
    "conservation of the bank's total": "Transfers neither make nor lose money.",
    "one ring (cycle)": "Whoever reads the whole ring sees keys that point to one another in one ring.",
    "no long fork": "Of two writes, no two readers each see the one that the other misses.",
    "set": "A later read has every acknowledged element, once, and none that nobody added.",
    "counter": "A read lies between what was acknowledged before it and what was attempted.",
}
"""Of every property, in the order in which they are checked: what comes first is what the later ones rest on."""

CYCLES = {
    "G0": "a circle of writes that overwrite one another",
    "G1c": "a circle of overwrites, and of reads of what was written",
    "G-single": "a circle with one read of what another transaction had already overwritten",
    "G-nonadjacent": "a circle with several reads of overwritten values, none right after another",
    "G2-item": "a circle with two reads of overwritten values in a row",
}
"""Adya 1999; Elle, Section 3.2."""

VIOLATIONS = {
    "duplicate-delivery": "a replica delivered one message twice, both within its deduplication window",
    "expired-with-effect": "a message delivered later than its id allows was applied",
    "never-submitted": "nobody multicast what was delivered",
    "wrong-destination": "a shard delivered what was not addressed to it",
    "multicast-elsewhere": "what was delivered was multicast to other shards than it was delivered for",
    "position-disagreement": "two replicas of a shard have different deliveries at one position",
    "lost-delivery": "a replica left a position out, or lacks what it said it had at its clean stop",
    "stop-disagreement": "a replica has more than it said it had at its last clean stop",
    "position-repeated": "a position stands twice in one journal",
    "delivered-out-of-order": "deliveries stand in the journal in another order than that of their positions",
    "timestamp-not-rising": "a later delivery has a smaller or equal timestamp",
    "timestamp-disagreement": "a message has two timestamps",
    "destination-disagreement": "a message has two sets of destinations",
    "timestamp-shared": "two messages have one timestamp",
    "payload-disagreement": "a message has two payloads",
    "bundle-disagreement": (
        "replicas account for other transactions in one message, in another order, or for another step of a move"
    ),
    "missed-delivery": "a destination shard went past a message without delivering it",
    "order-cycle": "deliveries at several replicas precede one another in a circle",
    "foreign-frame": "a frame passed to or from a process that has no part in the message it is about",
    "outcome-missing": "a delivery was completed without an outcome in the journal",
    "outcome-without-delivery": "an outcome of something that the replica did not deliver",
    "outcome-of-another-delivery": "the outcome at a position is another message's",
    "outcome-disagreement": "two replicas of a shard report different outcomes",
    "state-digest-disagreement": "two replicas of a shard hold different states at one position",
    "branch-disagreement": (
        "a transaction had its effect, or ran its success branch, at one shard only; or so did one that is nested in it"
    ),
    "fate-disagreement": "in one message, a transaction was new to one replica and refused or a repetition at another",
    "unwritten-version": "somebody read what nobody wrote",
    "stale-read": "a read returned an older version than the last one before it",
    "future-read": "a read returned a version that is not before its own",
    "two-values": "one version of a key was written with two values",
    "effect-twice": "one id had its effect twice",
    "taken-twice": "two deliveries of one id were both taken as the first",
    "repeated-without-first": "a delivery was called a repetition, and nothing with its id came before it",
    "mismatch-without-first": "an id was called used, and nothing with that id came before",
    "expired-early": "a transaction was called too late that was not older than one that was not",
    "step-out-of-turn": "a step of a move went on, handed over or ended what it could not",
    "left-behind": "a slot was handed over without the last version of a key of it",
    "given-otherwise": "a move gave a row with another value than was written, or one that had been deleted",
    "served-elsewhere": "a key was read or written in a shard that did not have its slot",
    "acknowledged-but-absent": "acknowledged, and lost or without effect",
    "refused-but-present": "reported as without effect, and applied",
    "version-mismatch": "a client was told something else",
    "branch-mismatch": "a client was told something else",
    "read-mismatch": "a client was told something else",
    "value-mismatch": "a client was told another value than was written at the version that it read",
    "unwritten-value": "a client was told a value that nobody ever wrote to that key",
    "not-as-asked": "the journals say that something else was done than the client asked for",
    "unknown-position": "a client was answered from a position that no replica has",
    "stale-position": "a client was answered from a position before one that was known when it asked",
    "position-went-back": "a client was answered from a position before one that it had been answered from",
    "unknown-place": "a client was answered from a position that no replica has, or from none of a key's shard",
    "not-as-it-stood": "a client was told another version than stood where it was read",
    "key-left-out": "a client was not told of a key that stood in its range where that was read",
    "otherwise-counted": "a client was told of another number of keys than stood in its range where that was read,"
    " or of more to follow where none did",
    "missed-what-was-answered": "a linearizable read did not see what had been answered before it was asked",
    "saw-what-was-asked-later": "a read saw what was asked for only when it had been answered",
    "older-than-promised": "a stale read did not see what had been answered longer before it was asked than it allows",
    "no-one-instant": "a linearizable read of several shards saw something without what came before that",
    "change-missed": "a watch was told of what came later, and not of a change within its bounds",
    "change-invented": "a watch was told of a change that no journal has",
    "change-otherwise": "a watch was told another value than was written",
    "told-again": "a watch was told of a transaction twice",
    "told-out-of-order": "a watch was told of a version when it had been told of everything up to a later one",
    "told-before-asked": "a watch was told of a change before it had been asked for",
    "watch-began-late": "a watch from now on began after what was asked for when it had begun",
    "outlived-its-lease": "a key was attached to a lease, and is still there after that has ended",
    "taken-along": "the end of a lease deleted a key that was not attached to it",
    "non-monotonic-read": "a client read an older version of a key than it had read before",
    "non-monotonic-write": "a client's later write has the smaller version, or was seen without its earlier one",
    "own-write-missed": "a client did not read what it had written, nor anything later",
    "write-before-read": "what a client wrote comes before, or was seen without, what it had read",
    "key-went-back": "a read or write of a key is before another one that had ended before it was invoked",
    "lost-update": "a transaction read and wrote a key, and another version is in between",
    "total-changed": "a read of all accounts saw another total",
    "money-made": "a transfer changed the sum of all accounts",
    "ring-broken": "a reader saw keys that do not point to one another in one ring",
    "long-fork": "of two readers each saw a write that the other one did not",
    "lost-element": "an acknowledged element is missing in a later read",
    "unexpected-element": "a read saw what nobody added, or before anybody did",
    "repeated-element": "a read saw an element twice",
    "counter-out-of-bounds": "a read is not between the acknowledged and the attempted sum",
}
"""Of an audit, besides cycles."""

ANOMALIES = {
    "G-other": "a circle of dependencies of no such shape, which the model that is named forbids",
    "long-fork": "two readers saw two writes in opposite orders",
    "lost-update": "several read one version and wrote the next",
    "G1a": "a read of what was aborted",
    "G1b": "a read of what its writer overwrote in the same transaction",
    "dirty-update": "an append to what was aborted",
    "internal": "a transaction's read does not fit what it did before",
    "future-read": "a transaction's read shows what it did later",
    "incompatible-order": "reads of a list that no order explains",
    "duplicate-elements": "an element twice",
    "garbage-read": "a read of what nobody wrote",
    "cyclic-versions": "reads, writes and real time have a register's versions succeed one another in a circle",
    "not-linearizable": "no order of the operations on one key respects real time",
    "not-strict-serializable": "no order of the transactions respects real time, found by search (values repeat)",
}
"""Of histories of any database, besides cycles."""

DEFINITIONS = {
    "read-uncommitted": ("no cycle of ww (no G0), and nothing read that nobody wrote", "Adya 1999, PL-1"),
    "read-committed": (
        "no aborted or intermediate reads, no cycle of ww and wr, and whoever has read from a transaction reads nothing"
        " older than its writes later on", "Biswas and Enea 2019; stronger than Adya's PL-2, which lacks the last",
    ),
    "read-atomic": ("a transaction's writes are seen all or none", "Biswas and Enea 2019"),
    "causal": ("what is seen includes all that it depends on", "Biswas and Enea 2019"),
    "consistent-view": ("no cycle with exactly one rw (no G-single)", "Adya 1999, PL-2+"),
    "prefix": ("all see prefixes of one order of commits", "Cerone and Gotsman 2018"),
    "snapshot-isolation": ("the same, and of two writers of a key one saw the other", "Cerone and Gotsman 2018"),
    "repeatable-read": ("no cycle of ww, wr and rw of items", "Adya 1999, PL-2.99"),
    "serializable": ("no cycle of ww, wr and rw", "Adya 1999, PL-3"),
}  # fmt: skip
"""Of each consistency model: what it asks for, and whose definition that is. ww: the later one overwrote what the other
wrote; wr: it read that; rw: it overwrote what the other had read (Adya 1999)."""

VARIANTS = (
    "with sessions, or with real time: what these put in order is a dependency, too (Daudjee and Salem 2006; Herlihy"
    " and Wing 1990)"
)


def definitions() -> list[str]:
    """A line per consistency model, and one on its variants."""
    lines = [f"{name.replace('-', ' ')}: {what} ({whose})" for name, (what, whose) in DEFINITIONS.items()]
    return [*lines, VARIANTS]


_NEEDS = {"-process": "with the order within sessions", "-realtime": "with the order of real time"}

EDGES = {
    "ww": "overwrote what it wrote",
    "wr": "read what it wrote",
    "rw": "overwrote what it read",
    "rt": "was invoked after it had ended",
    "realtime": "was invoked after it had ended",
    "session": "follows it in its session",
    "order": "was delivered after it",
}
"""What the transaction at an arrow's head did to the one at its tail."""


def meaning(name: str, known: dict[str, str]) -> str:
    """Of a violation or an anomaly; empty if the name is unknown."""
    if name in known:
        return known[name]
    base = next((name.removesuffix(suffix) for suffix in _NEEDS if name.endswith(suffix)), name)
    needs = _NEEDS.get(name.removeprefix(base), "")
    said = {**CYCLES, **known}.get(base, "")
    return ", ".join(filter(None, [said, needs])) if said else ""
