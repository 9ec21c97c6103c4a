"""Settings of a script in JavaScript."""

from dataclasses import dataclass
from importlib.util import find_spec

from pydantic import Field, PositiveInt, PrivateAttr

from airflow_provider_deltaforge.plugins import load_object
from airflow_provider_deltaforge.processors.contract import Processor, Worker
from airflow_provider_deltaforge.spec.settings import Settings

_DAY_MS = 86_400_000
_TIB_MB = 2**20
_WORKER = "airflow_provider_deltaforge.processors.javascript.worker:ScriptWorker"


class ScriptLimits(Settings):
    """What one call of the script may use; a call that uses more is ended."""

    cpu_ms: PositiveInt = Field(default=50, le=_DAY_MS)
    """Processor time, in milliseconds."""
    mem_mb: PositiveInt = Field(default=128, le=_TIB_MB)
    """Memory of the script's heap, in MiB; with its array buffers, 64 more."""
    timeout_ms: PositiveInt = Field(default=500, le=_DAY_MS)
    """Wall-clock time, in milliseconds."""


@dataclass(frozen=True, slots=True)
class PipelineInfo:
    """What the events of the pipeline share, as scripts see it."""

    pipeline: str = ""
    tenant: str = ""
    connector: str = ""


class JavaScript(Processor):
    """Hand events to a script, one batch or one event at a time."""

    inline: str = Field(min_length=1)
    """The script: ``function processBatch(events)``, or a function of one event."""
    limits: ScriptLimits = ScriptLimits()
    """What one call may use."""
    _home: PipelineInfo = PrivateAttr(default=PipelineInfo())

    def within(self, pipeline: str, tenant: str, connector: str) -> "JavaScript":
        """Return the description with what scripts read in ``event.source`` and beside it."""
        settled = self.model_copy()
        settled._home = PipelineInfo(pipeline, tenant, connector)  # noqa: SLF001 - of our own class
        return settled

    def check(self) -> None:
        """Load the script once, where mini-racer is installed."""
        if find_spec("py_mini_racer") is not None:
            self.open().close()

    def open(self) -> Worker:
        """Start an interpreter and load the script.

        Raises:
            SpecError: the script does not compile, throws, or is no processor.
            FatalError: mini-racer is missing or does not work here.
        """
        worker: Worker = load_object(_WORKER)(self, self._home)
        return worker
