"""What the operators share that work for one pipeline, and how supervision ends."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.contract import Backend, JobState
from airflow_provider_deltaforge.control.pipelines import ask_to_stop_if_owner
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.control.supervise import RestartDecision
from airflow_provider_deltaforge.errors import AccessError, DeltaForgeError, RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import Document, document_label
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelineLink
from airflow_provider_deltaforge.operators.launch import LaunchingOperator

_LOG_LINES = 40


class PipelineOperator(LaunchingOperator):
    """Base of the operators of one pipeline.

    ``LaunchingOperator`` has the other arguments.

    Args:
        document: the pipeline's YAML document: its path, or itself, as text or as a mapping.
    """

    template_fields: Sequence[str] = ("document", *LaunchingOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {"document": "yaml"}
    moves_data: ClassVar[bool] = True
    """OpenLineage shows from where to where."""
    operator_extra_links = (DeltaForgePipelineLink(),)

    def __init__(self, *, document: Document, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.document = document

    def own_document(self) -> Document:
        """Return the pipeline's document."""
        return self.document

    @property
    def document_label(self) -> str:
        """Return how the document is called in logs."""
        return document_label(self.document)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what is read and written, for the OpenLineage provider."""
        from airflow_provider_deltaforge.operators.lineage import operator_lineage, task_lineage

        if not (self.moves_data and self.document):
            return operator_lineage([])
        task = self.pipeline_task()
        with task.hook().store() as store:
            return operator_lineage([task_lineage(store, task)])


def refuse_gone(event: Mapping[str, Any]) -> None:
    """Fail the task, without an Airflow retry, when its pipeline is nobody's or another's now."""
    if event["event"] in {"deleted", "taken_over"}:
        raise AirflowFailException(f"{event['pipeline']}: {event['reason']}")


def summary(present: PipelineStatus) -> dict[str, Any]:
    """Return the status a window ends with, and refuse to be green over a stream that died."""
    if present.desired == "stopped":
        raise AirflowSkipException(f"{present.name} is being stopped by request")
    if not present.alive:
        raise AirflowException(f"{present.name} is {present.words}")
    return present.as_short_dict()


def give_up(
    hook: DeltaForgeHook,
    present: PipelineStatus,
    verdict: RestartDecision,
    owner: str,
    prefix: str = "",
) -> AirflowFailException:
    """Return the error that fails the task without an Airflow retry, with the log's end.

    A driver that hangs is ended, or, on another host, told to end should it come back: nothing may
    write on behind a red task.
    """
    handle, backend = present.handle, hook.backend()
    if handle and handle.get("generation") == present.generation:
        with suppress(RetryableError, AccessError):
            state = backend.status(handle).state
            if state is JobState.RUNNING:
                backend.stop(handle, 0)
            elif state is JobState.UNKNOWN:
                with hook.store() as store:
                    ask_to_stop_if_owner(store, present.name, owner)
    tail = _log_end(hook, present, backend)
    shown = f"\n--- end of the driver's log ---\n{tail}" if tail else ""
    reason = f"{present.name}: {prefix}{verdict.reason}"
    return AirflowFailException(f"{verdict.error_class or 'failed'}: {reason}{shown}")


def _log_end(hook: DeltaForgeHook, present: PipelineStatus, backend: Backend) -> str:
    """Return the end of the driver's log: its file's, or what it shipped to the state store."""
    with suppress(DeltaForgeError, OSError), hook.store() as store:
        return "\n".join(log_tail(store, present.name, backend, _LOG_LINES)["lines"])
    return ""
