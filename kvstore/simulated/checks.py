"""Checks of a finished simulated run: what the journals and the client history say must fit together.

Small and direct, for some thousand transactions; the audit with Spark is a second, independent opinion. Each check
returns sentences, one per violation; `check` puts the name of the check before each. tests/planted/store.py has a bug
for every one of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from kvstore.api import leases
from kvstore.api.model import RANGES, DeleteRange, NoneNewer, Range, Result, between, bounds, move_of
from kvstore.api.nesting import course
from kvstore.api.shard_map import is_everywhere, own_slot, slot_of, slots_of
from kvstore.core.audit import (
    APPLIED,
    EXPIRED,
    MISMATCH,
    MOVED,
    REPEATED,
    MoveOutcome,
    NestedOutcome,
    decode_outcomes,
)
from kvstore.core.bundles import is_unnamed
from kvstore.core.messages import Answered, Refused
from kvstore.simulated import backups, contests, past, peeking, reading, remembered, shown, watched
from kvstore.simulated.clients import History, Operated, reads_of
from kvstore.simulated.cluster import Executed, Logged, Moved, SimulatedCluster
from kvstore.simulated.past import AskedAt
from kvstore.simulated.peeking import Peeked
from kvstore.simulated.repeating import omitted, same_answer
from kvstore.simulated.serial import Written, serial_execution
from kvstore.simulated.steps import Steps
from kvstore.simulated.watched import Watched
from multicast.types import ZERO, GroupId, MessageId, ProcessId, Timestamp

Logs = dict[GroupId, list[Executed]]

Owner = Callable[[bytes, Timestamp], GroupId]
"""Whose a key was when everything up to a version had taken effect, and nothing after it."""
Within = Callable[[bytes], bool]

STRICTNESS = "strict serializability"
_NEVER = ("expired", "id_reused")
"""Who is told so has had no effect, ever."""


def check(
    cluster: SimulatedCluster, history: History, asked: Sequence[AskedAt] = (), watches: Sequence[Watched] = (),
    peeked: Sequence[Peeked] = (),
) -> list[str]:  # fmt: skip
    """Everything below."""
    logs, disagreements = agreement(cluster)
    moved, differing = moves(logs)
    states, memory = final_states(cluster, logs), remembered.check(cluster, logs, moved)
    written, operations = Written(), history.operations.values()
    serial = serial_execution(logs.values(), told(history), written)
    asked = [*asked, *reading.at_versions(history)]
    at_versions = past.check(logs.values(), asked, max(moved, default=ZERO) if cluster.keeps_history else None)
    differing_watches = watched.check(logs.values(), watches, operations, cluster.keeps_history)
    rows = shown.check(written, operations, asked, cluster.kept, shown.held(cluster, logs))
    unordered = reading.Unordered(cluster, logs, history, moved)
    seen = {shard: list(log) for shard, log in logs.items()}
    unordered.insert(seen, strict=False)
    unordered.insert(logs, strict=True)
    found = {
        "agreement": disagreements,
        "exactly once": exactly_once(seen, history),
        "moves": differing + ownership(cluster, logs, moved),
        "final states": states,
        "reads": reads(seen, moved),
        "ages of reads": unordered.ages(),
        "answers": answers(seen, history) + omitted(cluster, history, bool(moved))
        + contests.check(logs.values(), operations),
        "serial execution": serial,
        "reads at versions": at_versions + unordered.versions(),
        "watches": differing_watches,
        STRICTNESS: strict_serializability(logs, history, unordered.owner),
        "conservation": conservation(history),
        "cuts": backups.check(logs, cluster.kept, moved, list(cluster.topology.groups), cluster.keeps_history),
        "memory": memory,
        "rows": rows,
        "rights": peeking.check(logs.values(), peeked, operations),
    }
    return [f"{name}: {text}" for name, texts in found.items() for text in texts]


def agreement(cluster: SimulatedCluster) -> tuple[Logs, list[str]]:
    """Equal position, equal outcomes and state, in every replica of a shard. Returns the transactions of each shard, as
    all its logs together have them, those on lost disks among them."""
    violations: list[str] = []
    logs: Logs = {}
    for shard in cluster.shards:
        members = [pid for pid, of in cluster.topology.group_of.items() if of == shard and pid in cluster.replicas]
        found = {pid: cluster.log(pid) for pid in members}
        whole: dict[int, Logged] = {}
        for log in (*found.values(), *(lost for pid in members for lost in cluster.lost_logs(pid))):
            for logged in log:
                if logged.position not in whole or not whole[logged.position].record:
                    whole[logged.position] = logged
        if any(position not in whole for position in range(1, len(whole) + 1)):
            violations.append(f"shard {shard}: a delivery stands in nobody's journal")
        logs[shard] = [executed for _, logged in sorted(whole.items()) for executed in logged.transactions]
        for pid, log in found.items():
            violations += _disagreements(shard, pid, log, cluster.installed(pid), whole)
    return logs, violations


def _disagreements(
    shard: GroupId, pid: ProcessId, log: list[Logged], installed: dict[int, bytes], whole: dict[int, Logged]
) -> Iterator[str]:
    """Of one replica's log with that of its shard. installed: position -> state digest of its snapshots."""
    for position, digest in installed.items():
        record = whole[position].record if position in whole else b""
        if record and decode_outcomes(record).state_digest not in (None, digest):
            yield f"replica {pid}: the snapshot of position {position} is another state"
    place = 0
    for logged in log:
        if logged.position != place + 1 and not (logged.position > place and logged.position - 1 in installed):
            yield f"replica {pid}: delivery {logged.position} follows delivery {place}"
            return
        place = logged.position
        other = whole[place]
        if (logged.id, logged.timestamp) != (other.id, other.timestamp):
            yield f"shard {shard}: replica {pid} delivered another message at position {place}"
            return
        if logged.record and other.record and logged.record != other.record:
            yield f"shard {shard}: replica {pid} has another outcome at position {place}"
            return


