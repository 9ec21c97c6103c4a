"""Submissions to YARN: what is sent, what is refused; and a real resource manager's answers."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.launching import yarn_submit
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.yarn import YarnBackend, tag_of
from airflow_provider_deltaforge.control.launching.yarn_submit import Submission
from airflow_provider_deltaforge.engine.spark.container_secrets import take_variables, token_file
from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.storage.location import EXECUTOR_VARIABLES
from tests.servers import spark, yarn
from tests.servers.process import HOST

POSTGRES = "postgresql://df:planted-9d1c@db/deltaforge"
JOB = LaunchSpec(
    "orders", 3, "stream_job.py", POSTGRES, "yarn", environment={"DSN": "planted-9d1c"}
)


@pytest.fixture
def conf_dir(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "yarn-site.xml").write_text("<configuration/>")
    return tmp_path / "conf"


@pytest.fixture
def backend(conf_dir):
    return YarnBackend.from_extra(
        {
            "yarn_rest_url": "http://rm:8088/",
            "spark_python": "/opt/df/bin/python",
            "hadoop_conf_dir": str(conf_dir),
        }
    )


def submission(**changes):
    return replace(Submission("/opt/df/bin/python", None, None, None, {}), **changes)


def test_a_command_line_holds_what_spark_needs_and_no_secret():
    words = submission(conf={"spark.executor.memory": "2g"}).command(JOB, "deltaforge-1f")

    assert words[:7] == [
        str(spark.spark_home() / "bin" / "spark-submit"),
        *("--master", "yarn", "--deploy-mode", "cluster", "--name", "df-orders-g3"),
    ]
    conf = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "--conf")
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.pyspark.python"] == "/opt/df/bin/python"
    assert conf["spark.yarn.tags"] == "deltaforge,deltaforge-1f"
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert not any("archives" in key for key in conf)
    assert words[-4:] == ["--pipeline", "orders", "--generation", "3"]
    assert Path(words[-5]).name == "stream_job.py"
    assert "planted" not in " ".join(words)


def test_an_archive_travels_and_has_the_interpreter():
    words = submission(python=None, archive="hdfs:///df.tar.gz").command(JOB, "t")
    assert "spark.yarn.dist.archives=hdfs:///df.tar.gz#deltaforge" in words
    assert "spark.pyspark.python=./deltaforge/bin/python" in words
    assert "spark.executorEnv.NUMBA_CPU_NAME=generic" in words


SUBMIT = """#!/bin/sh
# What a submission finds: in its words, in its environment, and in the file that this one names.
printf '%s\\n' "$@" > "{place}/words"
env > "{place}/environment"
cat "$HADOOP_TOKEN_FILE_LOCATION" > "{place}/tokens"
{then}
"""


@pytest.fixture
def submitted(tmp_path, monkeypatch):
    """Submit with a ``spark-submit`` that keeps what it finds, and does something then."""
    (tmp_path / "bin").mkdir()

    def submit(then, wait_s=30.0, **changes):
        program = tmp_path / "bin" / "spark-submit"
        program.write_text(SUBMIT.format(place=tmp_path, then=then))
        program.chmod(0o755)
        monkeypatch.setattr(yarn_submit, "spark_home", lambda: tmp_path)
        return submission(**changes).run(JOB, "tag", wait_s)

    return submit


def test_secrets_reach_spark_submit_in_a_file_that_is_on_no_disk(
    submitted, tmp_path, monkeypatch, conf_dir
):
    for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "/a/path/of/the/submitter")

    words = submitted("true", user="flow", conf_dir=str(conf_dir))

    assert "ended with 0" in words
    found = (tmp_path / "environment").read_text()
    variables = dict(line.split("=", 1) for line in found.splitlines() if "=" in line)
    assert variables["HADOOP_USER_NAME"] == "flow"
    assert variables["HADOOP_CONF_DIR"] == str(conf_dir)
    assert variables["HADOOP_TOKEN_FILE_LOCATION"].startswith("/proc/self/fd/")
    assert "/a/path/of/the/submitter" not in found
    assert "planted" not in found + (tmp_path / "words").read_text()
    driver = {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")}
    take_variables(driver)
    assert driver["DSN"] == "planted-9d1c"
    assert driver["DELTAFORGE_STORE"] == POSTGRES
    assert driver["DELTAFORGE_JOB"] == "df-orders-g3"
    assert driver[EXECUTOR_VARIABLES] == "DELTAFORGE_STORE,DSN"


def test_a_submission_that_fails_says_why(submitted):
    failing = 'echo "Exception in thread \\"main\\" java.net.ConnectException: refused"; exit 1'
    assert submitted(failing) == ("spark-submit ended with 1: java.net.ConnectException: refused")
    assert submitted("exec sleep 60", wait_s=0.5) == "spark-submit did not end within 0 s"


def test_a_container_without_our_variables_is_left_alone(tmp_path):
    environment = {}
    take_variables(environment)
    assert environment == {}
    # One token, as a container's own, and no secret key.
    token = b"\x05alias\x02id\x02pw\x04kind\x07service"
    (tmp_path / "tokens").write_bytes(b"HDTS\0\x01" + token + b"\0")
    environment = {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")}
    take_variables(environment)
    assert list(environment) == ["HADOOP_TOKEN_FILE_LOCATION"]


@pytest.mark.parametrize("size", [0, 100, 127, 128, 255, 256, 70_000])
def test_variables_of_any_size_come_back(tmp_path, size):
    (tmp_path / "tokens").write_bytes(token_file({"A": "x" * size, "B": "ä\n\0"}))
    environment = {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")}
    take_variables(environment)
    assert (environment["A"], environment["B"]) == ("x" * size, "ä\n\0")


@pytest.mark.parametrize("content", [b"", b"HDTS\1", b"HDTS\0", token_file({"A": "b"})[:-1]])
def test_a_file_of_tokens_that_is_none_is_an_error(tmp_path, content):
    (tmp_path / "tokens").write_bytes(content)
    with pytest.raises(FatalError, match="HADOOP_TOKEN_FILE_LOCATION of this container"):
        take_variables({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "tokens")})


def test_a_tag_is_of_one_store_pipeline_and_generation():
    tags = {
        tag_of(job)
        for job in (
            JOB,
            replace(JOB, generation=4),
            replace(JOB, pipeline="Orders"),
            replace(JOB, store=POSTGRES.replace("@db/", "@other/")),
        )
    }
    assert len(tags) == 4
    assert all(tag == tag.lower() and len(tag) < 100 for tag in tags)
    # Another password, or another user, is no other store.
    assert tag_of(replace(JOB, store="postgresql://b:new@db/deltaforge")) == tag_of(JOB)


@pytest.mark.parametrize(
    ("changes", "master", "store", "said"),
    [
        ({}, "yarn", "sqlite:////s.db", "refused with the sqlite store /s.db"),
        ({}, "yarn", "memory://x", "refused with the memory store"),
        ({}, "spark://h:7077", POSTGRES, "needs the Spark master `yarn`"),
        ({"rest_urls": ()}, "yarn", POSTGRES, "needs the extra `yarn_rest_url`"),
        ({"python": None}, "yarn", POSTGRES, "`spark_python`, the interpreter"),
        ({"archive": "hdfs:///a.zip"}, "yarn", POSTGRES, "needs one of two extras"),
        ({"python": "python3"}, "yarn", POSTGRES, "spark_python: must be an absolute path"),
        ({"conf_dir": "/nowhere"}, "yarn", POSTGRES, "/nowhere has none"),
        ({"conf_dir": None}, "yarn", POSTGRES, "neither is set"),
    ],
)
def test_what_cannot_be_submitted_is_refused_by_name(
    backend, monkeypatch, changes, master, store, said
):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    with pytest.raises(SpecError) as refused:
        replace(backend, **changes).check(master, store)
    assert said in str(refused.value)
    assert "planted" not in str(refused.value)


def test_a_worker_that_cannot_submit_is_refused_by_name(backend, monkeypatch, tmp_path):
    backend.check("yarn", POSTGRES)
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", "/etc/tokens")
    with pytest.raises(SpecError, match="is set already"):
        backend.check("yarn", POSTGRES)
    monkeypatch.setattr(yarn_submit, "spark_home", lambda: tmp_path)
    with pytest.raises(SpecError, match="has the YARN client"):
        backend.check("yarn", POSTGRES)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"yarn_rest_url": "rm:8088"}, "yarn_rest_url: write http://host:8088"),
        ({"yarn_rest_url": "http://u:planted@rm:8088"}, "yarn_rest_url: write"),
        ({"spark_archive": "hdfs:///a.rar"}, "spark_archive: write the address of one archive"),
        ({"spark_archive": "hdfs:///a.zip#b.zip"}, "spark_archive: write"),
        (
            {"spark_conf": {"spark.yarn.maxAppAttempts": "2"}},
            "spark_conf: spark.yarn.maxAppAttempts is set by the launch backend",
        ),
    ],
)
def test_an_extra_of_the_connection_that_is_wrong_is_named(extra, said):
    with pytest.raises(SpecError) as refused:
        YarnBackend.from_extra(extra)
    assert said in str(refused.value)
    assert "planted" not in str(refused.value)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A resource manager that has no node to place anything on."""
    settings = {"yarn.acl.enable": "true", "yarn.admin.acl": "nobody"}
    running = yarn.start(tmp_path_factory.mktemp("cluster"), settings)
    yield running
    running.stop()


