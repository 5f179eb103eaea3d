"""On PYTHONPATH of a replica: its wall clock is ahead by what the file `ahead-<replica id>` says, in seconds."""

import os
import sys
import time

_arguments = sys.orig_argv
_directory = os.environ.get("WRONG_CLOCKS", "")
if _directory and "--replica" in _arguments:
    _file = os.path.join(_directory, "ahead-" + _arguments[_arguments.index("--replica") + 1])
    _right = time.time_ns

    def _wrong() -> int:
        try:
            with open(_file) as lines:
                return _right() + int(float(lines.read() or 0) * 1e9)
        except OSError:
            return _right()

    time.time_ns = _wrong
