"""A script at work: whole batches as long as that goes well, then event by event."""

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.javascript import number_scan_kernel
from airflow_provider_deltaforge.processors.javascript.interpreter import (
    Interpreter,
    LimitError,
    ScriptError,
)
from airflow_provider_deltaforge.processors.javascript.script_input import handed, image_bytes
from airflow_provider_deltaforge.processors.javascript.script_output import (
    FailedEvent,
    ScriptLogs,
    ScriptOutput,
    answered,
    logs_of,
)
from airflow_provider_deltaforge.processors.javascript.settings import JavaScript, PipelineInfo

_FIRST_ROWS = 250
_ENOUGH_ROWS = 1 << 20
_MOST_KILLED = 10
_LEAST_BYTES = 1 << 16
_SHARE_OF_MEMORY = 32
_PLACE = re.compile(r"script\.js:(\d+):(\d+)")
_NAME = re.compile(
    r"[A-Za-z_$][\w$]{0,59}|an (?:array|object)|a (?:string|number|boolean|bigint|symbol|function)"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """What became of a part of a batch; rows count in the whole batch."""

    rows: pa.RecordBatch
    origins: np.ndarray
    made: np.ndarray
    placed: np.ndarray


class ScriptWorker:
    """One interpreter, used for batch after batch.

    Args:
        script: the description.
        home: what the pipeline's events share.
        most_killed: how many events in a row may exceed the limits, until the rest of their batch
            is not run.

    Raises:
        SpecError: the script is no processor.
        FatalError: no interpreter can be started here.
    """

    def __init__(
        self, script: JavaScript, home: PipelineInfo, most_killed: int = _MOST_KILLED
    ) -> None:
        self._id = script.id
        self._limits = script.limits
        self._home = home
        self._most_killed = most_killed
        self._counts: Counter[str] = Counter()
        self._closed = False
        # A fresh script is slow until V8 has compiled what it does often.
        self._most_rows = _FIRST_ROWS
        self._growing = True
        self._most_bytes = max(_LEAST_BYTES, (script.limits.mem_mb << 20) // _SHARE_OF_MEMORY)
        number_scan_kernel.precompile()
        try:
            self._interpreter = Interpreter(script.inline, script.limits)
        except ScriptError as error:
            raise SpecError(f"processor {script.id}, key inline: {error}") from None
        self._tell(logs_of(orjson.loads(self._interpreter.first_logs)))

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Run the script on a batch.

        Raises:
            RetryableError: the worker was closed meanwhile.
        """
        rejections: list[Rejection] = []
        parts: list[_Part] = []
        for start, stop in self._spans(rows):
            parts += self._settled(rows.slice(start, stop - start), start, rejections)
        counts, self._counts = self._counts, Counter()
        if len(parts) == 1:
            joined = parts[0].rows
        else:
            batches = [part.rows for part in parts] or [rows.slice(0, 0)]
            joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
            joined = joined[0] if joined else rows.slice(0, 0)
        origins = np.concatenate([np.zeros(0, np.int32), *(part.origins for part in parts)])
        made = np.concatenate([np.zeros(0, np.bool_), *(part.made for part in parts)])
        placed = np.concatenate([np.zeros(0, np.bool_), *(part.placed for part in parts)])
        same = len(origins) == rows.num_rows and np.array_equal(origins, np.arange(len(origins)))
        return Processed(
            joined,
            None if same else pa.array(origins.astype(np.int32)),
            pa.array(made) if made.any() else None,
            rejections,
            dict(counts),
            pa.array(placed) if placed.any() else None,
        )

    def close(self) -> None:
        """End the interpreter."""
        self._closed = True
        self._interpreter.close()

    def _spans(self, rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        """Yield parts that the script's memory has room for."""
        ends = np.cumsum(image_bytes(rows))
        start = 0
        while start < rows.num_rows:
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + self._most_bytes, side="right"))
            stop = min(max(stop, start + 1), start + self._most_rows, rows.num_rows)
            yield start, stop
            start = stop

    def _settled(
        self, rows: pa.RecordBatch, start: int, rejections: list[Rejection]
    ) -> list[_Part]:
        """Run the script on a part, falling back to single events."""
        try:
            answer = self._called(rows, each=False)
        except LimitError as error:
            return self._apart(rows, start, rejections, error)
        if answer.rows is None:
            # The state of the script may be half ahead: events would count twice.
            self._reset()
            try:
                answer = self._called(rows, each=True)
            except LimitError as error:
                return self._apart(rows, start, rejections, error)
        elif self._growing and self._most_rows < _ENOUGH_ROWS:
            self._most_rows *= 2
        return self._kept(answer, start, rejections)

    def _apart(
        self, rows: pa.RecordBatch, start: int, rejections: list[Rejection], first: LimitError
    ) -> list[_Part]:
        """Run the script on one event after the other, each within the limits."""
        self._counts[_counted(first)] += 1
        parts: list[_Part] = []
        killed = 0
        culprits = False
        for row in range(rows.num_rows):
            if killed >= self._most_killed:
                reason = (
                    f"not run: the script used more than its limits for {killed} events in a row; "
                    "correct it or raise its limits"
                )
                rejections.append(rejected(start + row, reason))
                continue
            try:
                answer = self._called(rows.slice(row, 1), each=True)
            except LimitError as error:
                killed += 1
                culprits = True
                self._counts[_counted(error)] += 1
                reason = f"the script was ended: {error}; correct it or raise limits"
                rejections.append(rejected(start + row, reason))
                continue
            killed = 0
            parts += self._kept(answer, start + row, rejections)
        if not culprits and rows.num_rows > 1 and self._most_rows > 1:
            self._shrink(rows.num_rows, first)
        return parts

    def _shrink(self, row_count: int, error: LimitError) -> None:
        self._growing = False
        self._most_rows = max(1, min(self._most_rows, row_count) // 2)
        _log.warning(
            "processor %s: %d events at once are too many for its limits (%s): it gets at most %d "
            "from now on; raise its limits to change that",
            self._id,
            row_count,
            error,
            self._most_rows,
        )

    def _called(self, rows: pa.RecordBatch, *, each: bool) -> ScriptOutput:
        if self._closed:
            raise RetryableError(f"processor {self._id} is closed")
        batch = handed(rows, self._home, each=each)
        try:
            answer = answered(self._interpreter.run(batch.columns, batch.text), rows)
        except LimitError:
            if self._closed:
                raise RetryableError(f"processor {self._id} was closed") from None
            raise
        except ScriptError as error:
            raise FatalError(
                f"processor {self._id}, key inline, loaded once more: {error}"
            ) from None
        self._tell(answer.logs)
        return answer

    def _reset(self) -> None:
        try:
            self._interpreter.reset()
        except ScriptError as error:
            raise FatalError(
                f"processor {self._id}, key inline, loaded once more: {error}"
            ) from None

    def _kept(self, answer: ScriptOutput, start: int, rejections: list[Rejection]) -> list[_Part]:
        for bad in answer.bad:
            self._counts["errors"] += 1
            rejections.append(rejected(start + bad.row, _why(bad)))
        if answer.rows is None or not answer.rows.num_rows:
            return []
        made = np.zeros(answer.rows.num_rows, np.bool_)
        made[list(answer.made)] = True
        placed = np.zeros(answer.rows.num_rows, np.bool_)
        placed[list(answer.placed)] = True
        return [_Part(answer.rows, answer.origins + np.int32(start), made, placed)]

    def _tell(self, logs: ScriptLogs) -> None:
        for level, text in logs.logs:
            _log.log(getattr(logging, level.upper()), "processor %s: %s", self._id, text)
        if logs.hidden:
            _log.warning("processor %s logged %d more lines in one call", self._id, logs.hidden)
        for what, name in logs.notes:
            if what == "unknown":
                _log.warning("processor %s sets %r, which no event has; ignored", self._id, name)
            else:
                _log.warning("processor %s changes %r; it stays as it was", self._id, name)


def _why(bad: FailedEvent) -> str:
    """Return what is wrong with an event, without its values: thrown texts may hold some."""
    if bad.ours:
        return f"the script's result is refused: {bad.text}"
    name = bad.text if _NAME.fullmatch(bad.text) else "an error"
    place = _PLACE.search(bad.stack)
    where = f" at line {place.group(1)}, column {place.group(2)}" if place else ""
    return f"the script threw {name}{where}"


def _counted(error: LimitError) -> str:
    return {"memory": "out_of_memory", "answer": "out_of_memory"}.get(error.what, "timeouts")
