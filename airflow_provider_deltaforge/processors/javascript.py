"""Scripts in JavaScript: described so that documents can be checked, not built yet."""

from pydantic import Field, PositiveInt

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.settings import Settings

_UNBUILT = "processor type 'javascript'"


class Limits(Settings):
    """What one call of the script may use."""

    cpu_ms: PositiveInt = 50
    """Processor time, in milliseconds."""
    mem_mb: PositiveInt = 128
    """Memory of the interpreter, in MiB."""
    timeout_ms: PositiveInt = 500
    """Wall-clock time, in milliseconds."""


class JavaScript(Processor):
    """Hand events to a script, one batch or one event at a time."""

    inline: str = Field(min_length=1)
    """The script: ``function processBatch(events)``, or a function of one event."""
    limits: Limits = Limits()
    """What one call may use."""

    def unbuilt(self) -> list[str]:
        """Name the whole processor."""
        return [_UNBUILT]

    def open(self) -> Worker:
        """Refuse.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{_UNBUILT} is not part of this release; remove it from the document")
