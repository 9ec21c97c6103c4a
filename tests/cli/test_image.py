"""The files of an image name only what is there; no container engine runs here."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.launching.spark_submit import spark_home
from tests.architecture.test_images import steps_of


def test_an_image_has_spark_the_package_and_its_kernels(tmp_path, run):
    wheel = tmp_path / "airflow_provider_deltaforge-9.9.9-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    place = tmp_path / "made" / "image"
    code, words = run("image", place, "--wheel", wheel, "--extras", "spark, postgres,kafka")
    assert (code, "docker build" in words) == (0, True)
    steps = steps_of((place / "Dockerfile").read_text())

    text = " ".join(rest for _, rest in steps)
    assert f"/tmp/{wheel.name}[spark,postgres,kafka]" in text
    assert ("COPY", f"{wheel.name} /tmp/") in steps
    assert (place / wheel.name).read_bytes() == b"a wheel"
    # What is copied is sent to the builder, and nothing else is.
    ignored = (place / ".dockerignore").read_text().splitlines()
    assert ignored[1:] == ["*", "!Dockerfile", f"!{wheel.name}"]
    assert "/bin/deltaforge precompile" in text
    froms = [rest.split()[0] for word, rest in steps if word == "FROM"]
    assert froms == [f"python:3.{sys.version_info.minor}-slim-bookworm"] * 2
    assert ("USER", "10001") in steps


def test_its_worker_is_the_one_of_the_spark_that_came_with_the_package(tmp_path, run):
    assert run("image", tmp_path)[0] == 0
    text = (tmp_path / "Dockerfile").read_text()
    [inside] = re.findall(r"python (-c '.*?')\)", text)
    home = subprocess.run(
        [sys.executable, *shlex.split(inside)], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(home) == spark_home()
    [command] = [rest for word, rest in steps_of(text) if word == "CMD"]
    refused = subprocess.run(
        json.loads(command),
        env={"SPARK_HOME": home, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "SPARK_MASTER: set it to spark://host:7077" in refused.stderr


def test_pods_begin_with_an_entry_point_that_starts_sparks_two_roles(tmp_path, run):
    assert run("image", tmp_path, "--host", "kubernetes")[0] == 0
    steps = steps_of((tmp_path / "Dockerfile").read_text())
    assert ("COPY", "--chmod=755 entrypoint.sh /opt/deltaforge/entrypoint.sh") in steps
    assert ("ENTRYPOINT", '["/opt/deltaforge/entrypoint.sh"]') in steps
    assert "!entrypoint.sh" in (tmp_path / ".dockerignore").read_text().splitlines()

    # What stands in for tini prints what it is to run, a word a line.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tini").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tools / "tini").chmod(0o755)
    driver = started(tmp_path, tools, ["driver", "--class", "a.B", "local:///x.py"], IP="10.0.0.7")
    assert driver[:3] == ["-s", "--", "/opt/spark-home/bin/spark-submit"]
    assert "spark.driver.bindAddress=10.0.0.7" in driver
    assert driver[-5:] == ["--deploy-mode", "client", "--class", "a.B", "local:///x.py"]

    options = {"SPARK_JAVA_OPT_0": "-Da=1 2", "SPARK_JAVA_OPT_1": "-Db='x'"}
    named = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP")
    more = ("RESOURCE_PROFILE_ID", "EXECUTOR_POD_NAME")
    variables = {f"SPARK_{name}": name.lower() for name in (*named, *more)}
    executor = started(
        tmp_path, tools, ["executor"], **variables, **options, SPARK_EXECUTOR_MEMORY="512m"
    )
    assert executor[2:7] == ["java", "-Da=1 2", "-Db='x'", "-Xms512m", "-Xmx512m"]
    flags = dict(zip(executor[-14::2], executor[-13::2], strict=True))
    assert flags["--podName"] == "executor_pod_name"
    assert flags["--hostname"] == "executor_pod_ip"
    assert executor[-15].endswith(".KubernetesExecutorBackend")
    assert started(tmp_path, tools, ["id", "-u"])[2:] == ["id", "-u"]


def started(place, tools, words, **variables):
    """Return what the entry point runs."""
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SPARK_HOME": "/opt/spark-home", **variables}
    environment["SPARK_DRIVER_BIND_ADDRESS"] = variables.get("IP", "")
    done = subprocess.run(
        [str(place / "entrypoint.sh"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "yarn"], "write standalone or kubernetes"),
        (["--extras", "spark,oracle"], "there is no 'oracle'"),
        (["--extras", "kafka"], "add spark"),
        (["--wheel", __file__], "no wheel of airflow-provider-deltaforge"),
    ],
)
def test_what_cannot_be_built_is_refused(words, said, tmp_path, run):
    code, text = run("image", tmp_path / "image", *words)
    assert code == 2
    assert said in text
    assert not (tmp_path / "image").exists()


def test_files_that_are_there_stay_unless_asked(tmp_path, run):
    (tmp_path / "Dockerfile").write_text("mine")
    code, text = run("image", tmp_path)
    assert (code, "--force" in text) == (2, True)
    assert (tmp_path / "Dockerfile").read_text() == "mine"
    assert not (tmp_path / ".dockerignore").exists()
    assert run("image", tmp_path, "--force")[0] == 0
    assert "spark" in (tmp_path / "Dockerfile").read_text()
    assert "spark" in (metadata("airflow-provider-deltaforge").get_all("Provides-Extra") or [])
