"""What figures are measured on, and how quick it is just now: that changes from hour to hour."""

import json
import os
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SLEEP_S = 0.01
_TIMES = 200
_DOCUMENT = {str(number): [number, str(number), {"a": number}] for number in range(60)}


def machine() -> dict[str, Any]:
    """Return what the figures are measured on.

    Some work of Python, NumPy and Arrow, about what a small batch needs, takes ``work_us`` of CPU
    at a stretch, and ``work_after_sleep_us`` each time that nothing ran for 10 ms before: caches
    are cold then.
    """
    load = os.getloadavg()[0]
    _spent_us(0.0)
    return {
        "cores": os.cpu_count(),
        "load_before": load,
        "python": sys.version[:6],
        "work_us": _spent_us(0.0),
        "work_after_sleep_us": _spent_us(_SLEEP_S),
    }


def _spent_us(sleep_s: float) -> int:
    spent_s = 0.0
    for _ in range(_TIMES):
        time.sleep(sleep_s)
        begun_s = time.thread_time()
        _work()
        spent_s += time.thread_time() - begun_s
    return round(spent_s / _TIMES * 1e6)


def _work() -> None:
    json.loads(json.dumps(_DOCUMENT))
    texts = pa.array([str(number) for number in range(50)])
    pc.utf8_length(texts)
    np.unique(np.arange(50) % 7)
