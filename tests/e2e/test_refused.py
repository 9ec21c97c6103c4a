"""Wrong passwords: failed without another try, with what to do, and no secret anywhere."""

import subprocess

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e.pipeline_run import PATIENCE_S, run_in
from tests.servers import kafka, sql

MYSQL, KAFKA = "planted-mysql-7f3a", "planted-kafka-91bc"
WRONG_MYSQL, WRONG_KAFKA = "planted-wrong-mysql-5d", "planted-wrong-kafka-e8"
SECRETS = [MYSQL, KAFKA, WRONG_MYSQL, WRONG_KAFKA]

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "df",
    "sasl.password": "${KAFKA_PASSWORD}",
}


@pytest.fixture
def broker(tmp_path):
    server = kafka.start(tmp_path / "broker", sasl_password=KAFKA)
    yield server
    server.kill()


def secrets_around(run):
    """Return where a planted secret can be read: files, processes, records."""
    processes = subprocess.run(["ps", "-efww"], capture_output=True, text=True, check=True).stdout
    places = {path.name: contents(path) for path in run.directory.iterdir() if path.is_file()}
    places["ps"] = processes.encode()
    places["progress"] = (run.control.progress() or run.status()).__repr__().encode()
    places["status"] = repr(run.status()).encode()
    assert run.log.name in places
    assert "state.db" in places
    return [
        (place, secret)
        for place, text in places.items()
        for secret in SECRETS
        if secret.encode() in text
    ]


def contents(path):
    # In a process of its own: closing a file of SQLite here would drop this process's locks on it.
    return subprocess.run(["cat", path], capture_output=True, check=False).stdout


def test_wrong_passwords_fail_and_show_nowhere(tmp_path, mysql_server, broker):
    home = tmp_path / "run"
    home.mkdir()
    sql.execute(
        mysql_server,
        "DROP USER IF EXISTS planted",
        f"CREATE USER planted IDENTIFIED BY '{MYSQL}'",
        "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO planted",
    )
    address = f"{mysql_server.host}:{mysql_server.port}/"
    run = run_in(
        home,
        mysql_server,
        broker,
        "refused",
        # What a process shows of its environment is looked at.
        own_process=True,
        client_conf=SASL,
        variables={
            "MYSQL_DSN": f"mysql://planted:{WRONG_MYSQL}@{address}",
            "KAFKA_PASSWORD": WRONG_KAFKA,
        },
    )

    driver = run.start()
    run.wait(lambda: run.control.progress() is not None)
    failed = run.wait_status("failed")
    assert secrets_around(run) == []
    assert driver.wait(PATIENCE_S) == 4
    assert failed.error_class == "access"
    assert "check user, password and privileges" in failed.reason
    assert not run.healthy()

    run.variables["MYSQL_DSN"] = f"mysql://planted:{MYSQL}@{address}"
    driver = run.start(hold=(CrashPoint.CHUNK_RENDERED, 1))
    run.wait_held()
    run.let_go()
    failed = run.wait_status("failed")
    assert secrets_around(run) == []
    assert driver.wait(PATIENCE_S) == 4
    assert failed.error_class == "access"
    assert "check the security settings and credentials in client_conf" in failed.reason
    assert not run.healthy()

    run.variables["KAFKA_PASSWORD"] = KAFKA
    driver = run.start()
    run.wait_status("running")
    assert secrets_around(run) == []
    assert "${MYSQL_DSN}" in run.control.document()
    assert "${KAFKA_PASSWORD}" in run.control.document()
    assert run.healthy()
    assert run.stop(driver) == 0
