"""Wait for what is true of a pipeline, or fail because it is not.

Each sensor looks once on the worker; then it waits in the triggerer (``deferrable``, the default),
or in the way ``mode`` says. A state store that is away is not an answer, so waiting goes on.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control import conditions, data_drift
from airflow_provider_deltaforge.control.conditions import Condition, ConditionResult
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import split_names
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import Document, PipelineTask, pipeline_name
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelineLink
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger


class PipelineSensor(BaseSensorOperator):
    """Base of the sensors: the arguments that name a pipeline, and the three ways to wait.

    Args:
        pipeline: name of the pipeline; or give
        document: its YAML document: a path, or the document itself.
        deltaforge_conn_id: connection of the state store.
        deferrable: wait in the triggerer, without a worker slot.
        poke_interval: time between two looks at the state store.
        timeout: how long to wait before the task fails.
    """

    template_fields: Sequence[str] = ("pipeline", "document", "deltaforge_conn_id")
    ui_color = "#cfe8dc"
    operator_extra_links = (DeltaForgePipelineLink(),)

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        document: Document | None = None,
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        deferrable: bool = True,
        poke_interval: timedelta | float = 5.0,
        timeout: timedelta | float = timedelta(hours=1),
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, timeout=timeout, **kwargs)
        self.pipeline = pipeline
        self.document = document
        self.deltaforge_conn_id = deltaforge_conn_id
        self.deferrable = deferrable

    @abstractmethod
    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Look once; wait if it is not so yet."""
        if not self.deferrable:
            return super().execute(context)
        try:
            return self._look_or_defer(context)
        except Exception as error:  # As Airflow itself does where it pokes or goes on.
            if self.soft_fail and isinstance(error, AirflowFailException):
                raise AirflowSkipException(f"soft_fail: {error}") from error
            if self.never_fail:
                raise AirflowSkipException(f"never_fail: {error}") from error
            raise

    def _look_or_defer(self, context: Mapping[str, Any]) -> Any:
        trigger = self._trigger(context)
        answer = trigger.answer()
        if answer.met is not False:
            return self._settle(answer).xcom_value
        return self.defer(
            trigger=trigger,
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Return what was waited for, or fail with the reason why it cannot come."""
        del context
        return self._settle(
            ConditionResult(event["met"], event["words"], event["value"])
        ).xcom_value

    def poke(self, context: Mapping[str, Any]) -> PokeReturnValue:
        """Look once."""
        return self._settle(self._trigger(context).answer())

    def _trigger(self, context: Mapping[str, Any]) -> ConditionTrigger:
        try:
            name = pipeline_name(self.pipeline, self.document)
            wanted = self.condition(context)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        return ConditionTrigger(
            self.deltaforge_conn_id,
            name,
            wanted,
            poll_s=self.poke_interval,
            connections=self.asked_with(),
        )

    def asked_with(self) -> Mapping[str, str] | None:
        """Return the connections that the source is asked with, by variable; None: it is not."""
        return None

    def _settle(self, answer: ConditionResult) -> PokeReturnValue:
        if answer.met is None:
            raise AirflowFailException(f"this cannot come any more: {answer.words}")
        self.log.info("%s", answer.words)
        return PokeReturnValue(answer.met, answer.value)


class DeltaForgeSnapshotSensor(PipelineSensor):
    """Wait until the pipeline's own snapshot, or one requested copy, is finished.

    Args:
        request: id of a requested copy; None for the pipeline's own snapshot.
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "request")

    def __init__(self, *, request: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.request = request

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        del context
        return conditions.snapshot_finished(self.request or None)


class DeltaForgeLagSensor(PipelineSensor):
    """Wait until the stream runs and its newest delivered event was young enough.

    A stream that delivered nothing since it was started has no lag, and is waited for.

    Args:
        below: the limit: a timedelta, or seconds as a number or a rendered text.
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "below")

    def __init__(self, *, below: timedelta | float | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.below = below

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        del context
        return conditions.lag_below(_seconds("below", self.below) * 1000)


class DeltaForgeCheckpointSensor(PipelineSensor):
    """Wait until everything up to a position of the source's log is durable in the sinks.

    Args:
        position: a position as the source writes it, or ``head``: where the log ends when the
            sensor first runs.
        sink: id of one sink; None for every sink.
        connections: environment variable of the document to Airflow connection id, to ask the
            source for its head.
    """

    template_fields: Sequence[str] = (
        *PipelineSensor.template_fields,
        *("position", "sink", "connections"),
    )

    def __init__(
        self,
        *,
        position: Mapping[str, Any] | str = "head",
        sink: str | None = None,
        connections: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.position = position
        self.sink = sink
        self.connections = connections
        self._head: Mapping[str, Any] | None = None

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        if isinstance(self.position, Mapping):
            return conditions.checkpoint_past(self.position, self.sink)
        if self.position != "head":
            raise SpecError(f"position must be 'head' or a position: {self.position!r}")
        if self._head is None:
            self._head = self._first_head(context)
        return conditions.checkpoint_past(self._head, self.sink)

    def _first_head(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the head as the first look of this try found it; ``reschedule`` forgets itself."""
        store, key = context.get("task_state_store"), f"head_{context['ti'].try_number}"
        kept = store.get(key) if store is not None else None
        if kept is not None:
            return dict(kept)
        task = PipelineTask(
            self.document or "", self.deltaforge_conn_id, dict(self.connections or {})
        )
        name = pipeline_name(self.pipeline, self.document)
        with task.hook().store() as state:
            found = dict(conditions.head_of(state, name, task.whole_environment()))
        if store is not None:
            store.set(key, found)
        return found


class DeltaForgeStatusSensor(PipelineSensor):
    """Wait until the pipeline's status is one of some; return the status.

    Args:
        statuses: what to wait for, a list or a text with commas: ``pending``, ``starting``,
            ``snapshotting``, ``running``, ``blocked``, ``paused``, ``stopped``, ``failed`` or
            ``lost``.
        failing: statuses that fail the task at once.
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "statuses", "failing")

    def __init__(
        self,
        *,
        statuses: Sequence[str] | str = "running",
        failing: Sequence[str] | str = "failed",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.statuses = statuses
        self.failing = failing

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        del context
        return conditions.status_in(split_names(self.statuses), split_names(self.failing))


class DeltaForgeDriftSensor(PipelineSensor):
    """Fail when events differ from what is expected of them, or wait until some do.

    Put it behind a checkpoint sensor: only what was delivered was looked at.

    Args:
        when_drift: ``fail``: succeed at once without drift, else fail with what differs;
            ``succeed``: wait until there is drift, and return the tables.
        tables: names of tables, ``orders`` or ``shop.orders``, a list or a text with commas; all
            when empty.
        since: what was seen before is left out: ``run``: before the DAG run began; ``ever``:
            nothing; or a time, as a datetime or in ISO 8601.
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "tables", "since")

    def __init__(
        self,
        *,
        when_drift: Literal["fail", "succeed"] = "fail",
        tables: Sequence[str] | str = (),
        since: datetime | str = "run",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.when_drift = when_drift
        self.tables = tables
        self.since = since

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        awaits_drift = _awaits("when_drift", self.when_drift)
        wanted = conditions.drift_seen if awaits_drift else conditions.no_drift
        return wanted(split_names(self.tables), self._since_ms(context))

    def _since_ms(self, context: Mapping[str, Any]) -> int:
        return _since_ms(self.since, context)


class DeltaForgeVerifySensor(PipelineSensor):
    """Wait for a verification that somebody runs; fail when it found rows that differ.

    Args:
        since: only one that ended since then counts: ``run``: since the DAG run began; ``ever``:
            any; or a time, as a datetime or in ISO 8601.
        incomplete: succeed, too, when nothing differs but something could not be compared.
    """

    template_fields: Sequence[str] = (*PipelineSensor.template_fields, "since")

    def __init__(
        self, *, since: datetime | str = "run", incomplete: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.since = since
        self.incomplete = incomplete

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        return conditions.verified(_since_ms(self.since, context), incomplete=self.incomplete)


class DeltaForgeDeadLetterSensor(PipelineSensor):
    """Fail when too many events were set aside, or wait until there are some.

    Args:
        at_most: the limit: more than so many are too many.
        when_more: ``fail``: succeed at once up to the limit, else fail; ``succeed``: wait until
            there are more than the limit. Either returns how many there are.
        table: only events of this table count.
        sink: only what this sink refused.
        kind: only errors of this kind.
    """

    template_fields: Sequence[str] = (
        *PipelineSensor.template_fields,
        *("at_most", "table", "sink", "kind"),
    )

    def __init__(
        self,
        *,
        at_most: int | str = 0,
        when_more: Literal["fail", "succeed"] = "fail",
        table: str | None = None,
        sink: str | None = None,
        kind: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.at_most = at_most
        self.when_more = when_more
        self.table, self.sink, self.kind = table, sink, kind

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        del context
        which = DeadLetterFilter(
            sink=self.sink or None, kind=self.kind or None, table=self.table or None
        )
        return conditions.dead_letters_within(
            int(_number("at_most", self.at_most)),
            which,
            awaits_more=_awaits("when_more", self.when_more),
        )


class DeltaForgeRetentionSensor(PipelineSensor):
    """Fail when the source will soon drop log that a pipeline needs, or wait until then.

    It asks the source itself, from the worker and the triggerer, so it knows of a pipeline that
    does not run, too. A log that is dropped already counts as too little.

    Args:
        below: the limit of a source that keeps its log for a time, as MySQL does: a timedelta, or
            seconds as a number or a rendered text.
        below_bytes: the limit of one that keeps it up to a size, as PostgreSQL does.
        when_low: ``fail``: succeed at once while enough is left, else fail; ``succeed``: wait
            until less is left. Either returns what is left; None: there is no limit.
        connections: environment variable of the document to Airflow connection id.
        poke_interval: time between two questions, 60 seconds.
    """

    template_fields: Sequence[str] = (
        *PipelineSensor.template_fields,
        *("below", "below_bytes", "connections"),
    )

    def __init__(
        self,
        *,
        below: timedelta | float | str | None = None,
        below_bytes: int | str | None = None,
        when_low: Literal["fail", "succeed"] = "fail",
        connections: Mapping[str, str] | None = None,
        poke_interval: timedelta | float = 60.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.below, self.below_bytes = below, below_bytes
        self.when_low = when_low
        self.connections = connections

    def condition(self, context: Mapping[str, Any]) -> Condition:
        """Return what is waited for."""
        del context
        if self.below is None and self.below_bytes is None:
            raise SpecError("give `below`, a time, or `below_bytes`, or both")
        size = self.below_bytes
        return conditions.retention_above(
            None if self.below is None else _seconds("below", self.below),
            None if size is None else int(_number("below_bytes", size)),
            awaits_low=_awaits("when_low", self.when_low),
        )

    def asked_with(self) -> Mapping[str, str]:
        """Return the connections that the source is asked with, by variable."""
        return dict(self.connections or {})


def _awaits(key: str, value: str) -> bool:
    if value not in ("fail", "succeed"):
        raise SpecError(f"{key} must be 'fail' or 'succeed': {value!r}")
    return value == "succeed"


def _seconds(key: str, value: timedelta | float | str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _number(key, value, "a timedelta or seconds")


def _number(key: str, value: float | str, what: str = "a number") -> float:
    try:
        return float(value)
    except ValueError as error:
        raise SpecError(f"{key} must be {what}: {value!r}") from error


def _since_ms(since: datetime | str, context: Mapping[str, Any]) -> int:
    if since == "ever":
        return 0
    if since == "run":
        run = context["dag_run"]
        since = run.start_date or run.run_after
    return data_drift.since_ms(since.isoformat() if isinstance(since, datetime) else since)
