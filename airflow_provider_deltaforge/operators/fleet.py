"""Run and supervise a fleet: many pipelines in one Spark application."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.fleet_application import (
    apply_fleet,
    fleet_summary,
    named_after,
)
from airflow_provider_deltaforge.control.launching import threads
from airflow_provider_deltaforge.control.launching.backends import LOCAL
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelinesLink
from airflow_provider_deltaforge.operators.launch import LaunchingOperator
from airflow_provider_deltaforge.operators.pipeline import summary
from airflow_provider_deltaforge.operators.supervision import SupervisingOperator
from airflow_provider_deltaforge.spec.load import documents_at
from airflow_provider_deltaforge.storage.contract import Store

_FAIL_ON = ("fleet", "pipeline")


class DeltaForgeFleetOperator(SupervisingOperator):
    """Adopt the fleet that runs some documents, or start it, then watch it without a worker slot.

    The task succeeds when its window is over, *without stopping the fleet*; the next run adopts
    it. It fails when the fleet is dead and restarting cannot help, and when another supervisor
    took it over; it is skipped when a person stopped the fleet (``deltaforge stop fleet@NAME``).
    What happens to one pipeline does not end it: see ``fail_on``.

    ``LaunchingOperator`` and ``SupervisingOperator`` have the other arguments.

    Args:
        documents: folder of pipeline documents, which the fleet watches; or one document, or
            several of both. Paths on the host of the worker.
        fleet: its name; None: one that follows from ``documents``, so that every task with the
            same documents supervises the same fleet. A task of this name with other arguments
            replaces it.
        master: Spark master used without ``spark_conn_id``; each pipeline needs a core of it.
        without_spark: lanes are threads of one process, as with ``deltaforge fleet --local``.
        fail_on: ``fleet``: a pipeline that has failed for good is only named in what the task
            returns; ``pipeline``: it fails the task, when the window is over, as does a document
            that is not used. The fleet goes on either way.
    """

    template_fields: Sequence[str] = ("documents", "fleet", *LaunchingOperator.template_fields)
    operator_extra_links = (DeltaForgePipelinesLink(),)

    def __init__(
        self,
        *,
        documents: str | Sequence[str],
        fleet: str | None = None,
        master: str = "local[64]",
        without_spark: bool = False,
        fail_on: str = "fleet",
        window: timedelta | None = timedelta(hours=6),
        spark_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(master=master, window=window, spark_conn_id=spark_conn_id, **kwargs)
        if fail_on not in _FAIL_ON:
            raise ValueError(f"fail_on must be one of {_FAIL_ON}, got {fail_on!r}")
        if fail_on == "pipeline" and window is None:
            raise ValueError("fail_on: 'pipeline' is judged when the window is over; set `window`")
        if without_spark and spark_conn_id is not None:
            raise ValueError("without_spark: leave spark_conn_id out")
        self.documents = documents
        self.fleet = fleet
        self.without_spark = without_spark
        self.fail_on = fail_on

    @property
    def document_label(self) -> str:
        """Return what is supervised, for logs."""
        return f"the fleet of {self.documents}"

    def check_launch(self) -> None:
        """Refuse a launch backend that takes no documents along, and what every driver refuses."""
        backend = self.pipeline_task().hook().launch_backend(self.launch_backend)
        if backend != LOCAL:
            raise SpecError(
                f"launch_backend: {backend!r} runs no fleet, because the documents are files of "
                "the worker's host. Write launch_backend='local' on this task (its master may be "
                "a standalone cluster's), or run `deltaforge fleet` there as a service "
                "(docs/deployment.md), or give each pipeline a DeltaForgeStreamOperator"
            )
        super().check_launch()
        for path in document_paths(self.documents):
            if not path.exists():
                raise SpecError(f"documents: {path} is not there, on the host of this worker")

    def applied(self, store: Store) -> tuple[str, Mapping[str, Any] | None]:
        """Keep what the fleet is to be started with."""
        settings = {"connections": dict(self.connections or {})}
        return apply_fleet(
            store, self.fleet or named_after(document_paths(self.documents)), settings
        ), None

    def job(self, name: str, generation: int) -> LaunchSpec:
        """Return the fleet's process."""
        master = self.pipeline_task().hook().master(self.spark_conn_id, self.master)
        spark = ("--local",) if self.without_spark else ("--master", master)
        words = (*map(str, document_paths(self.documents)), *spark)
        job = self.pipeline_task().job(name, generation, threads.SCRIPT, words)
        # The worker's own must not decide.
        local = {threads.LOCAL: str(self.without_spark).lower()}
        return replace(job, environment={**job.environment, **local})

    def get_openlineage_facets_on_start(self) -> Any:
        """Return what all its pipelines read and write; a document that is wrong is left out."""
        from airflow_provider_deltaforge.operators.lineage import operator_lineage, task_lineage

        task, found = self.pipeline_task(), []
        files = [file for path in document_paths(self.documents) for file in documents_at(path)]
        with task.hook().store() as store:
            for file in files:
                with suppress(SpecError):  # The task itself returns it among its troubles.
                    found.append(task_lineage(store, replace(task, document=str(file))))
        return operator_lineage(found)

    def ended_window(
        self, context: Mapping[str, Any], store: Store, watch: TriggerArguments
    ) -> Any:
        """Return how each pipeline is."""
        backend = self.pipeline_task().hook().backend()
        summary(status(store, watch.pipeline, backend))
        found = fleet_summary(store, watch.pipeline, backend)
        if found["failed"] or found["troubles"]:
            reasons = [
                *(f"{name}: {found['pipelines'][name]['reason']}" for name in found["failed"]),
                *(f"{name}: {reason}" for name, reason in found["troubles"].items()),
            ]
            words = f"{watch.pipeline} goes on, but not all of its pipelines: {'; '.join(reasons)}"
            if self.fail_on == "pipeline":
                if "ti" in context:  # A task that fails returns nothing.
                    context["ti"].xcom_push(key="summary", value=found)
                raise AirflowFailException(words)
            self.log.warning("%s", words)
        return found


def document_paths(documents: str | Sequence[str]) -> list[Path]:
    """Return the documents of a fleet as its process finds them.

    Raises:
        SpecError: there are none, or one is no path.
    """
    paths = [documents] if isinstance(documents, str) else documents
    if not paths or isinstance(paths, Mapping):
        raise SpecError("documents: name a folder of documents, or documents, by their paths")
    for path in paths:
        if not isinstance(path, str | os.PathLike) or "\n" in str(path) or not str(path):
            raise SpecError(
                "documents: a fleet reads files, so that they can be changed while it runs; write "
                "paths, or give an inline document to DeltaForgeStreamOperator"
            )
    return [Path(path).absolute() for path in paths]
