"""CPU and memory by process, sampled while a pipeline runs, and CPU by thread."""

import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

MIB = 1024 * 1024


class Sampler:
    """Watches the process trees of some roots.

    Args:
        roots: name to process id; the children of a driver are named by what they are.
    """

    def __init__(self, roots: dict[str, int]) -> None:
        self._roots = roots
        self._over = threading.Event()
        self._cpu: dict[tuple[str, int], float] = {}
        self._began: dict[tuple[str, int], float] = {}
        self._peak: dict[str, float] = defaultdict(float)
        self._shares: dict[str, float] = defaultdict(float)
        self._largest: dict[str, float] = defaultdict(float)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sample()
        self._thread.start()

    def reset(self) -> None:
        """Count CPU from now on."""
        self._sample()
        self._began = dict(self._cpu)

    def stop(self) -> dict[str, dict[str, float]]:
        """Return CPU seconds and peak MiB by name: shares of shared pages, resident, of one."""
        self._sample()
        self._over.set()
        self._thread.join()
        cpu: dict[str, float] = defaultdict(float)
        for key, spent in self._cpu.items():
            cpu[key[0]] += spent - self._began.get(key, 0.0)
        return {
            name: {
                "cpu_s": round(cpu[name], 2),
                "pss_mib_peak": round(self._shares[name], 1),
                "rss_mib_peak": round(self._peak[name], 1),
                "rss_mib_largest": round(self._largest[name], 1),
            }
            for name in sorted(cpu)
        }

    def _run(self) -> None:
        while not self._over.wait(0.5):
            self._sample()

    def _sample(self) -> None:
        resident: dict[str, float] = defaultdict(float)
        shares: dict[str, float] = defaultdict(float)
        for root, pid in self._roots.items():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                for member in (process, *process.children(recursive=True)):
                    with suppress(psutil.Error):
                        name = named(root, member)
                        times = member.cpu_times()
                        self._cpu[name, member.pid] = times.user + times.system
                        used = member.memory_full_info()
                        mib = used.rss / MIB
                        resident[name] += mib
                        shares[name] += used.pss / MIB
                        self._largest[name] = max(self._largest[name], mib)
        for peak, now in ((self._peak, resident), (self._shares, shares)):
            for name, mib in now.items():
                peak[name] = max(peak[name], mib)


def named(root: str, process: psutil.Process) -> str:
    """Return what a process is: a root by its name, a driver's children by their kind."""
    if root != "driver":
        return root
    command = " ".join(process.cmdline())
    if "java" in process.name():
        return "driver: JVM"
    if "pyspark.daemon" in command or "pyspark/daemon" in command or "pyspark.worker" in command:
        return "driver: Python workers"
    return "driver: application"


def thread_cpu(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a process by thread; one client's threads count together."""
    spent: dict[str, float] = defaultdict(float)
    for thread in psutil.Process(pid).threads():
        with suppress(OSError):
            name = Path(f"/proc/{pid}/task/{thread.id}/comm").read_text().strip()
            if thread.id == pid:
                name = "delivery"
            elif name.startswith("rdk:"):
                name = "librdkafka"
            spent[name] += thread.user_time + thread.system_time
    return spent


def wait_until(ready: object, patience_s: float = 600) -> None:
    """Poll until ``ready()``."""
    deadline = time.monotonic() + patience_s
    while not ready():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.05)
