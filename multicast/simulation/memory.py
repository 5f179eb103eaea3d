"""What a process must still know after a restart: its promises, and what it has accepted and delivered.

When all that a process has put is on disk, a process that begins from there must know what it knows, as far as it
vouches for that. So what was changed and not saved, saved and not read, or left where it should have been deleted, is
found as soon as it matters; not only when a crash happens, and an election without the others, that need it.
Like in `invariants`, variables of protocols are known by name only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from multicast.membership import VIEW_PREFIX
from multicast.parts.delivered import KNOWN_PREFIX, LAST_KEY, delivered_at
from multicast.protocol import MulticastProtocol

_ENTRY_PREFIX = b"m"
Memory = dict[str, Any]
"""What it is -> its value."""


class Least(dict[Any, Any]):
    """There may be more after a restart, and no less."""


class But(dict[Any, Any]):
    """Nothing is said of the keys `but`."""

    but: frozenset[Any] = frozenset()


def memory(protocol: MulticastProtocol) -> Memory:
    """What this one must still know after a restart; empty for one of which this is not known."""
    look = _LOOKS.get(protocol.specification.name)
    return {"member": protocol.is_member(), **look(protocol)} if look is not None else {}


def _delivered(log: Any) -> Memory:
    tracked = {i: at for queue in log._unsettled.values() for at, i in queue}
    latest = {i: known[0] for i in tracked if (known := log.known(i)) is not None}
    unsettled = Least({i: at for i, at in tracked.items() if at == latest.get(i)})
    return {"position": log.position, "last": log.timestamp, "delivered": log._known, "unsettled": unsettled}


def _ballots(leadership: Any) -> Memory:
    every = leadership.membership.views.items()
    views = {group: (views.of, views.counting, views.notes) for group, views in every}
    made = {number: at for number, at in leadership.election.views._made.items() if at}
    return {"promised": leadership.election.promised, "joined": leadership.joined, "views": views, "made": made}


def _white_box(p: Any) -> Memory:
    """What was delivered is settled after a restart, if a later copy has taken its place: who gave that had forgotten
    the first one, which was settled then. Until that copy is accepted the first one stays on disk, and may be back."""
    held = p.entries.values()
    accepted = But({
        e.id: (e.local, (e.final, e.position) if e.position else None)
        for e in held
        if e.phase >= 2 and e.message is not None
    })
    accepted.but = frozenset(e.id for e in held if e.phase < 2 and p.log.known(e.id) is not None)
    log = _delivered(p.log)
    log["unsettled"] = Least({i: at for i, at in log["unsettled"].items() if p.entries.delivered_at(i) is not None})
    return {"clock": p.clock._saved, "accepted": accepted, **_ballots(p.leadership), **log}


def _primcast(p: Any) -> Memory:
    """What was delivered may be back in T after a restart, though an entry for a later copy took its place before; and
    it is settled then, once T has the later copy."""
    mine = [e for e in p.entries.values() if e.epoch is not None and e.message is not None]
    placed = {e.id: (e.epoch, e.ts, e.place) for e in mine if not e.position}
    delivered = Least({e.id: (e.epoch, e.ts, e.position) for e in mine if e.position})
    state = {"state": (p.clock.value, p.t.length, p.t.reach), "T": placed, "delivered in T": delivered}
    log = _delivered(p.log)
    log["unsettled"] = Least({i: at for i, at in log["unsettled"].items() if p.copies.destinations(i, at) is not None})
    return {**state, **_ballots(p.leadership), **log}


def _paxos(paxos: Any) -> Memory:
    i = paxos.instances
    return {"promised": paxos.promised, "accepted": i.accepted, "decided": i.decided, "low": i.low}


def _is_known(log: Any, entry: Any) -> bool:
    """Whether what is remembered of the message is the delivery of this entry, and not of another copy."""
    known = log._delivered.known(entry.message.id)
    if known is None or known[1] != entry.position:
        return False
    return bool(entry.local == max(local for local in log._locals[entry.message.id] if local <= known[0]))


def _replicated(p: Any) -> Memory:
    log = p.member.log
    saved = p.specification.name == "ft_skeen"  # a fast one finds the final timestamp again
    entries = {
        e.local: (e.message.id, e.logged, "delivered and forgotten")
        if e.position and not _is_known(log, e)
        else (e.message.id, e.logged, e.final if saved or e.position else None, e.position)
        for e in log.entries.values()
    }
    applied = {"applied": log.instance, "clock of the log": log.clock, "seen": log.seen}
    return {"entries": entries, **applied, **_paxos(p.member.paxos), **_delivered(p.member.deliveries)}


def _skeen(p: Any) -> Memory:
    stamps = {i: (e.stamps, e.delivered) for i, e in p._entries.items()}
    final = Least({i: e.final for i, e in p._entries.items() if e.final is not None and not e.delivered})
    return {"stamps": stamps, "final": final, **_delivered(p._log)}


def _toto(p: Any) -> Memory:
    view, r = p.view, p.record
    held = {"held": list(view.held), "order": (p.log.position, p.log.timestamp)}
    return {"view": (r.number, tuple(r.members), r.stopped, r.complete), **held, **_paxos(p.paxos)}


def _quasi_genuine(p: Any) -> Memory:
    acked = {g: c.acked for g, c in p.channels.of.items() if g != p.group}
    items = p.channels.waiting.items.items()
    waiting = Least({t: w.message.id for t, w in items if w.number <= acked.get(w.source, w.number)})
    return {"instance": p.stream.base.instance, "acked": acked, "waiting": waiting, **_paxos(p.paxos)}


_LOOKS: dict[str, Callable[[Any], Memory]] = {
    "white_box": _white_box, "primcast": _primcast, "ft_skeen": _replicated, "fastcast": _replicated, "skeen": _skeen,
    "toto": _toto, "quasi_genuine": _quasi_genuine,
}  # fmt: skip


def snapshot_faults(giver: Any, position: int, rows: Mapping[bytes, bytes]) -> Iterator[str]:
    """What is wrong with a snapshot up to this delivery, by what its giver, a protocol with a `History`, knows now.
    rows: what that gave. There may be more in it: what the giver has forgotten since."""
    log = giver.log
    for message_id, (_, number) in log._known.items():
        entry = giver.entries.get(message_id)
        if 0 < number <= position and KNOWN_PREFIX + message_id not in rows:
            yield f"it does not say that {message_id.hex()} was delivered"
        elif entry is not None and 0 < entry.position <= position and _ENTRY_PREFIX + message_id not in rows:
            yield f"it lacks {message_id.hex()}, which is not settled"
    views = dict(giver.leadership.views_given(position))
    given = {key: value for key, value in rows.items() if key[:1] == VIEW_PREFIX}
    if views != given:
        yield f"its views are {given}, not {views}"
    for key, value in rows.items():
        if key in given:
            continue
        if key[:1] not in (KNOWN_PREFIX, LAST_KEY, _ENTRY_PREFIX):
            yield f"it holds {key!r}, for which one process alone vouches"
        elif key[:1] != _ENTRY_PREFIX and delivered_at(value)[1] > position:
            yield f"it holds delivery {delivered_at(value)[1]}"
        elif key[:1] == _ENTRY_PREFIX and KNOWN_PREFIX + key[1:] not in rows:
            yield f"it holds {key[1:].hex()} and does not say that it was delivered"


def forgotten(before: Memory, after: Memory) -> str:
    """What is not the same, in a sentence; empty if all is."""
    for what, value in before.items():
        found = after[what]
        if found == value:
            continue
        if isinstance(value, dict):
            both = value if isinstance(value, Least) else {**value, **found}
            but = value.but if isinstance(value, But) else ()
            keys = [k for k in both if value.get(k) != found.get(k) and k not in but]
            if not keys:
                continue
            return f"{what} {keys[0]!r}: {value.get(keys[0])}, after a restart {found.get(keys[0])}"
        return f"{what}: {value}, after a restart {found}"
    return ""
