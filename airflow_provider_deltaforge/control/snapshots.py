"""Snapshots as things one can start and look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.control import starting
from airflow_provider_deltaforge.control.launch import Backend, Job
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.snapshots import Snapshots

SCRIPT = "snapshot_job.py"


@dataclass(frozen=True, slots=True)
class Wish:
    """What to copy: everything captured, or some tables, or some rows of one table."""

    tables: tuple[str, ...] = ()
    where: str | None = None

    def __post_init__(self) -> None:
        if self.where is not None and len(self.tables) != 1:
            raise SpecError("a snapshot with `where` needs exactly one table")

    def arguments(self) -> tuple[str, ...]:
        """Return the words of ``snapshot_job.py``'s command line."""
        words: tuple[str, ...] = ("--tables", ",".join(self.tables)) if self.tables else ()
        return (*words, "--where", self.where) if self.where is not None else words


def start(store: Store, job: Job, backend: Backend, owner: str) -> starting.Started:
    """Start a snapshot's driver, or adopt the one that runs.

    Raises:
        SpecError: the pipeline's stream runs; the two must not write at the same time.
    """
    present = status(store, job.pipeline, backend)
    streaming = (present.handle or {}).get("script") != SCRIPT
    if present.alive and streaming:
        raise SpecError(
            f"pipeline {job.pipeline!r} is streaming (generation {present.generation}); stop it "
            "before taking a snapshot: this release has no snapshot beside a running stream"
        )
    return starting.start(store, job, backend, owner)


def is_done(store: Store, name: str, wish: Wish) -> bool:
    """Say whether the initial snapshot is finished; a snapshot of chosen rows never is."""
    if wish.tables:
        return False
    return Snapshots(store, name).finished()


def progress(store: Store, name: str) -> Mapping[str, Any] | None:
    """Return chunks and rows done by table, or None before a snapshot was planned."""
    return Snapshots(store, name).progress()
