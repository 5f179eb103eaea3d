"""What a replica's process asks of its machine."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

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
