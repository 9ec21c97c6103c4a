"""The services of ``docker-compose.airflow.yml``, started one by one without an engine, and used.

Commands, environments, mounts, conditions and published ports are the file's own; each service has
its own network, host name, processes and files (``tests/servers/containers.py``). What stands for
an image is on this machine (``compose_images.py``). Needs root.
"""

import json
import os
import subprocess
import sys
from typing import Any

from tests.prove.unit import Case, Task, Unit
from tests.servers import compose, kafka, mysql
from tests.servers.containers import in_own_network

SEEDS = 1
STEPS = (
    "Airflow has read the DAGs that are mounted, and no other",
    "a stream of MySQL rows to Kafka runs on the Spark worker, launched by the Celery worker",
    "what is written to MySQL arrives in Kafka",
    "a stream of PostgreSQL rows to Redis and NATS",
    "the driver's log is in the log of its task",
    "rows that arrived schedule a DAG that reads how many and up to where",
    "Prometheus has the metrics of both drivers, and the alert rules",
    "the stream goes on without its Celery worker, scheduler and triggerer",
    "a copy is asked of another worker, and served by the stream",
    "a command in a container stops a stream",
    "nothing is left running",
)
_LIMIT_S = 2400


def units(seeds: int) -> list[Unit]:
    """Return the one unit: everything together."""
    services = [{"service": service.name} for service in compose.read().in_order()]
    return [
        Unit(
            area="compose",
            name=f"whole/{seed}",
            run=f"{__name__}:run",
            cases=[
                {**case, "seed": seed} for case in (*services, *({"step": step} for step in STEPS))
            ],
            kind="whole",
            seconds=600,
            limit_s=_LIMIT_S,
        )
        for seed in range(seeds)
    ]


def run(task: Task) -> None:
    """Walk through it in namespaces of its own; what was not come to is wrong."""
    shown: set[str] = set()
    # Nothing can be fetched in the walk's own network.
    mysql.server_program()
    kafka.jars()
    words = [sys.executable, "-m", "tests.prove.compose_walk", str(task.home)]
    walk = in_own_network(words, stdout=subprocess.PIPE, env=dict(os.environ))
    assert walk.stdout is not None
    for line in walk.stdout:
        case = json.loads(line)
        shown.add(_name(case))
        task.add({**case, "seed": task.cases[0]["seed"]})
    walk.wait()
    for case in task.cases:
        if _name(case) not in shown:
            task.add({**case, "result": "wrong", "wrong": ["the walk ended before it"]})


def _name(case: Case | dict[str, Any]) -> str:
    return str(case.get("service") or case.get("step"))
