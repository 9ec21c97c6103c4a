"""Where the local backend keeps its drivers' logs and locks."""

import os
from pathlib import Path

from airflow_provider_deltaforge.storage.location import StoreLocation


def jobs_directory(store: str) -> Path:
    """Return the directory of the jobs that belong to a state store.

    ``DELTAFORGE_JOBS`` wins; else it lies beside a SQLite store, so that every process that opens
    the store agrees, else in the user's home.

    Args:
        store: the store's DSN.

    Raises:
        SpecError: the DSN is wrong, or a variable in it is not set.
    """
    configured = os.environ.get("DELTAFORGE_JOBS")
    if configured:
        return Path(configured)
    file = StoreLocation.from_dsn(store).file()
    if file is not None:
        return file.parent / "jobs"
    return Path.home() / ".deltaforge" / "jobs"
