"""What operators and triggers share: the document of a task, its driver's job, its events."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

import yaml
from airflow.sdk import BaseHook

from airflow_provider_deltaforge.control.attend import Attendance
from airflow_provider_deltaforge.control.launching.backends import LOCAL, LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.starting import SNAPSHOT_SCRIPT
from airflow_provider_deltaforge.control.supervise import RestartBudget
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.connections import address_of
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.executors import require_lasting_worker
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import load, read_document, variables_of
from airflow_provider_deltaforge.storage.choice import store_of
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation

Document: TypeAlias = str | Mapping[str, Any]
"""The path of a YAML document; or the document itself, as text of several lines or a mapping."""


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """One pipeline as an Airflow task sees it; holds ids and paths, never a secret.

    Args:
        document: path of the pipeline's YAML document, or the document itself; None: the task has
            none of its own.
        deltaforge_conn_id: connection of the state store.
        connections: environment variable of the document to Airflow connection id, for example
            ``{"MYSQL_DSN": "shop_mysql"}``; resolved when the task runs and handed to the driver
            through its environment only.
        spark_conn_id: connection of the Apache Spark provider, for its master URL.
        master: Spark master used without ``spark_conn_id``.
        executor: the task's own Airflow executor; None: the installation's.
        launch_backend: where drivers run; None: as the connection says.
    """

    document: Document | None
    deltaforge_conn_id: str = DeltaForgeHook.default_conn_name
    connections: Mapping[str, str] = field(default_factory=dict)
    spark_conn_id: str | None = None
    master: str = "local[*]"
    executor: str | None = None
    launch_backend: str | None = None

    def text(self) -> str:
        """Return the document.

        Raises:
            SpecError: the file cannot be read.
        """
        if self.document is None:
            raise SpecError("this task has no document of its own")
        return document_text(self.document)

    def agreed_text(self) -> str:
        """Return the document, once it is sure that it names no other store than the connection.

        Raises:
            SpecError: it does, or it cannot be read or is wrong.
        """
        text = self.text()
        store_of(text, StoreLocation.from_dsn(self.hook().store_dsn()))
        return text

    def check_launch(self) -> None:
        """Refuse what no driver can be launched with, before anything is stored or started.

        Raises:
            SpecError: the Spark master is refused, or the worker ends with its task and would take
                the driver along; the text says what works.
        """
        hook = self.hook()
        if hook.launch_backend(self.launch_backend) == LOCAL:
            require_lasting_worker(self.executor)
        master = hook.master(self.spark_conn_id, self.master)
        self.backend().check(master, hook.store_dsn())

    def backend(self) -> LaunchBackends:
        """Return where this task starts drivers, and finds those that run."""
        return self.hook().backend(self.launch_backend)

    def hook(self) -> DeltaForgeHook:
        """Return the hook; it connects when used."""
        return DeltaForgeHook(self.deltaforge_conn_id)

    def environment(self) -> dict[str, str]:
        """Return the variables of the document: from Airflow connections, and of this process.

        Also those that stand for the secrets that the document holds itself.
        """
        connections = {
            variable: address_of(BaseHook.get_connection(conn_id))
            for variable, conn_id in self.connections.items()
        }
        with suppress(SpecError):  # It is read, and its errors are shown, where it is applied.
            text = self.text()
            withheld = withhold(text, load(text, expand=False)).values
            return {**variables_of(text, os.environ), **withheld, **connections}
        return connections

    def whole_environment(self) -> dict[str, str]:
        """Return this process's environment with the connections' variables on top."""
        return {**os.environ, **self.environment()}

    def job(
        self, pipeline: str, generation: int, script: str, arguments: tuple[str, ...] = ()
    ) -> LaunchSpec:
        """Return the driver to start; its environment holds the resolved connections."""
        hook = self.hook()
        return LaunchSpec(
            pipeline,
            generation,
            script,
            hook.store_dsn(),
            hook.master(self.spark_conn_id, self.master),
            arguments,
            self.environment(),
        )


@dataclass(frozen=True, slots=True)
class TriggerArguments:
    """What a trigger watches, and as whom; it travels with the trigger and back in its event."""

    pipeline: str
    generation: int
    owner: str
    window_end_ms: int | None = None
    arrived: Mapping[str, Any] | None = None
    """What had arrived when the task began, as ``Arrivals.as_dict``; for its outlets."""

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "TriggerArguments":
        """Return what the trigger that fired ``event`` watched.

        It may have been serialised by another release: what it lacks takes its default, and what
        is not known here is passed over.
        """
        return cls(**{key.name: event[key.name] for key in fields(cls) if key.name in event})

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, which triggers can be serialised with."""
        return asdict(self)


def pipeline_name(pipeline: str | None, document: Document | None) -> str:
    """Return the name of a pipeline that is named by itself or by its document.

    Raises:
        SpecError: both or neither are given, or the document is wrong.
    """
    if (pipeline is None) == (document is None):
        raise SpecError("give either `pipeline`, its name, or `document`, the path of its document")
    if pipeline is not None:
        return pipeline
    shown = document or ""
    text = document_text(shown)
    return load(text, expand=False, origin=document_label(shown)).metadata.name


def document_text(document: Document) -> str:
    """Return the text of a document, which is a path, several lines of YAML, or a mapping.

    Raises:
        SpecError: the file cannot be read, or the mapping holds what YAML cannot.
    """
    if isinstance(document, str):
        return document if "\n" in document else read_document(document)
    try:
        return yaml.safe_dump(_plain(document), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise SpecError(f"the inline document holds what YAML cannot: {error}") from error


def document_label(document: Document) -> str:
    """Return how a document is called in errors and logs."""
    is_path = isinstance(document, str) and "\n" not in document
    return str(document) if is_path else "the inline document"


def _plain(value: Any) -> Any:
    """Return mappings and sequences of any kind as those that YAML knows."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def attendance(
    store: Store, hook: DeltaForgeHook, job: LaunchSpec, owner: str, budget: RestartBudget
) -> Attendance:
    """Return what the supervision of a job needs to decide about its end."""
    return Attendance(store, hook.backend(), job, owner, budget, job.script == SNAPSHOT_SCRIPT)


def request_id(instance: Any) -> str:
    """Return the name of a task instance and its request: the same for every attempt of it."""
    place = f"{instance.dag_id}/{instance.task_id}/{instance.run_id}/{instance.map_index}"
    return f"airflow:{place}"


def owner_token(context: Mapping[str, Any]) -> str:
    """Return a token that names this attempt of this task instance and no other."""
    instance = context["ti"]
    return f"{request_id(instance)}#{instance.try_number}@{uuid.uuid4().hex[:8]}"
