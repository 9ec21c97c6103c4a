"""Sends the metrics of one pipeline from its driver, where nobody else does."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.otlp import pushing


def pushing_pipeline(name: str, location: StoreLocation) -> AbstractContextManager[bool]:
    """Send a pipeline's metrics while the block runs, if the environment says where.

    Yields whether they are sent.

    Args:
        name: the pipeline.
        location: of its state store.
    """

    def collect() -> Iterator[Any]:
        # A driver that sends nothing needs none of it.
        from airflow_provider_deltaforge.control.metrics import families, observe
        from airflow_provider_deltaforge.control.status import status

        store = location.open()
        try:
            observed = observe(store, [status(store, name)])
        finally:
            store.close()
        yield from families(observed)

    return pushing(collect)
