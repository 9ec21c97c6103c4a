"""Run and supervise a pipeline's stream."""

from collections.abc import Mapping
from typing import Any

from airflow_provider_deltaforge.assets.tables import describe_events
from airflow_provider_deltaforge.control.arrivals import Arrivals, arrivals
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.pipelines import apply
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator, summary
from airflow_provider_deltaforge.operators.supervision import SupervisingOperator
from airflow_provider_deltaforge.storage.contract import Store

_SCRIPT = "stream_job.py"


class DeltaForgeStreamOperator(SupervisingOperator, PipelineOperator):
    """Adopt the pipeline's stream or start it, then watch it without a worker slot.

    The task succeeds when its window is over, *without stopping the stream*; the next run adopts
    it. It fails when the stream is dead and restarting cannot help, and when another supervisor
    took it over; it is skipped when a person stopped the stream.

    ``SupervisingOperator`` has ``window``, ``on_kill`` and ``poll_interval``.
    """

    def applied(self, store: Store) -> tuple[str, Mapping[str, Any] | None]:
        """Apply the document."""
        name = apply(store, self.pipeline_task().agreed_text()).name
        return name, arrivals(store, name).as_dict() if self.outlets else None

    def job(self, name: str, generation: int) -> LaunchSpec:
        """Return the driver of the stream."""
        return self.pipeline_task().job(name, generation, _SCRIPT)

    def ended_window(
        self, context: Mapping[str, Any], store: Store, watch: TriggerArguments
    ) -> Any:
        """Return the stream's status; the events of ``outlets`` carry what arrived."""
        shown = summary(status(store, watch.pipeline, self.pipeline_task().hook().backend()))
        if watch.arrived is not None:
            arrived = arrivals(store, watch.pipeline).since(Arrivals.of(watch.arrived))
            describe_events(context, self.outlets, watch.pipeline, arrived)
        return shown
