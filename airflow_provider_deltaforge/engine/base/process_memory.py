"""What a process of ours does not load, and does not keep.

pyarrow would import pandas at its first array. It only wants to know whether it was given one of
pandas' own objects, which never happens here. In every driver and every worker that costs more than
a second of CPU time, and 50 MiB.

The C library keeps freed blocks of up to 32 MiB for later once it has seen some of them go. Chunks
and batches of a few MiB come and go all the time, between small ones that stay: 30 MiB of holes.
It also gives each new thread an arena of its own, up to eight for each core, and takes none back;
clients have new threads whenever they connect again.

What is free all the same goes back once a minute.
"""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec

import pyarrow as pa

_MMAP_THRESHOLD = -3
"""glibc's ``M_MMAP_THRESHOLD``; set once, it stays."""
_LARGE_BYTES = 1 << 20
_ARENA_MAX = -8
"""glibc's ``M_ARENA_MAX``."""
_ARENAS = 2


def stay_lean() -> None:
    """Load and keep no more than is needed.

    For processes that are ours alone, at their start: pyarrow looks for pandas only once, and in a
    user's Spark session pandas' objects may well be given to it.
    """
    with without_pandas():
        pa.array([])
    with suppress(OSError, AttributeError):  # Another C library decides for itself.
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_ARENA_MAX, _ARENAS)


class MemoryReturn:
    """Gives memory back now and then, whoever asks for it in this process.

    Args:
        every_s: at most so often.
    """

    def __init__(self, every_s: float = 60.0) -> None:
        self._every_s, self._last_s = every_s, time.monotonic()

    def if_due(self) -> None:
        """Give memory back if it is time, in a thread: a heartbeat must not wait for it.

        What is freed may be a client, whose threads are waited for.
        """
        now_s = time.monotonic()
        if now_s - self._last_s >= self._every_s:
            self._last_s = now_s
            threading.Thread(target=give_back, name="memory", daemon=True).start()


MEMORY_RETURN = MemoryReturn()
"""Of this process."""


def give_back() -> None:
    """Give memory that nobody needs back to the system; takes some 40 milliseconds.

    An error's traceback keeps the frames it went through, in reference cycles that only the garbage
    collector breaks; each may hold a batch, or a reader with its buffers. Python looks at its old
    objects when there are many new ones. Here there are few, so that hours and outages may pass.

    By itself the C library only gives back what is free at an arena's end. What a backlog leaves
    lies between blocks that stay, so that each larger one would leave the process larger.
    """
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Hide pandas from what looks for it meanwhile; code that imports it later still gets it."""
    if "pandas" in sys.modules:
        yield
        return
    absent = _Absent()
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


class _Absent:
    """A finder that hides pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError(f"{name} is left out", name=name)
        return None
