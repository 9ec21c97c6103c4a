"""Archives of pipelines, for people: what they have, and whether it is what was written."""

from collections.abc import Iterator
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.engine.archive.folder import ArchiveFile
from airflow_provider_deltaforge.engine.archive.reader import Archive
from airflow_provider_deltaforge.engine.archive.tables import from_parquet
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store


def open_archive(store: Store, name: str) -> Archive:
    """Return the archive of a pipeline.

    Raises:
        SpecError: there is no such pipeline, or it has no archive.
        RetryableError: the directory is away.
    """
    text = existing(store, name).document()
    if text is None:
        raise SpecError(f"pipeline {name!r} has no document in this state store; apply it again")
    pipeline = load(text, expand=False)  # Whoever looks at files needs no password of the source.
    settings = pipeline.spec.archive
    return Archive.of(load(text) if settings and "${" in settings.directory else pipeline)


def contents(archive: Archive) -> dict[str, Any]:
    """Return what an archive has, as JSON: spans of the log, holes, and tables by day."""
    return {
        "directory": archive.folder.shown,
        "spans": [
            {
                "start": dict(span.start),
                "end": dict(span.end),
                "from_ms": span.from_ms,
                "to_ms": span.to_ms,
                "rows": span.rows,
                "bytes": span.bytes,
            }
            for span in archive.spans()
        ],
        "holes": [
            {"start": dict(hole.start), "end": dict(hole.end), "reason": hole.reason}
            for hole in archive.holes()
        ],
        "tables": [
            {
                "day": each.day,
                "table": each.table,
                "rows": each.rows,
                "bytes": each.bytes,
                "files": each.files,
            }
            for each in archive.tables()
        ],
    }


def damage(archive: Archive) -> Iterator[str]:
    """Read every file of an archive, and yield what is wrong with it.

    Raises:
        RetryableError: the directory is away.
    """
    for name in archive.names_after(None):
        for file in archive.entry(name).files:
            try:
                reason = _damage_of(archive, file)
            except RetryableError:
                raise
            except DeltaForgeError as error:
                reason = str(error)
            if reason is not None:
                yield reason
        try:
            for _ in archive.batches(name):
                pass
        except FileNotFoundError as error:
            yield f"archive {archive.folder.shown}: a table's schema is missing: {error}"
        except DeltaForgeError:
            continue  # Named already.


def _damage_of(archive: Archive, file: ArchiveFile) -> str | None:
    rows = from_parquet(archive.checked(file)).num_rows
    if rows == file.rows:
        return None
    return f"archive {archive.folder.shown}: {file.path} has {rows} rows, not {file.rows}"
