"""The one table from errors to exit codes of the command line."""

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError

OK = 0
FAILED = 1
"""A person must act: access, a purged position, a schema, a failed check."""
DOCUMENT = 2
"""The document, or the command line, is wrong."""
RETRY = 3
"""The same command may work later."""

TABLE: tuple[tuple[type[DeltaForgeError], int], ...] = (
    (SpecError, DOCUMENT),
    (RetryableError, RETRY),
    (DeltaForgeError, FAILED),
)


def exit_code(error: DeltaForgeError) -> int:
    """Return the exit code of an error."""
    return next(code for kind, code in TABLE if isinstance(error, kind))


def driver_exit_code(code: int | None) -> int:
    """Return our exit code for a driver's (0 drained, 2 document, 3 retryable, 4 fatal)."""
    return {0: OK, 2: DOCUMENT, 3: RETRY}.get(code if code is not None else -1, FAILED)
