"""Compiles a source's kernels from a command, and shows how long it takes.

A lane does so itself before its first row. Done ahead, once for each installation, no pipeline has
to wait for it.
"""

import sys
import threading
import time
from collections.abc import Callable

_TICK_S = 1.0


def precompile_shared() -> None:
    """Compile the kernels that make the event ids of copied rows, and the JSON of every event."""
    import numpy as np

    from airflow_provider_deltaforge.columns import row_text_kernel
    from airflow_provider_deltaforge.events.ids import id_key, row_ids

    row_text_kernel.precompile()
    row_ids(id_key(""), np.zeros(0, np.uint8), np.zeros(1, np.int64))


def run(precompile: Callable[[], None]) -> None:
    """Compile, and show on a terminal how long it has taken so far.

    Args:
        precompile: compiles what is not compiled yet.
    """
    began = time.monotonic()
    done = threading.Event()
    shown = threading.Thread(target=_tick, args=(began, done), daemon=True)
    if sys.stderr.isatty():
        shown.start()
    precompile()
    done.set()
    if shown.is_alive():
        shown.join()
    sys.stderr.write(f"kernels are compiled ({time.monotonic() - began:.1f} s)\n")


def _tick(began: float, done: threading.Event) -> None:
    while not done.wait(_TICK_S):
        sys.stderr.write(f"\rcompiling the decoders' kernels … {time.monotonic() - began:.0f} s ")
        sys.stderr.flush()
    sys.stderr.write("\r\033[K")
