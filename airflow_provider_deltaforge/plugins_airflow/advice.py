"""What a person does next about a pipeline that does not run."""

from collections.abc import Mapping

_AGAIN = "then clear its task in the DAG, or run `deltaforge run` again"

_FAILED: Mapping[str, str] = {
    "spec": f"The document is wrong. Correct the key that the reason names, {_AGAIN}.",
    "access": (
        "A server refused the login, a permission or TLS. Correct the connection or grant what "
        f"the reason names; the preflight task or `deltaforge preflight` checks it; {_AGAIN}."
    ),
    "position_lost": (
        "The source no longer has the log from the position this pipeline reached. Keep its log "
        "longer, stop the pipeline, reset its checkpoints (`DeltaForgeControlOperator`, action "
        "`reset_checkpoint`) and start it again: it takes its snapshot and streams from there. "
        "A copy beside the stream does not help, and deletes made meanwhile reach no sink."
    ),
    "schema": (
        "The rows of a table match no schema that can be trusted. Do what the reason says, "
        f"{_AGAIN}."
    ),
    "fenced": "A newer driver runs this pipeline. Nothing is to be done unless it is not well.",
    "event": (
        "An event cannot be delivered as it is. Nothing was skipped: change the document or the "
        "sink, or have such events set aside (`spec.journal.enabled: true`), "
        f"{_AGAIN}."
    ),
    "retryable": (
        "It failed for longer than the restarts allow, for a reason that may pass. Nothing is "
        "lost: when the cause is gone, clear the task in the DAG, or run `deltaforge run` again."
    ),
}

_OTHER: Mapping[str, str] = {
    "pending": (
        "Its document is known and nothing has started it: trigger its DAG, or run "
        "`deltaforge run FILE`."
    ),
    "blocked": (
        "Nothing is lost: the pipeline waits and goes on by itself. Do what the reason says: bring "
        "back the server that it names, or make room in the dead-letter queue (`deltaforge dlq`)."
    ),
    "paused": "Resume it here, or with `deltaforge resume NAME`.",
    "stopped": "To start it again, trigger its DAG, or run `deltaforge run FILE`.",
}

_LOST_WATCHED = (
    "The driver went silent. The task that supervises it starts it again; if that task has ended, "
    "clear it. The end of the driver's log says more."
)
_LOST_ALONE = (
    "The driver went silent and nobody supervises it here. Read the end of its log, then run "
    "`deltaforge run FILE`, or trigger its DAG."
)


def advice(status: str, error_class: str | None, *, watched: bool) -> str | None:
    """Return what to do next, or None when there is nothing to do.

    Args:
        status: the pipeline's status.
        error_class: the class of the error that ended it, if one did.
        watched: whether an Airflow task supervises it.
    """
    if status == "lost":
        return _LOST_WATCHED if watched else _LOST_ALONE
    if status == "failed":
        unknown = f"Read the reason and the end of the driver's log, {_AGAIN}."
        return _FAILED.get(error_class or "", unknown)
    return _OTHER.get(status)
