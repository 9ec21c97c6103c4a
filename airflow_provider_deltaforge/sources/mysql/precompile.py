"""``python -m airflow_provider_deltaforge.sources.mysql.precompile``: compile the kernels now.

A lane does so itself before its first row. Done ahead, once for each installation, no pipeline has
to wait for it.
"""

import sys
import threading
import time

_TICK_S = 1.0


def warm() -> float:
    """Compile what is not compiled yet, for stream and snapshot; return the seconds it took."""
    began = time.monotonic()
    import numpy as np

    from airflow_provider_deltaforge.events.ids import id_key, row_ids
    from airflow_provider_deltaforge.sources.mysql.binlog import decoder
    from airflow_provider_deltaforge.sources.mysql.snapshot import text_rows_kernel

    decoder.warm("")
    text_rows_kernel.warm()
    row_ids(id_key(""), np.zeros(0, np.uint8), np.zeros(1, np.int64))
    return time.monotonic() - began


def main() -> None:
    """Compile, and show on a terminal how long it takes so far."""
    done = threading.Event()
    shown = threading.Thread(target=_tick, args=(done,), daemon=True)
    if sys.stderr.isatty():
        shown.start()
    took_s = warm()
    done.set()
    if shown.is_alive():
        shown.join()
    sys.stderr.write(f"kernels are compiled ({took_s:.1f} s)\n")


def _tick(done: threading.Event) -> None:
    began = time.monotonic()
    while not done.wait(_TICK_S):
        sys.stderr.write(f"\rcompiling the decoders' kernels … {time.monotonic() - began:.0f} s ")
        sys.stderr.flush()
    sys.stderr.write("\r\033[K")


if __name__ == "__main__":
    main()
