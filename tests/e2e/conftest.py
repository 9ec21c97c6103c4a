"""No driver outlives its test, even one that failed."""

from collections.abc import Iterator

import pytest

from tests.e2e.pipeline_run import end_drivers


@pytest.fixture(autouse=True)
def _no_driver_stays() -> Iterator[None]:
    yield
    end_drivers()
