"""What a person does next about a pipeline that does not run, by who supervises it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Supervisor:
    """How the one that keeps a driver running is asked to start it.

    Attributes:
        start: a sentence's part that starts a pipeline which was never started, or was stopped.
        again: the same for one that has failed.
        lost: what becomes of a driver that went silent.
    """

    start: str
    again: str
    lost: str


_AIRFLOW = _Supervisor(
    "trigger its DAG",
    "clear its task in the DAG",
    "The task that supervises it starts it again; if that task has ended, clear it. The end of the "
    "driver's log says more.",
)
_SERVE = _Supervisor(
    "resume it (`POST /pipelines/NAME/resume`)",
    "start it again",
    "`deltaforge serve` starts it again while its restarts last; then start it yourself. The end "
    "of the driver's log says more.",
)
_NOBODY = _Supervisor(
    "run `deltaforge run FILE`, or trigger its DAG",
    "run `deltaforge run` again, or clear its task in the DAG",
    "Read the end of its log, then run `deltaforge run FILE`, or trigger its DAG.",
)

_FAILED: Mapping[str, str] = {
    "spec": "The document is wrong. Correct the key that the reason names, then {again}.",
    "access": (
        "A server refused the login, a permission or TLS. Correct the connection or grant what "
        "the reason names, test the source and the sinks (`deltaforge preflight` does it, too), "
        "then {again}."
    ),
    "position_lost": (
        "The source no longer has the log from the position this pipeline reached. Keep its log "
        "longer, stop the pipeline, reset its checkpoints (in DAGs: `DeltaForgeControlOperator`, "
        "action `reset_checkpoint`) and start it again: it takes its snapshot and streams from "
        "there. A copy beside the stream does not help, and deletes made meanwhile reach no sink."
    ),
    "schema": (
        "The rows of a table match no schema that can be trusted. Do what the reason says, then "
        "{again}."
    ),
    "fenced": "A newer driver runs this pipeline. Nothing is to be done unless it is not well.",
    "event": (
        "An event cannot be delivered as it is. Nothing was skipped: change the document or the "
        "sink, or have such events set aside (`spec.journal.enabled: true`), then {again}."
    ),
    "retryable": (
        "It failed for longer than the restarts allow, for a reason that may pass. Nothing is "
        "lost: when the cause is gone, {again}."
    ),
}
_UNKNOWN = "Read the reason and the end of the driver's log, then {again}."

_OTHER: Mapping[str, str] = {
    "pending": "Its document is known and nothing has started it: {start}.",
    "blocked": (
        "Nothing is lost: the pipeline waits and goes on by itself. Do what the reason says: bring "
        "back the server that it names, or make room in the dead-letter queue (`deltaforge dlq`)."
    ),
    "paused": "Resume it here, or with `deltaforge resume NAME`.",
    "stopped": "To start it again, {start}.",
}


def advice(status: str, error_class: str | None, owner: str | None) -> str | None:
    """Return what to do next, or None when there is nothing to do.

    Args:
        status: the pipeline's status.
        error_class: the class of the error that ended it, if one did.
        owner: who started its driver, as the control record names it.
    """
    kind = (owner or "").partition(":")[0]
    supervisor = {"airflow": _AIRFLOW, "serve": _SERVE}.get(kind, _NOBODY)
    if status == "lost":
        return f"The driver went silent. {supervisor.lost}"
    found = _OTHER.get(status)
    if status == "failed":
        found = _FAILED.get(error_class or "", _UNKNOWN)
    if found is None:
        return None
    return found.format(start=supervisor.start, again=supervisor.again)
