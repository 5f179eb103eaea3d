"""Installing a snapshot: what is put into the journal between two lives. See `multicast.snapshot`, which says why."""

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
