"""Who of an application's pipelines gets a core."""

import threading

import pytest

from airflow_provider_deltaforge.engine.spark.shared import TaskPlaces
from airflow_provider_deltaforge.errors import SpecError
from tests.waiting import wait_until


def test_a_pipeline_for_whose_lane_there_is_no_core_is_refused_by_the_name_of_the_setting():
    places = TaskPlaces(lambda: 2, "local[2]")
    with places.admitted("one"), places.admitted("two"):
        places.check("two")
        with pytest.raises(SpecError, match=r"--master local\[2\].*'three'.*local\[N\]"):
            places.check("three")
    places.check("three")


def test_a_copy_takes_its_pipelines_core_and_those_that_nobody_has():
    cores = [3]
    places = TaskPlaces(lambda: cores[0], "local[3]")
    running, over = [], threading.Event()

    def copy(pipeline):
        with places.task(pipeline):
            running.append(pipeline)
            over.wait()

    with places.admitted("one"), places.admitted("two"):
        threads = [threading.Thread(target=copy, args=("one",)) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(running) == 2)
        other = threading.Thread(target=copy, args=("two",))
        other.start()
        wait_until(lambda: "two" in running)
        assert running.count("one") == 2, "a copy took the core of another pipeline's lane"
        cores[0] = 4  # The cluster has grown.
        wait_until(lambda: running.count("one") == 3)
        over.set()
        for thread in (*threads, other):
            thread.join()
