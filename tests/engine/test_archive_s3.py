"""The archive in an object store with S3's interface."""

import contextlib
import select
import socket
import threading

import pytest

from airflow_provider_deltaforge.control import archives
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.archive.folder import EntryName
from airflow_provider_deltaforge.engine.archive.retention import delete_old_daily
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.record import now_ms
from tests.engine.driving import Driving
from tests.engine.scripted_run import ScriptedRun
from tests.engine.test_archive import archive_of, archived, archived_run, expected, log_of, run_to
from tests.servers import s3
from tests.waiting import wait_for

pytestmark = pytest.mark.long  # The store is built on first use.


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = s3.start(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    found = {
        "AWS_ACCESS_KEY_ID": s3.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": s3.SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.mark.parametrize("point", [CrashPoint.ARCHIVE_FILES_WRITTEN, CrashPoint.ARCHIVE_STORED])
def test_killed_it_has_everything_once(store, credentials, point, tmp_path):
    directory = store.dsn(f"killed {point.value}")
    policy = f'archive: {{directory: "{directory}", flush_secs: 1, flush_bytes: 20000}}'
    run = ScriptedRun(tmp_path, policy=policy, transactions=300, extra_environment=credentials)
    run.begin_at(0)
    run.kill_at(point, 3)
    run.deliver_all()

    assert run.judge({"tx": 0}) == []
    archive = archive_of(run)
    assert log_of(archive.open({"tx": 0}))[0] == expected(run, 0, 300)
    assert list(archives.damage(archive)) == []
    named = {file.path for name in archive.names_after(None) for file in archive.entry(name).files}
    left = set(archive.folder.data_files()) - named
    assert bool(left) == (point is CrashPoint.ARCHIVE_FILES_WRITTEN)
    archive.folder.delete("cleaned.json")
    delete_old_daily(archive.folder, None, EntryName(99, 0, "opened"))
    assert set(archive.folder.data_files()) == named
    assert_no_secret(run.log.read_text())
    run.close()


def test_a_store_that_is_away_is_waited_for(store, caplog):
    source = "rate: 200, started_ms: 1, alter_every: 90,"
    run = archived_run(
        f'"{store.dsn("away")}"', more=", flush_bytes: 4000", transactions=600, source=source
    )
    run.document = run.document.replace("started_ms: 1,", f"started_ms: {now_ms()},")
    run.apply()
    driving = Driving(run)
    for stop, again in ((store.kill, store.start_again), (store.pause, store.resume)):
        wait_for("the archive", lambda: archived(run).position and not archived(run).reason)
        stop()
        wait_for("the reason", lambda: archived(run).reason)
        assert "spec.archive.directory: s3://bucket/away" in archived(run).reason
        wait_for("the block", lambda: status(run.store, run.name).status == "blocked")
        at = archived(run).position["tx"]
        assert at < run.checkpoints().load()["out"]["tx"] < 600
        again()
        wait_for("the archive", lambda at=at: archived(run).position["tx"] > at)
    wait_for("delivery", lambda: run.checkpoints().load()["out"] == {"tx": 600})
    run.want("stopped")
    driving.end()
    assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 600)
    messages = run.log().messages()
    assert len(messages) == len({message.event_id for message in messages}) == 1800
    assert_no_secret(caplog.text)


def test_credentials_that_are_wrong_are_named_and_not_shown(store, monkeypatch, caplog):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", wrong := "another/secret+nobody-may-see")
    run = archived_run(f'"{store.dsn("wrong")}"', transactions=20)
    driving = Driving(run)
    wait_for("the block", lambda: status(run.store, run.name).status == "blocked")
    reason = status(run.store, run.name).reason
    assert "spec.archive.directory: s3://bucket/wrong" in reason
    assert "ACCESS_DENIED" in reason
    assert "look at the drivers' credentials" in reason
    run.want("stopped")
    driving.end()
    assert_no_secret(caplog.text + reason)
    assert wrong not in caplog.text + reason


def test_an_attempt_that_only_seemed_to_fail_is_gone_on_from(store, monkeypatch):
    """Its answer is lost, all the same the store has what it wrote."""
    with forgetful(store, b"opened") as port:
        directory = store.dsn("lost").replace(str(store.port), str(port))
        run = archived_run(f'"{directory}"', transactions=60)
        run_to(run, 60)
        assert log_of(archive_of(run).open({"tx": 0}))[0] == expected(run, 0, 60)


def assert_no_secret(text):
    assert s3.SECRET_KEY not in text
    assert s3.ACCESS_KEY not in text


@contextlib.contextmanager
def forgetful(store, word):
    """Forward connections; for 3 s, what writes a file with that in its name is not answered."""
    unanswered = []

    def forward(client):
        to_store = socket.create_connection(("127.0.0.1", store.port))
        with contextlib.suppress(ConnectionError), client, to_store as server:
            is_write = False
            while True:
                ready, _, _ = select.select([client, server], [], [], 60)
                data = ready[0].recv(1 << 20) if ready else b""
                if not data:
                    return
                if ready[0] is client:
                    is_write = is_write or (b"PUT /" in data and word in data.split(b"\r\n")[0])
                    server.sendall(data)
                    continue
                if is_write and data.startswith(b"HTTP/1.1 200"):
                    unanswered.append(now_ms())
                    if now_ms() - unanswered[0] < 3000:
                        return
                client.sendall(data)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=forward, args=[listener.accept()[0]], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    assert len(unanswered) > 2
