"""An endpoint and the writers to it."""

import pytest

from airflow_provider_deltaforge.sinks.http import HttpSink
from tests.sinks.http.endpoint import Endpoint


@pytest.fixture
def endpoint():
    endpoint = Endpoint()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def opened():
    """Open writers that are closed at the end; ``opened(endpoint, **settings)``."""
    writers = []

    def open_one(endpoint, **settings):
        sink = HttpSink(**{"url": f"{endpoint.url}/in", **settings})
        writers.append(sink.open("p"))
        return writers[-1]

    yield open_one
    for writer in writers:
        writer.close()
