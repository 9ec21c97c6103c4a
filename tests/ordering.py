"""The order in which test files start: the long ones first, so that none is left for the end.

Files are dealt to workers whole. What starts last bounds the run: a file of a minute that begins
when the others are done leaves all but one worker idle.
"""

from collections.abc import Mapping

_ROUGH_S: Mapping[str, int] = {
    "tests/airflow/test_over_rest.py": 400,
    "tests/airflow/": 30,
    "tests/api/test_rest.py": 50,
    "tests/demo/test_demo.py": 180,
    "tests/demo/": 20,
    "tests/engine/test_spark_kills.py": 60,
    "tests/engine/spark/test_cluster.py": 95,
    "tests/engine/spark/test_source.py": 85,
    "tests/engine/spark/test_lane_reader.py": 10,
    "tests/engine/spark/test_application.py": 10,
    "tests/engine/spark/": 60,
    "tests/e2e/test_ddl_storm.py": 65,
    "tests/e2e/test_exact_shop.py": 180,
    "tests/e2e/": 45,
    "tests/chaos/": 120,
    "tests/engine/test_zombies.py": 80,
    "tests/page/": 20,
    "tests/prove/": 40,
    "tests/engine/test_kills.py": 65,
    "tests/engine/test_behind_kills.py": 200,
    "tests/engine/test_exactly_once.py": 30,
    "tests/engine/test_redis_lost.py": 20,
    "tests/engine/test_replay.py": 20,
    "tests/examples/": 30,
    "tests/sources/postgres/test_kills.py": 40,
    "tests/sources/turso/": 40,
    "tests/encodings/test_avro_registry.py": 40,
    "tests/encodings/": 10,
    "tests/sinks/test_kafka.py": 40,
    "tests/sinks/test_kafka_access.py": 25,
    "tests/sinks/test_kafka_late.py": 45,
    "tests/sinks/test_kafka_once.py": 30,
    "tests/sources/test_contract.py": 60,
    "tests/testing/test_page.py": 20,
    "tests/docs/": 10,
    "tests/sinks/test_nats": 20,
    "tests/sinks/test_redis": 20,
    "tests/sinks/test_redis_topologies.py": 30,
    "tests/sinks/http/": 10,
    "tests/processors/": 15,
    "tests/sources/mysql/test_stream_breaks.py": 40,
    "tests/storage/test_processes.py": 35,
    "tests/storage/test_postgres.py": 30,
    "tests/servers/test_servers.py": 30,
    "tests/cli/test_cli.py": 30,
    "tests/sources/mysql/test_failover": 40,
    "tests/sources/mysql/": 20,
    "tests/sources/postgres/": 20,
    "tests/storage/": 10,
    "tests/control/": 10,
    "tests/spec/": 10,
    "tests/engine/": 10,
}
"""Seconds that a file takes, by the beginning of its path; the longest one that fits holds."""


def rough_s(path: str) -> int:
    """Return about how long a file takes; what nobody measured is short."""
    fitting = [prefix for prefix in _ROUGH_S if path.startswith(prefix)]
    return _ROUGH_S[max(fitting, key=len)] if fitting else 1