def exactly_once(logs: Logs, history: History) -> list[str]:
    """Applied at most once, everywhere or nowhere, and according to what the client was told."""
    violations: list[str] = []
    applied: dict[MessageId, dict[GroupId, Executed]] = {}
    seen: set[MessageId] = set()
    firsts: dict[MessageId, list[Executed]] = {}
    for executed in [executed for log in logs.values() for executed in log]:
        if executed.outcome is not None and executed.outcome.status not in (EXPIRED, MOVED, REPEATED):
            firsts.setdefault(executed.id, []).append(executed)
    for shard, log in logs.items():
        first: dict[MessageId, Executed] = {}
        for executed in log:
            if move_of(executed.transaction) is not None:
                continue
            if not is_unnamed(executed.id) and not leases.ends(executed.transaction):
                seen.add(executed.id)
            if executed.outcome is None:
                continue
            elsewhere = [e for e in firsts.get(executed.id, ()) if e.version < executed.version]
            violations += _misjudged(executed, executed.outcome.status, first.get(executed.id), elsewhere)
            if executed.outcome.status not in (EXPIRED, MOVED):
                first.setdefault(executed.id, executed)
            if executed.outcome.status != APPLIED:
                continue
            places = applied.setdefault(executed.id, {})
            if shard in places:
                violations.append(f"{executed.id.hex()} was applied twice in shard {shard}")
            places[shard] = executed
    for message_id, places in applied.items():
        some = next(iter(places.values()))
        if set(places) != set(some.destinations):
            violations.append(f"{message_id.hex()} was applied in shards {sorted(places)}, not {some.destinations}")
        if len({(e.version, e.outcome.succeeded) for e in places.values() if e.outcome}) != 1:
            violations.append(f"{message_id.hex()} ended differently in different shards")
        if any([e.transaction != some.transaction for e in places.values()]):
            violations.append(f"{message_id.hex()} was applied in different shards as different transactions")
    known_as = applied.keys() | {executed.version for places in applied.values() for executed in places.values()}
    for message_id, operation in history.operations.items():
        if operation.result is not None and _name(operation) not in known_as:
            violations.append(f"{message_id.hex()} ({operation.f}) was acknowledged and is in no journal")
        if operation.failed and message_id in applied:
            violations.append(f"{message_id.hex()} ({operation.f}) was called without effect and was applied")
    violations += [f"{i.hex()} was executed, but no client asked for it" for i in seen if i not in history.operations]
    return violations


def _misjudged(
    executed: Executed, status: int, first: Executed | None, elsewhere: list[Executed]
) -> Iterator[str]:
    """Whether it came too late follows from the log of one shard, and mostly whether it was there before. first: of
    this id, in time. elsewhere: earlier copies in any shard."""
    name, same = executed.id.hex(), first is not None and first.transaction == executed.transaction
    applied = first is not None and first.outcome is not None and first.outcome.status == APPLIED
    if status == REPEATED and not any([e.transaction == executed.transaction for e in elsewhere]):
        yield f"{name} is called a repetition at position {executed.position} and is the first"
    if status == MISMATCH and same and applied:
        yield f"{name} is called another transaction at position {executed.position} and is a repetition"
    if status == EXPIRED and not executed.expired:
        yield f"{name} came in time at position {executed.position} and is called too late"
    if status == APPLIED and executed.expired:
        yield f"{name} came too late at position {executed.position} and was applied"


