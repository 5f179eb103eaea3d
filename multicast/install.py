"""What is put into a journal between two lives: a snapshot, or a state with which a group begins.

A snapshot: see `multicast.snapshot`, which says why. A group that *begins with a state* (a backup of another one's)
treats it as the first delivery, which all members have had, and whose journals have dropped what led to it: so who
loses its disk gets it as a snapshot, clocks and stamps are above its timestamp, and of what was before nothing is
known.
"""

from __future__ import annotations

from collections.abc import Iterable

from multicast import records
from multicast.checkpoint import Checkpoints
from multicast.journal import Journal
from multicast.protocol import MulticastProtocol
from multicast.recorder import Recorder


def install(
    journal: Journal,
    protocol: MulticastProtocol,
    installed: records.Installed,
    given: Iterable[tuple[bytes, bytes]],
    incarnation: int,
    durability: str,
) -> None:
    """Between two lives: journal that this process has what its group had after a delivery. protocol: one that never
    ran. given: the snapshot's rows that are the protocol's, without OF_PROTOCOL. The application has yet to take over
    its own. OSError, JournalError: as if it had not been tried, or it may be tried again.
    """
    assert protocol.history is not None
    changes = protocol.history.taken(Checkpoints(journal).saved(), dict(given), installed.position, installed.timestamp)
    recorder = Recorder()
    recorder.offset = journal.end
    groups, name = dict(protocol.topology.groups), protocol.specification.name
    at = installed.at
    recorder.record(
        records.Started(incarnation, protocol.self_id, protocol.group, groups, name, durability, at)
    )
    recorder.record(installed)
    recorder.change((key, value, ()) for key, value in changes.items())
    recorder.record(records.Stopped(installed.position, installed.position, at))
    journal.append(recorder.take(1))
    journal.sync(durability == "fsync")
    journal.skip_to(installed.position)


def begin(
    journal: Journal,
    protocol: MulticastProtocol,
    first: records.Delivered,
    outcome: bytes,
    bases: Iterable[records.Base],
    durability: str,
) -> None:
    """Before its first life: this process's group begins with a state that counts as `first`, its delivery number 1,
    whose `outcome` is the application's. journal: an empty one. protocol: one that never ran, and has a `History`.
    OSError, JournalError: the journal is of no use."""
    assert protocol.history is not None
    recorder = Recorder()
    groups, name, at = dict(protocol.topology.groups), protocol.specification.name, first.at
    own = protocol.self_id
    recorder.record(records.Started(at, own, protocol.group, groups, name, durability, at))
    if own == first.message.origin:
        recorder.record(records.Submitted(first.message.id, first.message.destinations, at))
    recorder.change((key, value, ()) for key, value in protocol.history.given(first.position, first.timestamp))
    recorder.record(first)
    recorder.record(records.Completed(first.position, outcome, at))
    number = 1
    for base in bases:
        recorder.record(base)
        journal.append(recorder.take(number))
        number += 1
    recorder.record(records.Stopped(first.position, first.position, at))
    journal.append(recorder.take(number))
    journal.sync(durability == "fsync")
    journal.skip_to(first.position)
    Checkpoints(journal).advance()
