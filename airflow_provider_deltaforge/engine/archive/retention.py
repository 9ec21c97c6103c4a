"""Deletes what the archive need not keep: what is older than its document says, and leftovers."""

import json

from airflow_provider_deltaforge.engine.archive.folder import ArchiveFolder, EntryName, valid_names
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.storage.records.record import now_ms

_DAY_MS = 86_400_000
_DONE = "cleaned.json"


def delete_old_daily(folder: ArchiveFolder, retention_days: int | None, upto: EntryName) -> None:
    """Once a day: delete old entries, and files that count for nothing.

    From the oldest on, entries before their files, and never the last one: it says where the
    archive ends.

    Args:
        folder: of the pipeline.
        retention_days: entries whose last change is older are deleted; None: none is.
        upto: files of entries before this one that nothing names are leftovers of a kill.

    Raises:
        RetryableError: the directory is away.
    """
    if folder.exists(_DONE):
        at_ms = json.loads(folder.read(_DONE)).get("at_ms", 0)
        if 0 <= now_ms() - at_ms < _DAY_MS:
            return
    names = sorted(folder.names())
    kept = set(_without_old(folder, names, retention_days))
    for name in names:
        if name not in kept:
            folder.delete(name.path)
            reach(CrashPoint.ARCHIVE_OLD_DELETED)
    numbers = {(name.epoch, name.number) for name in kept}
    for path, number in folder.data_files().items():
        if number not in numbers and number < (upto.epoch, upto.number):
            folder.delete(path)
    folder.write(_DONE, json.dumps({"at_ms": now_ms()}).encode())


def _without_old(
    folder: ArchiveFolder, names: list[EntryName], retention_days: int | None
) -> list[EntryName]:
    """Return the names that count, without those that are too old."""
    valid = valid_names(names)
    if retention_days is None:
        return valid
    oldest_ms = now_ms() - retention_days * _DAY_MS
    for at, name in enumerate(valid[:-1]):
        if name.kind != "segment":
            continue  # It is as old as what comes next.
        entry = folder.read_entry(name)
        if (entry.to_ms or entry.written_ms) >= oldest_ms:
            return valid[at:]
    return valid[-1:]
