"""What every launch backend promises: start a driver, find it again, read its log, end it.

A backend is a file or folder beside this one: ``local``, processes of this machine, ``standalone``,
submissions to a Spark cluster, ``kubernetes``, pods, ``yarn``, applications of a YARN cluster.
``backends`` finds the one that a handle belongs to.

A job's name follows from pipeline and generation, so that submitting twice starts one driver and
a supervisor that lost its memory finds the driver again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from airflow_provider_deltaforge.storage.distress import Distress

Handle = Mapping[str, Any]
"""Where a submitted job is, as JSON; it holds no secret. ``backend`` names who can read it."""


class JobState(str, Enum):
    """What the place a job runs at knows about it."""

    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """The place cannot be asked from here; the heartbeat decides."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """State of a job, and how it ended.

    ``exit_code`` is the driver's own (0 drained, 2 document, 3 retryable, 4 fatal), None when it
    was killed together with the process that writes it down.
    """

    state: JobState
    exit_code: int | None = None
    distress: Distress | None = None
    """Why the driver cannot write to its store, if it says so on this machine."""
    detail: str | None = None
    """What the place says about it, for people."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One driver to start.

    ``store`` and ``environment`` reach the driver through its environment only: neither the
    command line nor Spark's configuration ever holds a secret.
    """

    pipeline: str
    generation: int
    script: str
    """``stream_job.py`` or ``snapshot_job.py``."""
    store: str = field(repr=False)
    """The state store's DSN."""
    master: str = "local[*]"
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        """Return the name the cluster and the log directory show."""
        return f"df-{self.pipeline}-g{self.generation}"


class Backend(Protocol):
    """A place drivers run at."""

    def submit(self, job: LaunchSpec) -> Handle:
        """Start the job unless one of its name already runs; either way return its handle.

        Raises:
            SpecError: the backend cannot run it as asked.
            RetryableError: the backend is away.
        """

    def status(self, handle: Handle) -> JobStatus:
        """Return what is known about the job. Cheap enough to call every few seconds."""

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Return when nothing of the job lives: wait ``grace_s`` for it to end, then end it."""

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the last lines of the driver's log."""

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return names and places (paths or URLs) a person can open."""


class NamedBackend(Backend, Protocol):
    """One that a connection, an operator or a command may name."""

    def check(self, master: str, store: str) -> None:
        """Refuse a Spark master or a state store's DSN that it cannot work with.

        Raises:
            SpecError: it is refused; the text says what works.
        """


def happens(condition: Callable[[], bool], within_s: float, poll_s: float = 0.5) -> bool:
    """Return whether a condition comes to hold in time; it is asked at least once."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(poll_s)
    return True
