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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc of 2021 or later")
@pytest.mark.parametrize(("how", "mapped"), [("compact", "1"), ("as it is", "0")])
def test_large_blocks_stay_out_of_the_heap_though_others_were_freed(how: str, mapped: str) -> None:
    found = subprocess.run([sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == mapped
