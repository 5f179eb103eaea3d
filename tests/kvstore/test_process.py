"""What a replica's process asks of its machine."""

from __future__ import annotations

import contextlib
import ctypes
import json
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kvstore import cluster
from kvstore.serve import BACKLOG, within
from tests.kvstore.live import Replica, make_cluster, wait_until

_PROGRAM = """
import ctypes, sys
from kvstore.process import HEAP_BLOCK_BYTES, keep_heap_compact

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")]
    _fields_ += [(name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
if sys.argv[1] == "compact":
    keep_heap_compact()
bytes(2 * HEAP_BLOCK_BYTES)  # freed at once
before = mallinfo().hblks
kept = bytes(2 * HEAP_BLOCK_BYTES)
print(mallinfo().hblks - before)
"""

_THREAD = """
import ctypes, sys, threading
from kvstore.process import keep_heap_compact

libc = ctypes.CDLL(None)
if sys.argv[1] == "compact":
    keep_heap_compact()
kept = []
for _ in range(3):
    thread = threading.Thread(target=lambda: kept.append(bytes(10_000)))
    thread.start()
    thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
_GLIBC = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc of 2021 or later")


@_GLIBC
@pytest.mark.parametrize(("how", "mapped"), [("compact", "1"), ("as it is", "0")])
def test_large_blocks_stay_out_of_the_heap_though_others_were_freed(how: str, mapped: str) -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == mapped


@_GLIBC
@pytest.mark.parametrize(("how", "alone"), [("compact", True), ("as it is", False)])
def test_threads_have_no_heaps_of_their_own(how: str, alone: bool) -> None:
    """As it is, a later thread takes the heap of one that has ended, if that has quite ended: two, or more."""
    found = subprocess.run([sys.executable, "-c", _THREAD, how], capture_output=True, text=True, check=True)
    assert (found.stdout.count("<heap nr=") == 1) is alone


def test_more_clients_than_files_may_be_open_shut_nobody_out(tmp_path: Path) -> None:
    """Their connections stay open and say nothing. The limit is the process's own, as a shell's `ulimit -n` sets it."""
    made = make_cluster(tmp_path, 1, 1, "white_box")
    replica, served = made.replica(0), Replica(made.replica(0).host, made.replica(0).http_port)
    command = [sys.executable, "-m", "kvstore", "serve", "--dir", str(tmp_path), "--replica", "0"]
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command], stderr=log) as process,
        contextlib.ExitStack() as opened,
    ):
        opened.callback(process.kill)
        wait_until(lambda: cluster.is_ready(replica))
        for _ in range(300):
            opened.enter_context(socket.create_connection((replica.host, replica.http_port), timeout=60))
        wait_until(lambda: cluster.is_ready(replica))
        assert served("PUT", "/v1/kv/a", b"1").status == 200
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert "fewer connections than connections_max: few files may be open" in events
    assert not [event for event in events if "out of system resource" in event]


def test_who_may_open_any_number_of_files_has_as_many_clients_as_is_said(tmp_path: Path) -> None:
    config = make_cluster(tmp_path, 1, 1, "white_box")
    assert within(config, resource.RLIM_INFINITY) == (config, BACKLOG)
    assert within(config, 1 << 20) == (config, BACKLOG)
    assert within(config, 256)[0].limits.connections_max < config.limits.connections_max
