"""The sinks of a pipeline, for people: the state of each, giving one up, resuming one."""

from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.foreign_positions import (
    ForeignPosition,
    ForeignPositions,
)
from airflow_provider_deltaforge.storage.records.gaps import Gaps, Wanted
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds


def entries(store: Store, name: str) -> list[dict[str, Any]]:
    """Return how each sink stands, with what it lacks for good and its last rewind.

    Raises:
        SpecError: there is no such pipeline.
    """
    gaps = Gaps(store, name).all()
    progress = status(store, name).sinks
    rewinds, refused = Rewinds(store, name).all(), Rewinds(store, name).refused()
    asked = {wish.sink: wish for wish in Gaps(store, name).wishes() if wish.wanted == "rewind"}
    return [
        {
            "sink": sink,
            **state.model_dump(),
            "gaps": [gap.model_dump() for gap in gaps if gap.sink == sink],
            "rewind": rewinds[sink].model_dump() if sink in rewinds else None,
            "rewind_refused": refused[sink].model_dump() if sink in refused else None,
            "rewind_asked": asked[sink].model_dump() if sink in asked else None,
        }
        for sink, state in progress.items()
    ]


def want(store: Store, name: str, sink: str, wanted: Wanted, by: str) -> None:
    """Ask the pipeline to give a sink up, or to let one go on that was given up.

    A lane that runs does it within seconds, otherwise the next one.

    Raises:
        SpecError: there is no such pipeline, or the sink does not stand so.
    """
    existing(store, name)
    gaps = Gaps(store, name)
    given_up = gaps.open()
    progress = status(store, name).sinks
    if sink not in progress and sink not in given_up:
        known = (
            f"it has {', '.join(progress)}" if progress else "its sinks are known once it has run"
        )
        raise SpecError(f"pipeline {name!r} has no sink {sink!r}; {known}")
    stands = progress[sink].status if sink in progress else "given_up"
    if wanted == "resume" and sink not in given_up:
        raise SpecError(f"sink {sink!r} of pipeline {name!r} was not given up: it is {stands}")
    if wanted == "give_up" and stands not in {"behind", "catching_up"}:
        raise SpecError(
            f"sink {sink!r} of pipeline {name!r} is not behind: it is {stands}. Only one that the "
            "running pipeline goes on without can be given up"
        )
    store.transact([gaps.wish(sink, wanted, by)])


def adopt(store: Store, name: str, sink: str, by: str) -> ForeignPosition:
    """Allow a pipeline to take over a sink whose position another state store wrote.

    The next start goes on there. It is for a store that was lost, or replaced on purpose: a
    pipeline that still writes to the sink would end with the same error.

    Returns:
        What the sink was found to hold.

    Raises:
        SpecError: there is no such pipeline, or it found no such position in the sink.
    """
    existing(store, name)
    positions = ForeignPositions(store, name)
    found = positions.load().get(sink)
    if found is None:
        raise SpecError(
            f"pipeline {name!r} has not found a position of another state store in a sink "
            f"{sink!r}: there is nothing to adopt; start it, and its error says if there is"
        )
    store.transact([positions.adopt(found, by)])
    return found
