"""What a driver says while it cannot write to its store: in a file of its own machine.

The disk that is full may be the one that this file lies on. Its bytes are there from the start,
and are written over in place.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.storage import moments
from airflow_provider_deltaforge.telemetry.pipeline_scope import present_scope

JOB_DIRECTORY = "DELTAFORGE_JOB"
"""The variable that names the directory of a driver's job, where there is one."""

_NAME = "distress"
_SIZE = 4096
_REASON_MAX = 1500
_FRESH_S = 40.0  # A write may wait for another process for 30 s before it fails.


@dataclass(frozen=True, slots=True)
class Distress:
    """Why a living driver is silent in the store."""

    reason: str
    since_ms: int


def prepare(directory: Path) -> None:
    """Lay the file out; a disk without room for it leaves the driver without."""
    with suppress(OSError), (directory / _NAME).open("wb") as file:
        file.write(b" " * _SIZE)
        file.flush()
        os.fsync(file.fileno())


def job_directory(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of the job that the calling thread works for, if it has one."""
    scope = present_scope()
    if scope is not None:
        return scope.directory
    directory = environment.get(JOB_DIRECTORY)
    return Path(directory) if directory else None


def write(distress: Distress | None, environment: Mapping[str, str] = os.environ) -> None:
    """Write why the store is not written to, again with every attempt; None once it is."""
    directory = job_directory(environment)
    if directory is None:
        return
    text = b""
    if distress is not None:
        fields = {
            "boot": moments.boot(),
            "at_s": moments.now(),
            "since_ms": distress.since_ms,
            "reason": distress.reason[:_REASON_MAX],
        }
        text = json.dumps(fields).encode()
    with suppress(OSError), (directory / _NAME).open("r+b") as file:
        file.write(text[:_SIZE].ljust(_SIZE))


def read(directory: Path) -> Distress | None:
    """Return what a driver of this machine wrote there in the last seconds."""
    try:
        fields = json.loads((directory / _NAME).read_bytes())
        ago_s = moments.since(fields["boot"], fields["at_s"])
        if ago_s is None or ago_s > _FRESH_S:
            return None
        return Distress(str(fields["reason"]), int(fields["since_ms"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # Never written, blank, or half written.