def backend_of(cluster, place, url=""):
    return YarnBackend.from_extra(
        {
            "yarn_rest_url": url or cluster.url,
            "yarn_user": "flow",
            "spark_python": "/opt/df/bin/python",
            "hadoop_conf_dir": str(cluster.conf),
            "spark_conf": {
                "spark.yarn.jars": f"local:{spark.spark_home()}/jars/*",
                "spark.yarn.stagingDir": f"file://{place}",
            },
        }
    )


@pytest.mark.long
def test_a_driver_is_submitted_found_again_and_killed(cluster, tmp_path):
    backend = backend_of(cluster, tmp_path, f"http://{HOST}:9,{cluster.url}")  # The first is away.
    handle = json.loads(json.dumps(backend.submit(JOB)))

    assert "planted-9d1c" not in str(handle)
    assert handle["user"] == "flow"
    # Its answer is lost, and another host asks for the same: it finds what there is.
    assert backend.submit(JOB) == handle
    assert backend.submit(replace(JOB, generation=4)) != handle
    # Another host knows nothing but the handle.
    finder = LaunchBackends(LocalBackend(tmp_path))
    queued = finder.status(handle)
    assert queued.state is JobState.RUNNING
    assert "waits for a container in YARN's queue" in str(queued.detail)
    assert finder.logs_tail(handle) == ""
    assert handle["application_id"] in finder.links(handle)["driver log"]

    with pytest.raises(AccessError, match="set the extra yarn_user"):
        finder.stop({**handle, "user": "somebody"}, 0)
    finder.stop(handle, 0)

    ended = finder.status(handle)
    assert (ended.state, ended.exit_code) == (JobState.ENDED, None)
    assert "KILLED" in str(ended.detail)
    assert "planted-9d1c" not in cluster.manager.log_tail(10_000)
    # What has ended is not adopted.
    assert backend.submit(JOB)["application_id"] != handle["application_id"]