def moves(logs: Logs) -> tuple[dict[Timestamp, Moved], list[str]]:
    """Those that were completed, by their timestamps; what the target took must be what the source gave."""
    found: dict[Timestamp, dict[GroupId, Moved]] = {}
    complete: dict[GroupId, Timestamp] = {}
    violations: list[str] = []
    for shard, log in logs.items():
        rows: dict[tuple[GroupId, GroupId], dict[bytes, Timestamp]] = {}
        for executed in log:
            outcome = executed.outcome
            if outcome is None:
                break
            complete[shard] = executed.version
            if not isinstance(outcome, MoveOutcome) or outcome.given is None:
                continue
            given, way = outcome.given, (outcome.source, outcome.target)
            if given.first:
                rows[way] = {}
            for row in given.rows:
                if rows[way].pop(row.key, None) == row.version:
                    violations.append(f"the step at {executed.version} gives {row.key!r} again, which has not changed")
                if row.value is not None:
                    rows[way][row.key] = row.version
            if given.slots or given.last:
                slots = frozenset(slot for first, last in given.slots for slot in range(first, last + 1))
                going = {key: rows[way].pop(key) for key in [*rows[way]] if slot_of(key) in slots}
                moved = Moved(outcome.source, outcome.target, slots, going)
                found.setdefault(executed.version, {})[shard] = moved
    for version, ends in found.items():
        some = next(iter(ends.values()))
        lacking = [s for s in (some.source, some.target) if s not in ends and complete.get(s, ZERO) >= version]
        if lacking or any([moved != some for moved in ends.values()]):
            violations.append(f"the move at {version} is another one in its target than in its source")
    return {version: next(iter(ends.values())) for version, ends in found.items()}, violations


def ownership(cluster: SimulatedCluster, logs: Logs, moved: dict[Timestamp, Moved]) -> list[str]:
    """Each key is served by the shard that has its slot at that place of the order, and who is told that it moved was
    wrong."""
    violations: list[str] = []
    owner = dict(enumerate(cluster.shard_map.slots))
    given: dict[GroupId, set[GroupId]] = {}
    done: set[Timestamp] = set()
    steps = Steps()
    for version, shard, executed in _in_order(logs):
        outcome, name = executed.outcome, executed.id.hex()
        violations += steps.judge(shard, executed, owner)
        if version in moved and version not in done:
            done.add(version)
            move = moved[version]
            if any([owner[slot] != move.source for slot in move.slots]):
                violations.append(f"the move at {version} gave slots that shard {move.source} did not have")
            owner |= dict.fromkeys((*move.slots, own_slot(move.target)), move.target)
            given.setdefault(move.source, set()).add(move.target)
        if outcome is None or move_of(executed.transaction) is not None:
            continue
        # A read of several shards that is not ordered is of another place in each of them: by its keys there, and if it
        # is of all keys, by what that shard has given away.
        ordered = executed.version != ZERO
        owners = {owner[slot] for slot in slots_of(executed.transaction)} if ordered else set()
        if is_everywhere(cluster.shard_map.homes_of(executed.transaction)[0]):
            owners |= set(owner.values()) if ordered else given.get(shard, set())
        if outcome.status == MOVED and owners <= set(executed.destinations):
            violations.append(f"{name} was called moved at {version}, and went to the right shards")
        if outcome.status == APPLIED and not owners <= set(executed.destinations):
            violations.append(f"{name} was applied at {version} in {executed.destinations}, its keys are in {owners}")
        for key in [*(read.key for read in outcome.reads), *(write.key for write in outcome.writes)]:
            if owner[slot_of(key)] != shard:
                violations.append(f"{name} was served {key!r} by shard {shard} at {version}: it is another one's")
    return violations


def final_states(cluster: SimulatedCluster, logs: Logs) -> list[str]:
    """What replicas hold that have completed everything is what the logs leave, each key in one shard."""
    if any([executed.outcome is None for log in logs.values() for executed in log]):
        return []
    values: dict[bytes, Timestamp] = {}
    for executed in sorted([e for log in logs.values() for e in log], key=lambda e: e.version):
        for write in executed.outcome.writes if executed.outcome is not None else ():
            values.pop(write.key, None)
            if write.value is not None:
                values[write.key] = executed.version
    violations = []
    held: dict[GroupId, dict[bytes, Timestamp]] = {}
    for shard in logs:
        for store in list(remembered.complete(cluster, logs, shard).values())[:1]:
            held[shard] = {row.key: row.version for row in shown.all_of(store)}
    if len(held) < len(logs):
        return []
    for key in sorted(values.keys() | {key for rows in held.values() for key in rows}):
        found = {shard: rows[key] for shard, rows in held.items() if key in rows}
        if list(found.values()) != [values[key]] * (key in values):
            violations.append(f"{key!r} was last written at {values.get(key)}, and the shards hold {found}")
    return violations


