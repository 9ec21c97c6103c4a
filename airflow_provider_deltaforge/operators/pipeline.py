"""What the operators share that start drivers: the arguments that name a pipeline and Spark."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.contract import (
    Backend,
    Handle,
    JobState,
    LaunchSpec,
)
from airflow_provider_deltaforge.control.pipelines import ask_to_stop_if_owner
from airflow_provider_deltaforge.control.starting import restart
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.control.supervise import RestartBudget, RestartDecision
from airflow_provider_deltaforge.errors import AccessError, DeltaForgeError, RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import (
    Document,
    PipelineTask,
    TriggerArguments,
    document_label,
)
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelineLink
from airflow_provider_deltaforge.operators.deferral import DeferringOperator
from airflow_provider_deltaforge.storage.contract import Store

_LOG_LINES = 40


class PipelineOperator(DeferringOperator):
    """Base of the operators; opens nothing until it executes.

    Args:
        document: the pipeline's YAML document: its path, or itself, as text or as a mapping.
        deltaforge_conn_id: connection of the state store.
        connections: environment variable of the document to Airflow connection id.
        spark_conn_id: connection of the Apache Spark provider, for its master URL.
        master: Spark master used without ``spark_conn_id``.
        launch_backend: where drivers run: ``local``, ``standalone``, ``kubernetes``, ``yarn``;
            None: as the connection says.
        restarts_max: restarts of a dead driver within ``restart_window``, without Airflow retries.
        restart_window: the sliding window of that budget.
        deferrable: wait in the triggerer (True), or in this process, holding a worker slot.
    """

    template_fields: Sequence[str] = (
        *("document", "deltaforge_conn_id", "connections", "spark_conn_id", "master"),
        "launch_backend",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {"document": "yaml"}
    ui_color = "#cfe8dc"
    moves_data: ClassVar[bool] = True
    """OpenLineage shows from where to where."""
    operator_extra_links = (DeltaForgePipelineLink(),)

    def __init__(  # noqa: PLR0913 - a task's arguments are named
        self,
        *,
        document: Document,
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        connections: Mapping[str, str] | None = None,
        spark_conn_id: str | None = None,
        master: str = "local[*]",
        launch_backend: str | None = None,
        restarts_max: int = 5,
        restart_window: timedelta = timedelta(minutes=10),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.document = document
        self.deltaforge_conn_id = deltaforge_conn_id
        self.connections = connections
        self.spark_conn_id = spark_conn_id
        self.master = master
        self.launch_backend = launch_backend
        self.budget = RestartBudget(restarts_max, restart_window.total_seconds())

    @property
    def document_label(self) -> str:
        """Return how the document is called in logs."""
        return document_label(self.document)

    def pipeline_task(self) -> PipelineTask:
        """Return the arguments as one object."""
        return PipelineTask(
            self.document,
            self.deltaforge_conn_id,
            dict(self.connections or {}),
            self.spark_conn_id,
            self.master,
            self.executor,
            self.launch_backend,
        )

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what is read and written, for the OpenLineage provider."""
        from airflow_provider_deltaforge.operators.lineage import operator_lineage

        is_known = self.moves_data and bool(self.document)
        return operator_lineage(self.pipeline_task() if is_known else None)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the same; more tables may be known by then."""
        del task_instance
        return self.get_openlineage_facets_on_start()

    def tell_driver(self, context: Mapping[str, Any], handle: Handle | None) -> None:
        """Publish in XCom, and in the task's state store, where the driver runs."""
        if handle and "ti" in context:
            context["ti"].xcom_push(key="driver", value=dict(handle))
            self.keep(context, "driver", dict(handle))

    def start_again(
        self, context: Mapping[str, Any], store: Store, job: LaunchSpec, watch: TriggerArguments
    ) -> None:
        """Start a dead driver again; if that fails, the trigger sees why."""
        try:
            backend = self.pipeline_task().backend()
            self.tell_driver(context, restart(store, job, backend, watch.owner))
        except RetryableError as error:
            self.log.warning("%s not started again: %s", watch.pipeline, error)


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
    return present.as_dict()


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
