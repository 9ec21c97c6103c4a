"""No driver outlives its test, even one that failed."""

from collections.abc import Iterator

import pytest

from tests.e2e.pipeline_run import STARTED


@pytest.fixture(autouse=True)
def _no_driver_stays() -> Iterator[None]:
    yield
    while STARTED:
        driver = STARTED.pop()
        if driver.poll() is None:
            driver.kill()
            driver.wait()
