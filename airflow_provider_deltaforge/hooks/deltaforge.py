"""The way from Airflow to the state store."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException

from airflow_provider_deltaforge.control import (
    data_drift,
    dead_letters,
    pipelines,
    replays,
    schemas,
    sensing,
    snapshots,
    verification,
)
from airflow_provider_deltaforge.control.launching.backends import (
    LOCAL,
    LaunchBackends,
    require_known,
)
from airflow_provider_deltaforge.control.pipelines import STOP_GRACE_S, existing
from airflow_provider_deltaforge.control.snapshots import RequestState
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.hooks.backends import launch_backends
from airflow_provider_deltaforge.hooks.connections import KeptConnection, dsn_of, extra_of
from airflow_provider_deltaforge.sensing.json_schema import Dialect
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.requests import Overtaken

_T = TypeVar("_T")


class DeltaForgeHook(BaseHook):
    """Reads and changes pipelines through their state store; nothing is opened before it is asked.

    The connection *is* the store: ``path`` in its extras for a SQLite file, or host, port,
    database, login and password of a PostgreSQL database.

    Args:
        deltaforge_conn_id: the Airflow connection.
    """

    conn_name_attr = "deltaforge_conn_id"
    default_conn_name = "deltaforge_default"
    conn_type = "deltaforge"
    hook_name = "DeltaForge state store"

    def __init__(self, deltaforge_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.deltaforge_conn_id = deltaforge_conn_id
        self._connection = KeptConnection(lambda: self.get_connection(deltaforge_conn_id))

    def store_dsn(self) -> str:
        """Return the store's DSN, password included: hand it to a driver's environment only.

        Raises:
            SpecError: the connection names no store.
        """
        return self._of_connection(dsn_of)

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[Store]:
        """Open the state store for a block.

        Args:
            create: make one where there is none, as applying a document does.

        Raises:
            RetryableError: it is away, or was never made.
        """
        location = StoreLocation.from_dsn(self.store_dsn())
        try:
            with closing(location.create() if create else location.open()) as opened:
                yield opened
        except DeltaForgeError:
            self._connection.forget()
            raise

    def get_conn(self) -> Store:
        """Return an open state store; the caller closes it."""
        return StoreLocation.from_dsn(self.store_dsn()).open()

    def launch_backend(self, name: str | None = None) -> str:
        """Return the name of the launch backend: as an operator says, else the connection's extra.

        Raises:
            SpecError: there is none of this name.
        """
        return self._of_connection(lambda found: _launch_backend(found, name))

    def backend(self, name: str | None = None) -> LaunchBackends:
        """Return where drivers are started, by ``launch_backend(name)``, and found.

        Raises:
            SpecError: an extra of the connection is wrong; the text names it.
        """
        return self._of_connection(
            lambda found: launch_backends(
                dsn_of(found), extra_of(found), _launch_backend(found, name)
            )
        )

    def master(self, spark_conn_id: str | None, master: str) -> str:
        """Return the Spark master: that of a Spark connection if one is named.

        Args:
            spark_conn_id: a connection of the Apache Spark provider (host holds the master URL).
            master: used without one.
        """
        if spark_conn_id is None:
            return master
        connection = self.get_connection(spark_conn_id)
        host = connection.host or "local[*]"
        return f"{host}:{connection.port}" if connection.port else host

    def get_control(self, pipeline: str) -> ControlRecord | None:
        """Return what is wanted of a pipeline, or None when it was never applied."""
        return self._ask(lambda store: Control(store, pipeline).read())

    def get_status(self, pipeline: str) -> PipelineStatus:
        """Return what is true about a pipeline now."""
        return self._ask(lambda store: status(store, pipeline, self.backend()))

    def get_pipelines(self) -> list[str]:
        """Return the names of every pipeline in the store."""
        return self._ask(Control.list_pipelines)

    def get_checkpoints(self, pipeline: str) -> Mapping[str, Any]:
        """Return the position each sink holds durably, by sink id."""
        return self._ask(lambda store: _checkpoints(store, pipeline))

    def get_lag(self, pipeline: str) -> timedelta | None:
        """Return the age of the newest delivered event; None when nobody delivers."""
        present = self.get_status(pipeline)
        if not present.alive or present.lag_ms is None:
            return None
        return timedelta(milliseconds=present.lag_ms)

    def get_snapshot_progress(self, pipeline: str) -> Mapping[str, Any] | None:
        """Return what the pipeline's own snapshot has copied by table, or None before it."""
        return self._ask(lambda store: snapshots.progress(store, pipeline))

    def get_snapshot_requests(self, pipeline: str) -> list[RequestState]:
        """Return the copies that were asked for: the ended ones, then the pending ones."""
        return self._ask(lambda store: snapshots.requests(store, pipeline))

    def get_schemas(self, pipeline: str) -> list[dict[str, Any]]:
        """Return the schemas registered of a pipeline's tables, the last of each."""
        return self._ask(lambda store: schemas.schemas(store, pipeline))

    def get_schema(
        self,
        pipeline: str,
        table: str,
        version: int | None = None,
        at: str | None = None,
        sequence: int | None = None,
    ) -> dict[str, Any]:
        """Return one table's schema, with its columns.

        Args:
            pipeline: its name.
            table: ``orders`` or ``shop.orders``.
            version: the version of this number.
            at: what was registered at this time, in ISO 8601.
            sequence: what an event with this ``schema_sequence`` has.

        Raises:
            SpecError: there is no such pipeline, table or version.
        """
        asked = schemas.SchemaVersionQuery.of(version, at, sequence)
        return self._ask(lambda store: schemas.schema(store, pipeline, table, asked))

    def get_schema_versions(self, pipeline: str, table: str) -> list[dict[str, Any]]:
        """Return a table's history: one entry whenever a version came into force."""
        return self._ask(lambda store: schemas.versions(store, pipeline, table))

    def get_drift(self, pipeline: str, since: str | None = None) -> list[dict[str, Any]]:
        """Return where events differ from what is expected of them, by table.

        Args:
            pipeline: its name.
            since: only what was seen since: how long ago (``6h``), or a time in ISO 8601.

        Raises:
            SpecError: there is no such pipeline, or it does not look for data drift.
        """
        since_ms = data_drift.since_ms(since)
        return self._ask(lambda store: data_drift.drift(store, pipeline, since_ms))

    def get_table_drift(
        self, pipeline: str, table: str, since: str | None = None
    ) -> dict[str, Any]:
        """Return the same of one table, ``orders`` or ``shop.orders``."""
        since_ms = data_drift.since_ms(since)
        return self._ask(lambda store: data_drift.table_drift(store, pipeline, table, since_ms))

    def get_sensed_schemas(self, pipeline: str) -> list[dict[str, Any]]:
        """Return what was sensed of each table and of each JSON column.

        Raises:
            SpecError: there is no such pipeline, or it senses nothing.
        """
        return self._ask(lambda store: sensing.schemas(store, pipeline))

    def get_sensed_schema(self, pipeline: str, table: str) -> dict[str, Any]:
        """Return the fields of a table (``orders``) or of a JSON column (``orders:metadata``)."""
        return self._ask(lambda store: sensing.schema(store, pipeline, table))

    def get_json_schema(
        self, pipeline: str, table: str, dialect: Dialect | None = None
    ) -> dict[str, Any]:
        """Return what was sensed of a table or JSON column as JSON Schema.

        Args:
            pipeline: its name.
            table: ``orders``, or ``orders:metadata``.
            dialect: ``draft-07`` or ``2020-12``; None: as the document says.
        """
        return self._ask(lambda store: sensing.json_schema(store, pipeline, table, dialect))

    def get_dead_letters(
        self,
        pipeline: str,
        limit: int = dead_letters.LIMIT,
        sink: str | None = None,
        processor: str | None = None,
        kind: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return events that were set aside, oldest first, with their rows.

        Args:
            pipeline: its name.
            limit: at most so many.
            sink: only what this sink refused.
            processor: only what this processor refused.
            kind: only errors of this kind.
        """
        which = DeadLetterFilter(sink, processor, kind)
        return self._ask(lambda store: dead_letters.entries(store, pipeline, which, limit))

    def get_dead_letter_count(self, pipeline: str) -> int:
        """Return how many events are set aside."""
        return self._ask(lambda store: dead_letters.count(store, pipeline))

    def ack_dead_letters(self, pipeline: str, up_to_seq: int) -> int:
        """Forget everything up to and including a sequence number; return how many."""
        return self._ask(lambda store: dead_letters.ack(store, pipeline, up_to_seq))

    def purge_dead_letters(self, pipeline: str) -> int:
        """Forget everything that is set aside; return how many."""
        return self._ask(lambda store: dead_letters.purge(store, pipeline))

    def replay_dead_letters(
        self,
        pipeline: str,
        which: DeadLetterFilter = dead_letters.EVERY,
        overtaken: Overtaken = "skip",
    ) -> str:
        """Ask for events to be sent again by the driver that runs, or that starts next.

        Args:
            pipeline: its name.
            which: of those that were set aside.
            overtaken: what becomes of those whose row has newer events in the sink.

        Returns:
            The ticket for ``get_replay``.
        """
        return self._ask(lambda store: replays.request(store, pipeline, which, overtaken, "hook"))

    def get_replay(self, pipeline: str, ticket: str) -> dict[str, Any] | None:
        """Return what became of a replay, or of it so far; None while it waits for a driver."""
        replay = self._ask(lambda store: replays.replay(store, pipeline, ticket))
        return None if replay is None else replay.model_dump(exclude={"v"})

    def get_verifications(self, pipeline: str) -> dict[str, Any]:
        """Return the verification that is running, and the last results, newest first."""
        return self._ask(lambda store: verification.results(store, pipeline))

    async def aget_control(self, pipeline: str) -> ControlRecord | None:
        """Do ``get_control`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_control, pipeline)

    async def aget_status(self, pipeline: str) -> PipelineStatus:
        """Do ``get_status`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_status, pipeline)

    async def aget_pipelines(self) -> list[str]:
        """Do ``get_pipelines`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_pipelines)

    async def aget_checkpoints(self, pipeline: str) -> Mapping[str, Any]:
        """Do ``get_checkpoints`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_checkpoints, pipeline)

    async def aget_lag(self, pipeline: str) -> timedelta | None:
        """Do ``get_lag`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_lag, pipeline)

    async def aget_snapshot_progress(self, pipeline: str) -> Mapping[str, Any] | None:
        """Do ``get_snapshot_progress`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_snapshot_progress, pipeline)

    async def aget_snapshot_requests(self, pipeline: str) -> list[RequestState]:
        """Do ``get_snapshot_requests`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_snapshot_requests, pipeline)

    async def aget_schemas(self, pipeline: str) -> list[dict[str, Any]]:
        """Do ``get_schemas`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_schemas, pipeline)

    async def aget_schema(self, pipeline: str, table: str, **which: Any) -> dict[str, Any]:
        """Do ``get_schema`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_schema, pipeline, table, **which)

    async def aget_schema_versions(self, pipeline: str, table: str) -> list[dict[str, Any]]:
        """Do ``get_schema_versions`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_schema_versions, pipeline, table)

    async def aget_drift(self, pipeline: str, since: str | None = None) -> list[dict[str, Any]]:
        """Do ``get_drift`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_drift, pipeline, since)

    async def aget_table_drift(
        self, pipeline: str, table: str, since: str | None = None
    ) -> dict[str, Any]:
        """Do ``get_table_drift`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_table_drift, pipeline, table, since)

    async def aget_sensed_schemas(self, pipeline: str) -> list[dict[str, Any]]:
        """Do ``get_sensed_schemas`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_sensed_schemas, pipeline)

    async def aget_sensed_schema(self, pipeline: str, table: str) -> dict[str, Any]:
        """Do ``get_sensed_schema`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_sensed_schema, pipeline, table)

    async def aget_json_schema(self, pipeline: str, table: str, **which: Any) -> dict[str, Any]:
        """Do ``get_json_schema`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_json_schema, pipeline, table, **which)

    async def aget_dead_letters(self, pipeline: str, **which: Any) -> list[dict[str, Any]]:
        """Do ``get_dead_letters`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_dead_letters, pipeline, **which)

    async def aget_dead_letter_count(self, pipeline: str) -> int:
        """Do ``get_dead_letter_count`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_dead_letter_count, pipeline)

    async def aget_replay(self, pipeline: str, ticket: str) -> dict[str, Any] | None:
        """Do ``get_replay`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_replay, pipeline, ticket)

    async def aget_verifications(self, pipeline: str) -> dict[str, Any]:
        """Do ``get_verifications`` without blocking the event loop."""
        return await asyncio.to_thread(self.get_verifications, pipeline)

    def pause(self, pipeline: str) -> None:
        """Ask the driver to deliver what it holds and then wait."""
        self._ask(lambda store: pipelines.pause(store, pipeline))

    def resume(self, pipeline: str) -> None:
        """Ask a paused driver to go on."""
        self._ask(lambda store: pipelines.resume(store, pipeline))

    def stop(self, pipeline: str, grace: timedelta = timedelta(seconds=STOP_GRACE_S)) -> None:
        """Ask the driver to end, wait for it, then end it; return when it is gone."""
        grace_s = grace.total_seconds()
        self._ask(lambda store: pipelines.stop(store, pipeline, self.backend(), grace_s))

    def test_connection(self) -> tuple[bool, str]:
        """Open the store and count its pipelines, for the connection form's test button.

        What the connection says of launch backends is read as well: every task and trigger does.
        """
        try:
            self.backend()
            count = len(self.get_pipelines())
        except RetryableError as error:
            asks = (
                "" if "never made" in str(error) else ". Is the server up, and reachable from here?"
            )
            return False, f"{error}{asks}"
        except AccessError as error:
            return False, f"{error}. Check login, password, database and TLS of this connection"
        except (DeltaForgeError, AirflowException) as error:
            return False, str(error)
        return True, f"state store opened; {count} {'pipeline' if count == 1 else 'pipelines'}"

    def _of_connection(self, read: Callable[[Any], _T]) -> _T:
        """Return what the connection says; one that is wrong may be mended, and is not kept."""
        try:
            return read(self._connection.get())
        except SpecError:
            self._connection.forget()
            raise

    def _ask(self, question: Callable[[Store], _T]) -> _T:
        with self.store() as store:
            return question(store)


def _launch_backend(connection: Any, name: str | None) -> str:
    return require_known(name or extra_of(connection).get("launch_backend") or LOCAL)


def _checkpoints(store: Store, pipeline: str) -> Mapping[str, Any]:
    record = existing(store, pipeline).read()
    source_id = record.source_id if record is not None else ""
    return Checkpoints(store, pipeline, source_id).load()
