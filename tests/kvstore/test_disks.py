"""What a replica does about damage in its directory: it serves nothing of it, says what to do, and that helps."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from kvstore import serve
from kvstore.api.model import CUT, Get, Put, Transaction
from kvstore.config import ClusterConfig, ConfigError, replica_directory
from kvstore.core.messages import Answered
from kvstore.host import LiveReplica
from kvstore.storage.backend import StorageError
from multicast.records import JournalError
from multicast.runtime.links import ACK_DELAY_S
from tests.house import ROOT
from tests.kvstore.live import executed, make_cluster

PAGE = (ROOT / "kvstore" / "DISKS.md").read_text()
VALUE = b"the value of k, long enough to be found"


async def written(directory: Path) -> ClusterConfig:
    """A replica that has ended in good order, with a key, and one before it, since the first is read at once."""
    made = make_cluster(directory, 1, 1, "skeen")
    replica = LiveReplica(directory, made, 0)
    await replica.start()
    answer = await executed(replica, replica.new_message_id(), Transaction((), (Put(b"a", b"v"), Put(b"k", VALUE))))
    assert isinstance(answer, Answered)
    await replica.stop()
    return made


async def value(directory: Path, made: ClusterConfig) -> bytes:
    """What is read from it, in another life."""
    replica = LiveReplica(directory, made, 0)
    await replica.start()
    answer = await executed(replica, replica.new_message_id(), Transaction((), (Get(b"k"),)))
    await replica.stop()
    assert isinstance(answer, Answered) and answer.result.results[0].found is not None, replica.failure()
    return answer.result.results[0].found.value


async def test_a_changed_row_ends_the_replica_and_the_journal_makes_its_state_anew(tmp_path: Path) -> None:
    made = await written(tmp_path)
    data = replica_directory(tmp_path, 0) / "data"
    content = (data / "data.mdb").read_bytes()
    (data / "data.mdb").write_bytes(content.replace(VALUE, VALUE.swapcase()))
    replica = LiveReplica(tmp_path, made, 0)
    await replica.start()
    answer = await executed(replica, replica.new_message_id(), Transaction((), (Get(b"k"),)))
    await replica.failed
    await replica.stop()
    assert not isinstance(answer, Answered)
    assert f"move {data} away and start again: it is made anew from the journal" in replica.failure()
    shutil.rmtree(data)
    assert await value(tmp_path, made) == VALUE


async def test_a_backup_that_meets_a_changed_row_ends_the_replica(tmp_path: Path) -> None:
    made = await written(tmp_path)
    data = replica_directory(tmp_path, 0) / "data"
    (data / "data.mdb").write_bytes((data / "data.mdb").read_bytes().replace(VALUE, VALUE.swapcase()))
    replica = LiveReplica(tmp_path, made, 0)
    await replica.start()
    answer = await executed(replica, replica.new_message_id(), CUT)
    assert isinstance(answer, Answered)
    kept = replica.cut(answer.result.version)
    assert kept is not None
    with pytest.raises(StorageError, match="damaged"):
        await asyncio.to_thread(kept.read, b"")
    await asyncio.wait_for(replica.failed, 60)
    await replica.stop()
    assert f"move {data} away and start again" in replica.failure()


async def test_a_state_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    made = await written(tmp_path)
    data = replica_directory(tmp_path, 0) / "data"
    os.truncate(data / "data.mdb", 8192)
    with pytest.raises(StorageError, match=f"{data}/data.mdb: cut short, .* move {data} away"):
        LiveReplica(tmp_path, made, 0)
    shutil.rmtree(data)
    assert await value(tmp_path, made) == VALUE


def lost(journal: Path) -> None:
    (journal / "journal-00000000.seg").rename(journal / "journal-00000001.seg")


def changed(journal: Path) -> None:
    file = journal / "journal-00000000.seg"
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)


def cut(journal: Path) -> None:
    file = journal / "journal-00000000.seg"
    os.truncate(file, file.stat().st_size - 30)


@pytest.mark.parametrize(
    "damage, told",
    [
        (lost, "journal-00000000.seg is missing"),
        (changed, "byte "),
        (cut, "bytes before what this replica has promised"),
    ],
)
async def test_a_journal_without_what_it_has_promised_is_refused(
    tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    made = await written(tmp_path)
    damage(replica_directory(tmp_path, 0) / "journal")
    with pytest.raises(JournalError, match=f"{told}.*counts as lost.*--lost-disk"):
        LiveReplica(tmp_path, made, 0)


async def test_a_tail_that_was_never_promised_is_cut(tmp_path: Path) -> None:
    made = await written(tmp_path)
    with open(replica_directory(tmp_path, 0) / "journal" / "journal-00000000.seg", "ab") as segment:
        segment.write(b"half a batch")
    assert await value(tmp_path, made) == VALUE


def test_a_start_without_any_room_says_so_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    make_cluster(tmp_path, 1, 1, "skeen")
    monkeypatch.setattr(serve, "set_up_logging", lambda: None)
    monkeypatch.setattr(serve, "ReplicaLock", full)
    with pytest.raises(ConfigError, match=f"^{replica_directory(tmp_path, 0)}: no room is left on its disk"):
        serve.serve(tmp_path, "0")


def test_the_page_says_how_old_a_copy_is_at_most_that_escapes() -> None:
    assert f"the last acknowledgement heard ({1000 * ACK_DELAY_S:.0f} ms);" in " ".join(PAGE.split())