@pytest.mark.long
def test_what_a_resource_manager_does_not_know_is_unknown_and_not_stopped(cluster, tmp_path):
    backend = replace(backend_of(cluster, tmp_path), kill_wait_s=0.1)
    lost = {
        "backend": "yarn",
        "application_id": "application_1_0001",
        "rest_urls": [cluster.url],
        "name": "j",
    }
    assert backend.status(lost).state is JobState.UNKNOWN
    with pytest.raises(RetryableError, match="has not ended"):
        backend.stop(lost, 0)


@pytest.mark.long
def test_what_spark_submit_cannot_do_is_said(cluster, tmp_path):
    backend = replace(
        backend_of(cluster, tmp_path), archive=f"file://{tmp_path}/no.zip", python=None
    )
    with pytest.raises(RetryableError, match=r"df-orders-g9 was not submitted: .*no\.zip"):
        backend.submit(replace(JOB, generation=9))


@pytest.mark.long
def test_a_resource_manager_that_asks_for_kerberos_is_refused_by_name(tmp_path):
    for name in ("keytab", "signature"):
        (tmp_path / name).write_text("of nobody")
    http = "hadoop.http.authentication"
    asking = yarn.start(
        tmp_path / "cluster",
        {
            "hadoop.http.filter.initializers": (
                "org.apache.hadoop.security.AuthenticationFilterInitializer"
            ),
            f"{http}.type": "kerberos",
            f"{http}.kerberos.principal": "HTTP/127.0.0.1@EXAMPLE.COM",
            f"{http}.kerberos.keytab": str(tmp_path / "keytab"),
            f"{http}.signature.secret.file": str(tmp_path / "signature"),
        },
    )
    try:
        with pytest.raises(AccessError, match="asks for Kerberos"):
            backend_of(asking, tmp_path).submit(JOB)
        handle = {"application_id": "application_1_0001", "rest_urls": [asking.url]}
        assert backend_of(asking, tmp_path).status(handle).state is JobState.UNKNOWN
    finally:
        asking.stop()


def test_no_resource_manager_is_a_reason_to_try_again(backend):
    with pytest.raises(RetryableError, match=r"nothing answers at http://127\.0\.0\.1:9"):
        replace(backend, rest_urls=(f"http://{HOST}:9",)).submit(JOB)
