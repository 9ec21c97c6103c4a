"""How a lane or a snapshot ended, as data: across Spark an exception arrives as text only."""

import logging
from dataclasses import asdict, dataclass
from traceback import format_exception
from typing import Any, Literal

from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FencedError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

Why = Literal[
    "window",
    "request",
    "paused",
    "stopped",
    "superseded",
    "fenced",
    "failed",
    "cancelled",
    "finished",
]

INTERNAL = "internal"
"""The class of an error that nobody foresaw."""

EXIT_DRAINED, EXIT_SPEC, EXIT_RETRYABLE, EXIT_FATAL = 0, 2, 3, 4

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why the work ended, and the error behind it."""

    why: Why
    error_class: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, error: Exception) -> "Outcome":
        """Return the outcome an error makes."""
        why: Why = "fenced" if isinstance(error, FencedError) else "failed"
        if isinstance(error, DeltaForgeError):
            return cls(why, error.error_class, redacted(str(error)))
        return cls(why, INTERNAL, redacted(f"{type(error).__name__}: {error}"))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for a Spark row."""
        return asdict(self)

    @property
    def is_retryable(self) -> bool:
        """Return whether the same work may be begun again."""
        return self.why == "failed" and self.error_class == RetryableError.error_class

    @property
    def exit_code(self) -> int:
        """Return what the process that did this work ends with."""
        if self.why in ("window", "paused", "stopped", "finished"):
            return EXIT_DRAINED
        # A fault of ours may be one of the moment, too: whoever supervises tries again for a while.
        codes = {
            SpecError.error_class: EXIT_SPEC,
            RetryableError.error_class: EXIT_RETRYABLE,
            INTERNAL: EXIT_RETRYABLE,
        }
        return codes.get(self.error_class or "", EXIT_FATAL)


def logged(error: Exception) -> Outcome:
    """Log an error and return it as an outcome; with its way, unless it says what to correct."""
    shown = str(error) if isinstance(error, SpecError) else "".join(format_exception(error))
    _log.error("%s", redacted(shown))
    return Outcome.of(error)
