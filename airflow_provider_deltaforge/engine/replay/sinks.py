"""Sinks for dead letters that are sent again: what they are given has no position in the log."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.held_positions import tells
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences, claim
from airflow_provider_deltaforge.engine.deliver.sink_group import SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkWatcher, exact_writer
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sinks.contract import Interruptible, Sink, SinkWriter
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints, Position

_POLL_S = 0.1


def opened(
    context: TaskContext,
    sink: Sink,
    watcher: SinkWatcher,
    ending: threading.Event,
    leaves: Callable[[], bool],
) -> SinkGroup:
    """Return a sink as a group of its own.

    Args:
        context: the open job.
        sink: the description.
        watcher: called with errors.
        ending: set when it is not wanted any more.
        leaves: asked whether a sink that is away is not waited for.

    Raises:
        RetryableError: it is away, and is not waited for.
        FatalError: it holds the position itself, and another one than its checkpoint: then nobody
            has noted which entries were overtaken by what lies between the two.
        AccessError: it refuses us.
    """
    if sink.holds_position:
        retry_until(
            lambda: _stands_as_noted(context, sink, ending),
            partial(watcher.report_sink_error, sink.id),
            lambda: ending.is_set() or leaves(),
            ending.wait,
        )
    sinks = [sink.without_position()]
    return SinkGroup(sinks, context.pipeline.name, watcher, ending, claims=SinkFences(context))


def stands(context: TaskContext) -> dict[str, Position]:
    """Return the checkpoints of the sinks."""
    source_id = context.pipeline.spec.source.id
    return Checkpoints(context.store, context.pipeline.name, source_id).load()


def sinks_behind(context: TaskContext, at: Mapping[str, Position]) -> set[str]:
    """Return the sinks that have not come as far as the others."""
    source = context.pipeline.spec.source
    return {
        sink.id
        for sink in context.pipeline.spec.sinks
        if sink.id not in at or any(source.compare(at[sink.id], each) < 0 for each in at.values())
    }


def _stands_as_noted(context: TaskContext, sink: Sink, ending: threading.Event) -> None:
    source_id = context.pipeline.spec.source.id
    stand = Checkpoints(context.store, context.pipeline.name, source_id).stand(sink.id)
    if stand is None or stand.held is None:
        return
    right = SinkFences(context).of(sink.id, ending.is_set)
    writer = sink.open(context.pipeline.name)
    try:
        with _abandoned(writer, ending):
            claim(sink, writer, right)
            cursor = exact_writer(writer).recover()
    finally:
        writer.close()
        right.leave()
    if not tells(cursor, stand.held):
        raise FatalError(
            f"sink {sink.id}: it holds something else than its checkpoint says, as after a driver "
            "that was killed; let the pipeline deliver something first, then ask again"
        )


@contextmanager
def _abandoned(writer: SinkWriter, ending: threading.Event) -> Iterator[None]:
    """Abandon what a writer does here once it is not wanted any more: its own patience is long."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            if ending.is_set():
                if isinstance(writer, Interruptible):
                    writer.abandon()
                return

    watching = threading.Thread(target=watch, name="replay-watch", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