def reads(logs: Logs, moved: dict[Timestamp, Moved]) -> list[str]:
    """Every read in a journal saw the version that the log before it left."""
    violations: list[str] = []
    for shard, log in logs.items():
        versions: dict[bytes, Timestamp] = {}
        for executed in log:
            outcome = executed.outcome
            if outcome is None:
                continue
            move = moved.get(executed.version)
            if move is not None and isinstance(outcome, MoveOutcome):
                versions |= move.rows if shard == move.target else dict.fromkeys(move.rows, ZERO)
            for read in outcome.reads:
                if read.version != versions.get(read.key, ZERO):
                    violations.append(
                        f"shard {shard}, position {executed.position}: read {read.key!r} at {read.version}, "
                        f"the log says {versions.get(read.key, ZERO)}"
                    )
            for write in outcome.writes:
                versions[write.key] = ZERO if write.value is None else executed.version
    return violations


def answers(logs: Logs, history: History) -> list[str]:
    """What clients were told is what the journals hold."""
    violations: list[str] = []
    journaled: dict[MessageId | Timestamp, tuple[Timestamp, bool, dict[bytes, Timestamp]]] = {}
    for log in logs.values():
        for executed in log:
            if executed.outcome is not None and executed.outcome.status == APPLIED:
                entry = journaled.setdefault(executed.id, (executed.version, executed.outcome.succeeded, {}))
                entry[2].update((read.key, read.version) for read in executed.outcome.reads)
                journaled[executed.version] = entry
    for message_id, operation in history.operations.items():
        result = operation.result
        known = journaled.get(_name(operation))
        violations += _told_otherwise(operation, known and known[:2])
        if result is None or known is None:
            continue
        if not operation.unordered and (result.version, result.succeeded) != known[:2]:
            violations.append(f"{message_id.hex()} was answered {result.version}, the journals say {known[0]}")
        if operation.results_omitted or operation.consistency == "stale":  # that is what `reads` judges
            continue
        for key, version in reads_of(operation).items():
            if known[2].get(key) != version:
                violations.append(f"{message_id.hex()}: the client read {key!r} at {version}, the journals differ")
    return violations


def _told_otherwise(operation: Operated, known: tuple[Timestamp, bool] | None) -> Iterator[str]:
    """What other replicas have told. known: version and branch by the journals, None if it was not applied."""
    name, first = operation.id.hex(), operation.result
    for other in operation.told:
        if isinstance(other, Answered):
            told = other.result
            if first is not None and not same_answer(operation, other):
                yield f"{name} was answered {first}, and through another replica {told}"
            elif not told.failure and (told.version, told.succeeded) != known:
                yield f"{name} was answered {told} through another replica, the journals say {known}"
        elif isinstance(other, Refused) and other.code in _NEVER and known is not None and not operation.contested:
            yield f"{name} was applied at {known[0]}, and through another replica it is called {other.code}"


def _name(operation: Operated) -> MessageId | Timestamp:
    """By which the logs know it: what was ordered without an id by its version."""
    if operation.unnamed is None or operation.unordered:
        return operation.id
    return operation.result.version if operation.result is not None else ZERO


def told(history: History) -> dict[Timestamp, Result]:
    """What clients were told, by version, except of reads at leaders."""
    found = {}
    for operation in history.operations.values():
        result = operation.result or operation.impossible
        if result is not None and not operation.results_omitted and not operation.unordered:
            found[result.version] = result
    return found


def conservation(history: History) -> list[str]:
    """Every read of all accounts saw the same total."""
    totals: dict[int, str] = {}
    for event in history.events:
        if event.f == "read_all" and event.type == "ok" and event.value:
            totals.setdefault(sum(event.value.values()), event.id)
    return [] if len(totals) <= 1 else [f"reads of all accounts saw different totals: {totals}"]


def strict_serializability(logs: Logs, history: History, owner: Owner) -> list[str]:
    """One cycle of transactions, if there is any: each precedes the next in a shard's log by a shared key, or ended
    before the next began in real time."""
    graph: dict[object, set[object]] = {}
    _add_key_edges(graph, _in_order(logs), owner)
    _add_real_time_edges(graph, logs, history)
    cycle = _find_cycle(graph)
    if not cycle:
        return []
    names = []
    for node in cycle:
        if isinstance(node, bytes):
            operation = history.operations.get(node)
            names.append(f"{operation.f if operation else '?'} {node.hex()}")
    return ["a cycle: " + " -> ".join([*names, names[0]])]


