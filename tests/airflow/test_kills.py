"""A supervised stream under a real scheduler, triggerer and API server.

``python -m tests.prove airflow_kills`` runs the whole matrix; here are the cases that tell most.
They share one Airflow and, while nothing fails, one stream, whose driver has no JVM.
"""

import pytest

from tests.airflow.service.cases import Chain
from tests.airflow.service.stage import stage

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def chain(tmp_path_factory, postgres_server):
    with stage(tmp_path_factory.mktemp("airflow"), postgres_server) as shared:
        running = Chain(shared, "plain")
        try:
            yield running
        finally:
            running.end()
        processes = shared.airflow.processes()
        assert len(processes) > 4
    assert shared.airflow.processes() == []


@pytest.mark.parametrize(
    "case",
    [
        "task SIGKILL, before defer",
        "triggerer SIGKILL",
        "clear while deferred",
        "mark failed, on_kill=stop",
    ],
)
def test_a_stream_outlives_its_supervisors_and_obeys_its_users(case, chain):
    result = chain.run(case)

    assert result.wrong == (), result.told
    assert result.drivers == 1
