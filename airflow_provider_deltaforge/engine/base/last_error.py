"""Why something does not go on, as it is shown."""

import time
from dataclasses import dataclass

from airflow_provider_deltaforge.telemetry.redaction import redacted

_REASON_MAX = 2000


@dataclass(slots=True)
class LastError:
    """Why something does not go on, and since when."""

    reason: str
    error_class: str
    since_ms: int


def last_error(before: LastError | None, error: BaseException | None) -> LastError | None:
    """Return what an error makes of former trouble; None once it works again."""
    if error is None:
        return None
    error_class = getattr(error, "error_class", "error")
    since_ms = before.since_ms if before else int(time.time() * 1000)
    return LastError(redacted(str(error)), error_class, since_ms)


def shown(reason: str) -> str:
    """Return why something was refused, without secrets; of a long text both ends.

    It may quote what was refused.
    """
    text, half = redacted(reason), _REASON_MAX // 2
    return text if len(text) <= _REASON_MAX else f"{text[:half]} … {text[-half:]}"