def _in_order(logs: Logs) -> list[tuple[Timestamp, GroupId, Executed]]:
    """All logs as one, with the timestamp and the shard of each: a key may have been in several, one after the other.
    What was read at a leader has the timestamp of what it saw last."""
    placed: list[tuple[Timestamp, GroupId, int, Executed]] = []
    for shard, log in logs.items():
        at = ZERO
        for i, executed in enumerate(log):
            at = max(at, executed.version)
            placed.append((at, shard, i, executed))
    return [(at, shard, executed) for at, shard, _, executed in sorted(placed, key=lambda place: place[:3])]


def _add_key_edges(
    graph: dict[object, set[object]], log: list[tuple[Timestamp, GroupId, Executed]], owner: Owner
) -> None:
    """Writer -> reader, reader -> next writer, writer -> next writer. A range, but for one of a lease, is a read of
    all that lies in it; of one that stands at several places, of what is its shard's at each."""
    last_writer: dict[bytes, MessageId] = {}
    readers: dict[bytes, list[MessageId]] = {}
    ranges: list[tuple[Within, MessageId]] = []
    for at, shard, executed in log:
        outcome = executed.outcome
        if outcome is None or outcome.status != APPLIED:
            continue
        node = executed.id
        before: set[MessageId] = set()
        for read in outcome.reads:
            if read.key in last_writer:
                before.add(last_writer[read.key])
            readers.setdefault(read.key, []).append(node)
        truths = outcome.truths if isinstance(outcome, NestedOutcome) else b""
        operations = course(executed.transaction, outcome.succeeded, truths)
        all_in = [op for op in operations if isinstance(op, RANGES) and not getattr(op, "lease", b"")]
        found = [_within(op, executed, shard, at, owner) for op in all_in]
        before.update(w for within in found for key, w in last_writer.items() if within(key))
        for write in outcome.writes:
            if write.key in last_writer:
                before.add(last_writer[write.key])
            before.update(readers.pop(write.key, []))
            before.update(reader for within, reader in ranges if within(write.key))
            last_writer[write.key] = node
        ranges += [(within, node) for within in found]
        for earlier in before:
            if earlier != node:
                graph.setdefault(earlier, set()).add(node)
        graph.setdefault(node, set())


def _within(
    operation: Range | DeleteRange | NoneNewer, executed: Executed, shard: GroupId, at: Timestamp, owner: Owner
) -> Within:
    first, end = bounds(operation)
    if executed.version != ZERO or len(executed.destinations) == 1:
        return lambda key: between(key, first, end)
    return lambda key: between(key, first, end) and owner(key, at) == shard


def _add_real_time_edges(graph: dict[object, set[object]], logs: Logs, history: History) -> None:
    """Through a chain of the instants at which operations ended, so that there are few edges."""
    ends = sorted({op.completed_us for op in history.operations.values() if op.completed_us is not None})
    for earlier, later in pairwise(ends):
        graph.setdefault(earlier, set()).add(later)
    unnamed = {executed.version: executed.id for log in logs.values() for executed in log if executed.version != ZERO}
    for operation in history.operations.values():
        name = _name(operation)
        node = unnamed.get(name) if isinstance(name, Timestamp) else name
        if node not in graph:
            continue
        if operation.completed_us is not None:
            graph[node].add(operation.completed_us)
        index = bisect_left(ends, operation.invoked_us)
        if index:
            graph.setdefault(ends[index - 1], set()).add(node)


def _find_cycle(graph: dict[object, set[object]]) -> list[object]:
    """Some cycle, by depth-first search without recursion; [] if there is none."""
    state: dict[object, int] = {}
    for root in graph:
        if root in state:
            continue
        path: list[object] = [root]
        stack: list[Iterator[object]] = [_following(graph, root)]
        state[root] = 1
        while stack:
            following = next(stack[-1], None)
            if following is None:
                stack.pop()
                state[path.pop()] = 2
            elif following not in state:
                state[following] = 1
                path.append(following)
                stack.append(_following(graph, following))
            elif state[following] == 1:
                return path[path.index(following) :]
    return []


def _following(graph: dict[object, set[object]], node: object) -> Iterator[object]:
    """In an order that does not depend on hashes, so that a run always shows the same cycle."""
    return iter(sorted(graph.get(node, ()), key=lambda n: (isinstance(n, int), n)))
