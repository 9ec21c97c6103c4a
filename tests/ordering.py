"""The order in which test files start: the long ones first, so that none is left for the end.

Files are dealt to workers whole. What starts last bounds the run: a file of a minute that begins
when the others are done leaves all but one worker idle.
"""

from collections.abc import Mapping

_ROUGH_S: Mapping[str, int] = {
    "tests/airflow/test_over_rest.py": 135,
    "tests/airflow/test_operators.py": 15,
    "tests/airflow/": 15,
    "tests/api/test_canary.py": 20,
    "tests/api/test_rest.py": 25,
    "tests/api/": 7,
    "tests/architecture/": 5,
    "tests/chaos/": 30,
    "tests/cli/test_cli.py": 30,
    "tests/cli/test_run_again.py": 35,
    "tests/cli/": 12,
    "tests/control/": 15,
    "tests/demo/test_demo.py": 40,
    "tests/demo/": 20,
    "tests/docs/test_site.py": 20,
    "tests/docs/": 10,
    "tests/e2e/test_broker_away.py": 40,
    "tests/e2e/test_exact_shop.py": 140,
    "tests/e2e/test_serve.py": 40,
    "tests/e2e/": 20,
    "tests/encodings/test_avro_registry.py": 25,
    "tests/encodings/": 5,
    "tests/engine/spark/test_cluster.py": 30,
    "tests/engine/spark/test_source.py": 45,
    "tests/engine/spark/": 20,
    "tests/engine/test_behind.py": 30,
    "tests/engine/test_behind_kills.py": 25,
    "tests/engine/test_kills.py": 50,
    "tests/engine/test_other_stores.py": 60,
    "tests/engine/test_sink_positions.py": 25,
    "tests/engine/test_zombies.py": 60,
    "tests/engine/": 15,
    "tests/examples/": 40,
    "tests/page/test_page.py": 25,
    "tests/page/": 10,
    "tests/processors/": 10,
    "tests/prove/": 30,
    "tests/sensing/": 15,
    "tests/servers/test_servers.py": 30,
    "tests/sinks/http/": 10,
    "tests/sinks/test_kafka.py": 50,
    "tests/sinks/test_kafka_late.py": 40,
    "tests/sinks/test_redis_topologies.py": 30,
    "tests/sinks/": 20,
    "tests/sources/mysql/test_failover": 30,
    "tests/sources/mysql/test_logged_statements.py": 40,
    "tests/sources/mysql/test_stream_breaks.py": 40,
    "tests/sources/postgres/test_kills.py": 40,
    "tests/sources/turso/test_kills.py": 30,
    "tests/sources/test_contract.py": 40,
    "tests/sources/": 15,
    "tests/spec/": 5,
    "tests/storage/": 15,
    "tests/telemetry/": 10,
    "tests/testing/": 15,
}
"""Seconds that a file takes, by the beginning of its path; the longest one that fits holds."""


def rough_s(path: str) -> int:
    """Return about how long a file takes; what nobody measured is short."""
    fitting = [prefix for prefix in _ROUGH_S if path.startswith(prefix)]
    return _ROUGH_S[max(fitting, key=len)] if fitting else 1
