"""The end of a log file, however long it grew."""

import os
from collections import deque
from pathlib import Path

_TAIL_BYTES = 1 << 20


def last_lines(file: Path, count: int = 300) -> list[str]:
    """Return the last lines of a file, of its last mebibyte; none of one that is not there."""
    try:
        with file.open("rb") as log:
            begin = max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES)
            log.seek(begin)
            if begin:
                log.readline()  # Most likely the end of a line.
            tail = b"".join(deque(log, maxlen=count))
    except FileNotFoundError:
        return []
    return tail.decode(errors="replace").splitlines()
