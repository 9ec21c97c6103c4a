"""What the operators share that start drivers: the arguments that name a store and Spark."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import Handle, LaunchSpec
from airflow_provider_deltaforge.control.starting import restart
from airflow_provider_deltaforge.control.supervise import RestartBudget
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import Document, PipelineTask, TriggerArguments
from airflow_provider_deltaforge.operators.deferral import DeferringOperator
from airflow_provider_deltaforge.storage.contract import Store


class LaunchingOperator(DeferringOperator):
    """Starts what runs on after the task; opens nothing until it executes.

    Args:
        deltaforge_conn_id: connection of the state store.
        connections: environment variable of the document to Airflow connection id.
        spark_conn_id: connection of the Apache Spark provider, for its master URL.
        master: Spark master used without ``spark_conn_id``.
        launch_backend: where drivers run: ``local``, ``standalone``, ``kubernetes``, ``yarn``;
            None: as the connection says.
        restarts_max: restarts of a dead driver within ``restart_window``, without Airflow retries;
            up to 20.
        restart_window: the sliding window of that budget.
        deferrable: wait in the triggerer (True), or in this process, holding a worker slot.
    """

    template_fields: Sequence[str] = (
        *("deltaforge_conn_id", "connections", "spark_conn_id", "master", "launch_backend"),
    )
    ui_color = "#cfe8dc"

    def __init__(
        self,
        *,
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
        self.deltaforge_conn_id = deltaforge_conn_id
        self.connections = connections
        self.spark_conn_id = spark_conn_id
        self.master = master
        self.launch_backend = launch_backend
        self.budget = RestartBudget(restarts_max, restart_window.total_seconds())

    def pipeline_task(self) -> PipelineTask:
        """Return the arguments as one object."""
        return PipelineTask(
            self.own_document(),
            self.deltaforge_conn_id,
            dict(self.connections or {}),
            self.spark_conn_id,
            self.master,
            self.executor,
            self.launch_backend,
        )

    def own_document(self) -> Document | None:
        """Return the document of the one pipeline that the task works for; None without one."""
        return None

    @property
    @abstractmethod
    def document_label(self) -> str:
        """Return what the task works on, for logs."""

    def check_launch(self) -> None:
        """Refuse what cannot be launched, before anything is stored or started.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        self.pipeline_task().check_launch()

    @abstractmethod
    def get_openlineage_facets_on_start(self) -> Any:
        """Return what is read and written, for the OpenLineage provider."""

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
