"""Submissions to the REST server of a real Spark master that has no worker to place them on."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.standalone import StandaloneBackend
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError
from tests.servers import spark
from tests.servers.process import HOST, free_port

POSTGRES = "postgresql://df:planted-9d1c@db/deltaforge"
KEY = b"a key of the master's that has 256 bits"
FILTER = "org.apache.spark.ui.JWSFilter"


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master whose REST server asks for a signed token, and its address."""
    port = free_port()
    settings = {
        "spark.master.rest.filters": FILTER,
        f"spark.{FILTER}.param.secretKey": base64.urlsafe_b64encode(KEY).decode(),
    }
    server = spark.start_master(
        tmp_path_factory.mktemp("master"), rest_port=port, settings=settings
    )
    yield server, f"http://{HOST}:{port}"
    server.stop(10)


def token() -> str:
    def encoded(content: bytes) -> str:
        return base64.urlsafe_b64encode(content).decode().rstrip("=")

    signed = f"{encoded(json.dumps({'alg': 'HS256'}).encode())}.{encoded(b'{}')}"
    mark = hmac.new(KEY, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{encoded(mark)}"


def backend_of(url: str, **extra: object) -> StandaloneBackend:
    return StandaloneBackend.from_extra(
        {"spark_python": "/opt/deltaforge/bin/python", "spark_rest_url": url, **extra}
    )


def job_of(server, **environment: str) -> LaunchSpec:
    return LaunchSpec("orders", 3, "stream_job.py", POSTGRES, server.url, environment=environment)


def test_a_driver_is_submitted_asked_about_and_killed(master, tmp_path):
    server, url = master
    backend = backend_of(f"http://{HOST}:9,{url}", spark_rest_token=token())  # The first is away.
    handle = backend.submit(job_of(server, MYSQL_DSN="mysql://u:planted-9d1c@h/db"))

    kept = json.loads(json.dumps(handle))
    assert "planted-9d1c" not in str(kept)
    assert kept["name"] == "df-orders-g3"
    # Another host knows nothing but the handle, and the token.
    finder = LaunchBackends(LocalBackend(tmp_path), StandaloneBackend(token=token()))
    queued = finder.status(kept)
    assert queued.state is JobState.RUNNING
    assert "no worker has the cores" in str(queued.detail)

    finder.stop(kept, 0)

    ended = finder.status(kept)
    assert (ended.state, ended.exit_code) == (JobState.ENDED, None)
    assert "KILLED" in str(ended.detail)
    assert "planted-9d1c" not in server.log_tail(10_000)


def test_what_a_master_does_not_know_is_unknown_and_not_stopped(master):
    _, url = master
    backend = replace(backend_of(url, spark_rest_token=token()), kill_wait_s=0.1)
    lost = {"backend": "standalone", "submission_id": "driver-1", "rest_urls": [url], "name": "j"}
    assert backend.status(lost).state is JobState.UNKNOWN
    with pytest.raises(RetryableError, match="has not ended"):
        backend.stop(lost, 0)


def test_a_token_that_the_rest_server_does_not_take_is_named(master):
    server, url = master
    with pytest.raises(AccessError, match="spark_rest_token"):
        backend_of(url).submit(job_of(server))
    assert backend_of(url).status({"submission_id": "driver-2", "rest_urls": [url]}).state is (
        JobState.UNKNOWN
    )


def test_no_master_is_a_reason_to_try_again(master):
    server, _ = master
    with pytest.raises(RetryableError, match=r"does not answer at http://127\.0\.0\.1:9"):
        backend_of(f"http://{HOST}:9").submit(job_of(server))
    with pytest.raises(RetryableError, match="6066"):  # The port that nobody named.
        backend_of("").submit(
            LaunchSpec("orders", 1, "stream_job.py", POSTGRES, "spark://127.0.0.2:1")
        )


def test_a_value_that_the_master_would_replace_is_refused(master):
    server, url = master
    with pytest.raises(SpecError, match="the value of TEMPLATE"):
        backend_of(url).submit(job_of(server, TEMPLATE="{{HOME}}"))


@pytest.mark.parametrize(
    ("master", "store", "python", "said"),
    [
        ("spark://h:7077", "sqlite:////s.db", True, "refused with the sqlite store /s.db"),
        ("spark://h:7077", "memory://x", True, "refused with the memory store"),
        ("local[2]", POSTGRES, True, "needs a standalone cluster"),
        ("yarn", POSTGRES, True, "does not launch drivers on YARN"),
        ("spark://h:7077", POSTGRES, False, "needs the extra `spark_python`"),
    ],
)
def test_what_cannot_be_submitted_is_refused_by_name(master, store, python, said):
    backend = StandaloneBackend("/opt/df/bin/python" if python else None)
    with pytest.raises(SpecError) as refused:
        backend.check(master, store)
    assert said in str(refused.value)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"spark_python": "python3"}, "spark_python: write the absolute path"),
        ({"spark_rest_url": "master:6066"}, "spark_rest_url: write http://host:6066"),
        ({"spark_rest_url": "http://u:planted@m:6066"}, "spark_rest_url: write"),
        ({"spark_conf": "{"}, "spark_conf: is no JSON"),
        ({"spark_conf": ["a"]}, "spark_conf: must be an object"),
        ({"spark_conf": {"cores": 2}}, "'cores' must be a Spark setting"),
        ({"spark_conf": {"spark.driver.supervise": True}}, "set by the launch backend"),
        ({"spark_conf": {"spark.authenticate.secret": "planted"}}, "spark-defaults.conf"),
    ],
)
def test_an_extra_of_the_connection_that_is_wrong_is_named(extra, said):
    with pytest.raises(SpecError) as refused:
        StandaloneBackend.from_extra(extra)
    assert said in str(refused.value)
    assert "planted" not in str(refused.value)


def test_a_handle_of_a_later_release_is_unknown(tmp_path):
    backends = LaunchBackends(LocalBackend(tmp_path))
    handle = {"backend": "later", "name": "df-orders-g1"}
    assert backends.status(handle).state is JobState.UNKNOWN
    assert backends.logs_tail(handle) == ""
    with pytest.raises(RetryableError, match="'later', which this release does not have"):
        backends.stop(handle, 0)
