"""Moments of this machine's own clock, which its processes share and nobody can set."""

import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/time")


@lru_cache(maxsize=1)
def boot() -> str:
    """Return what processes share whose moments can be compared; empty where nobody can tell.

    One start of one machine: the names of two hosts may be equal, this is not.
    """
    try:
        name = _BOOT.read_text().strip()
    except OSError:
        return ""
    with suppress(OSError):
        name = f"{name}/{_NAMESPACE.readlink()}"
    return name


def now() -> float:
    """Return seconds since some moment of this boot."""
    return time.monotonic()


def since(other_boot: str, moment_s: float, at_s: float | None = None) -> float | None:
    """Return how long ago a moment was; None if it is one of another machine or boot.

    Args:
        other_boot: where the moment was noted.
        moment_s: the moment.
        at_s: ago from when; the present if None.
    """
    if not other_boot or other_boot != boot():
        return None
    return max(0.0, (now() if at_s is None else at_s) - moment_s)
