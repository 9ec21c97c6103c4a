"""The log, read once more beside a lane, for one sink that is behind."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.processor_stats import BatchStats, ProcessorStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.catch_up.archived_log import open_log
from airflow_provider_deltaforge.engine.catch_up.rejoin_point import RejoinPoint
from airflow_provider_deltaforge.engine.catch_up.rewound_log import RewoundLog
from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import SnapshotSeam
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch
from airflow_provider_deltaforge.engine.deliver.held_event import LogRows
from airflow_provider_deltaforge.engine.read.batcher import BatchLimits, CuttingBatcher, SourceBatch
from airflow_provider_deltaforge.engine.read.read_ahead import Gate, ReadAhead
from airflow_provider_deltaforge.engine.read.registrar import Registrar, lookup, registry_of
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage, SinkMessages
from airflow_provider_deltaforge.errors import RetryableError, TableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sensing.data_drift.findings import TableFindings
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.spec.document import Spec
from airflow_provider_deltaforge.storage.records.rewinds import Rewind
from airflow_provider_deltaforge.storage.records.tables import TableRecords

Tell = Callable[[BaseException | None], None]


@dataclass(slots=True)
class RenderedBatch:
    """A batch of the log on its way to sinks.

    Attributes:
        source: the batch as it was cut.
        rendered: for each sink for which that worked ahead; grows as others are given the batch.
        stats: what the lane counts of it; None beside the lane.
        findings: where its events differ from what the catalog says.
        receivers: the sinks that the lane gives it to.
        held: by sink, what that is not given because it waits behind dead letters of its rows, or
            has refused.
        continues: its transaction began in a batch before it. Of that, the lane has not stored yet
            what was set aside, so that it holds back nothing here, and could be lost behind the
            sink's checkpoint.
    """

    source: SourceBatch
    rendered: SinkMessages
    stats: BatchStats | None = None
    findings: Sequence[TableFindings] = ()
    receivers: list[str] = field(default_factory=list)
    held: dict[str, Sequence[Rejection]] = field(default_factory=dict)
    continues: bool = False

    @property
    def of_sink(self) -> SinkMessages:
        """What was rendered, without what processors refused: that is set aside by the lane."""
        return replace(self.rendered, processed=replace(self.rendered.processed, refused=()))

    @property
    def log(self) -> LogRows:
        """What the messages were made of."""
        return LogRows(self.source.rows, self.rendered.processed)

    @property
    def first_ms(self) -> int | None:
        """When its first event was committed; None of an empty one."""
        return self._ms(0)

    @property
    def last_ms(self) -> int | None:
        """When its last event was committed; None of an empty one."""
        return self._ms(self.source.rows.num_rows - 1)

    def _ms(self, row: int) -> int | None:
        rows = self.source.rows
        return int(rows.column("ts_ms")[row].as_py()) if rows.num_rows else None


@dataclass(frozen=True, slots=True)
class CatchUpContext:
    """What a lane shares with those that catch its sinks up.

    Attributes:
        context: its fence guards every write.
        stats: shows how the sinks are doing.
        rejoin_point: where they join.
        over: says that the lane ends.
        confirm: raises if a newer lane has started.
        storing: one of them at a time stores what is set aside.
        retry: repeats the lane's calls to the store while it is away.
        seam_is_over: whether the lane, at a position, leaves nothing out that a snapshot shows.
        settle: stores how far the lane's sinks are, where that is not stored yet.
    """

    context: TaskContext
    stats: LaneStats
    rejoin_point: RejoinPoint
    over: Callable[[], bool]
    confirm: Callable[[], None]
    storing: threading.Lock
    retry: Callable[[Callable[[], Any]], Any]
    seam_is_over: Callable[[Position], bool] = lambda _: True
    settle: Callable[[], None] = lambda: None


class SecondReader:
    """Reads, decodes, processes and renders for one sink. Used by one thread.

    Args:
        shared: the lane's.
        sink_id: for whom.
        at: where to begin.
        tell: called with the error that keeps it from going on, and with None once it goes on.
        over: asked while waiting, whether to give up.
        retry: repeats a call to the store while it is away.
        rewind: the rewind that the sink gets the log again for; None: it has fallen behind.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        sink_id: str,
        at: Position,
        tell: Tell,
        over: Callable[[], bool],
        retry: Callable[[Callable[[], Any]], Any],
        rewind: Rewind | None = None,
    ) -> None:
        self._retry, self._rewind = retry, rewind
        self._rejoin_point, self._measured = shared.rejoin_point, shared.stats.measured
        self._context = shared.context
        self._sink_id = sink_id
        self._at = at
        self._tell = tell
        self._over = over
        # Its processors are the lane's once more: what they did is not counted twice.
        self._rendering = RenderStage(
            self._context.pipeline,
            self._context.origin,
            ProcessorStats(),
            _Processors(tell),
            over,
            lookup(registry_of(self._context)),
            only=(sink_id,),
        )
        self._reader: LogReader | None = None
        self._seam: SnapshotSeam | None = None
        self._pump: ReadAhead[RenderedBatch] | None = None

    def open(self) -> None:
        """Open the log beside the lane's reader.

        Raises:
            RetryableError: source or store are away; the call may be repeated.
            PositionLostError: the log does not reach back so far.
        """
        if self._reader is not None:
            self._reader.close()  # Of an attempt that did not come to its end.
        self._rendering.open(self._context.pipeline.spec.delivery.parallelism)
        context, source = self._context, self._context.pipeline.spec.source
        registry = registry_of(context)
        registry.refresh()
        tables = TableWatch(context, registry)

        def open_source(position: Position) -> LogReader:
            beside: Source = source.behind(self._sink_id)
            opened = beside.open(position, self._over, tables.history())
            try:
                tables.begin(opened)
            except BaseException:
                opened.close()
                raise
            return opened

        reader = self._reader = open_log(context.pipeline, self._at, open_source)
        ahead = self._rendering.ahead(lambda _: True)
        registrar = Registrar(context, registry, self._retry, self._at)
        seam = self._seam = SnapshotSeam.of(
            context, self._at, self._retry, is_rewound=self._rewind is not None
        )
        rewound = RewoundLog(source, self._rewind, self._at)
        self._pump = ReadAhead(
            reader,
            _RejoinBatcher(context.pipeline.spec, self._rejoin_point, self._at, rewound.places),
            lambda batch: RenderedBatch(batch, ahead.render(batch.rows)),
            1,
            self._tell,
            Gate(lambda batch: rewound.admit(seam.without_shown(registrar.admit(batch)))),
            self._measured,
        )

    def next(self, timeout_s: float) -> RenderedBatch | None:
        """Return what comes next; see ``ReadAhead.next``."""
        try:
            return self._pump.next(timeout_s) if self._pump is not None else None
        except TableError as error:
            name = self._context.pipeline.name
            stopped = self._retry(TableRecords(self._context.store, name).stopped)
            if error.table not in stopped:  # It was copied since; the lane stops it once more.
                self._rejoin_point.fail(error)
            raise

    def acknowledge(self, position: Position) -> None:
        """Acknowledge to the server what this reader needs no more."""
        if self._reader is not None:
            self._reader.acknowledge(position)

    def close(self) -> None:
        """Close the log and the processors."""
        for sink_id, counts in self._rendering.encoding_counts().items():
            self._measured.add({"sinks": {sink_id: {"encoding": dict(counts)}}})
        try:
            if self._pump is not None:
                self._pump.close()
            elif self._reader is not None:
                self._reader.close()
        finally:
            if self._seam is not None:
                self._seam.close()
            self._rendering.close()


class _RejoinBatcher(CuttingBatcher):
    """Ends a batch at the position of the lane, so that a sink rejoins with nothing sent twice."""

    def __init__(
        self,
        spec: Spec,
        rejoin_point: RejoinPoint,
        at: Position,
        further: Callable[[Position], Sequence[Position]],
    ) -> None:
        super().__init__(BatchLimits.of(spec.batch), spec.source, at, ())
        self._further = further
        self._covers = spec.source.covers
        self._rejoin_point = rejoin_point

    def add(self, batch: ChangeBatch, now_s: float) -> Iterator[SourceBatch]:
        """Take in a decoded batch, and yield every batch that is full or ends at the place."""
        at, end = self._rejoin_point.at, self._end
        self._places = [*self._further(end), *([] if self._covers(end, at) else [at])]
        yield from super().add(batch, now_s)


@dataclass(frozen=True, slots=True)
class _Processors:
    """Shows trouble of processors as the sink's: the lane has processors of its own."""

    tell: Callable[[BaseException | None], None]

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        self.report_error(f"processor {processor_id}", error)

    def report_error(self, name: str, error: BaseException | None) -> None:
        self.tell(None if error is None else RetryableError(f"{name}: {error}"))
