"""Drivers do not load pandas, and give back the memory that they need no longer."""

import queue
import subprocess
import sys
import threading

import pytest

from airflow_provider_deltaforge.engine.base import process_memory
from tests.architecture.probe import CHECKOUT
from tests.waiting import PATIENCE_S

DRIVER = """
import sys
from airflow_provider_deltaforge.engine.driver.local import run_local
from airflow_provider_deltaforge.storage.location import StoreLocation
loaded = "pandas" in sys.modules
run_local("nobody", StoreLocation.from_dsn("sqlite:///" + sys.argv[1] + "/state.db"), 1)
import pyarrow as pa
pa.array([1, None]).is_null()
print(loaded, "pandas" in sys.modules)
print(pa.array([1, 2]).to_pandas().sum())
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    outcome = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path_factory.mktemp("lean"))],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return outcome.stdout.splitlines()


def test_a_driver_works_without_pandas(told):
    assert told[0] == "False False"


def test_whoever_asks_for_pandas_has_it(told):
    assert told[1] == "3"


HOLES = """
import sys
import numpy as np
import psutil
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
if sys.argv[1] == "lean":
    stay_lean()
np.ones(16 << 20, np.uint8)
before = psutil.Process().memory_info().rss
large, small = [], []
for _ in range(60):
    large.append(np.ones(3 << 20, np.uint8))
    small.append(np.ones(2048, np.uint8))
large.clear()
print((psutil.Process().memory_info().rss - before) >> 20)
"""


def test_large_blocks_go_back_to_the_system():
    held = subprocess.run(
        [sys.executable, "-c", HOLES, "lean"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(held.stdout) < 20


BACKLOG = """
import ctypes
import psutil
from airflow_provider_deltaforge.engine.base.process_memory import give_back, stay_lean
stay_lean()
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
before = psutil.Process().memory_info().rss
batches = []
for _ in range(600):
    batches.append(library.malloc(100_000))
    ctypes.memset(batches[-1], 1, 100_000)
    library.malloc(100)
for batch in batches:
    library.free(ctypes.c_void_p(batch))
grown = lambda: (psutil.Process().memory_info().rss - before) >> 20
kept = grown()
give_back()
print(kept, grown())
"""


def test_what_a_backlog_leaves_goes_back_to_the_system():
    outcome = subprocess.run(
        [sys.executable, "-c", BACKLOG], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    kept, left = map(int, outcome.stdout.split())
    assert kept > 40
    assert left < 10


CYCLE = """
import gc, weakref
import numpy as np
from airflow_provider_deltaforge.engine.base.process_memory import give_back
gc.collect()
class Buffer(np.ndarray): pass
def fail(buffer):
    try:
        raise OSError
    except OSError as error:
        kept = error  # The frame has the error, whose traceback has the frame.
    return weakref.ref(buffer)
held = fail(np.ones(1 << 20, np.uint8).view(Buffer))
print(held() is None)
give_back()
print(held() is None)
"""


def test_what_an_old_error_holds_is_given_back():
    outcome = subprocess.run(
        [sys.executable, "-c", CYCLE], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert outcome.stdout.split() == ["False", "True"]


def test_who_asks_does_not_wait_while_memory_is_given_back(monkeypatch):
    threads = queue.SimpleQueue()
    monkeypatch.setattr(
        process_memory, "give_back", lambda: threads.put(threading.current_thread())
    )
    process_memory.MemoryReturn(every_s=0.0).if_due()
    assert threads.get(timeout=PATIENCE_S) is not threading.current_thread()

    process_memory.MemoryReturn(every_s=PATIENCE_S).if_due()
    assert threads.empty()


ARENAS = """
import ctypes, sys, threading
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
if sys.argv[1] == "lean":
    stay_lean()
library = ctypes.CDLL(None)
library.malloc.restype = library.fdopen.restype = ctypes.c_void_p
gate = threading.Barrier(12)
def use_memory():
    gate.wait()  # A thread takes an arena when it wants memory while others live.
    library.malloc(1000)
    gate.wait()
threads = [threading.Thread(target=use_memory) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, out)
library.fflush(out)
"""


def arenas(how):
    outcome = subprocess.run(
        [sys.executable, "-c", ARENAS, how],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    return outcome.stdout.count("<heap nr=")


def test_threads_share_two_arenas():
    assert arenas("lean") <= 2 < arenas("as it comes")
