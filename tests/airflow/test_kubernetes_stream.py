"""A stream on Kubernetes that outlives its worker, and is adopted, restarted and stopped.

As ``test_kubernetes``; a played kubelet starts what the pods say as processes of this machine.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context, deferred
from tests.airflow.pods import IMAGE, NAMESPACE, SECRET, leaked
from tests.architecture.probe import CHECKOUT
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.servers import kubernetes, postgres, spark
from tests.servers.played_kubelet import PlayedKubelet
from tests.servers.process import HOST, family
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

PATIENCE_S = 240.0
WORKER = """
import sys, time
from airflow.sdk.exceptions import TaskDeferred
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context

task = DeltaForgeStreamOperator(task_id="stream", document="orders.yaml", master=sys.argv[1])
try:
    task.execute(context())
except TaskDeferred:
    print("deferred", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """What an image for pods has at /opt/deltaforge, made of parts of this machine."""
    place = tmp_path_factory.mktemp("image")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, check=True, cwd=CHECKOUT, capture_output=True)
    [wheel] = place.glob("*.whl")
    home = place / "deltaforge"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    python = str(home / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    [site] = home.glob("lib/python*/site-packages")
    ours = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{ours}\n")
    (home / "spark").symlink_to(ours / "pyspark")
    written = place / "written"
    deltaforge = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]
    subprocess.run([*deltaforge, "image", str(written), "--host", "kubernetes"], check=True)
    shutil.copy(written / "entrypoint.sh", home / "entrypoint.sh")
    return home


@pytest.fixture(scope="module")
def node(plane, image, tmp_path_factory):
    assert kubernetes.unshares(), "the played kubelet needs mount namespaces: run as root"
    assert shutil.which("tini"), "apt-get install tini"
    kubelet = PlayedKubelet(plane, tmp_path_factory.mktemp("node"), {IMAGE: image}).start()
    yield kubelet
    kubelet.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.stop()


@pytest.fixture
def run(store, plane, tmp_path):
    name = f"state_{secrets.token_hex(4)}"
    with psycopg.connect(store.dsn("postgres"), autocommit=True) as administration:
        administration.execute(f"CREATE DATABASE {name}")
    output = tmp_path / "output"
    output.mkdir()
    dsn = f"postgresql://postgres:{SECRET}@{HOST}:{store.port}/{name}"
    made = ScriptedRun(output, master=f"k8s://{plane.url}", transactions=0, rate=100, dsn=dsn)
    yield made
    made.close()


@pytest.fixture
def connection(plane, store, run):
    """The connection as every host of Airflow has it."""
    local = "spark.kubernetes.{}.volumes.emptyDir.spark-local-dir-1.mount.path"
    extra = {
        "launch_backend": "kubernetes",
        "kubernetes_image": IMAGE,
        "kubernetes_namespace": NAMESPACE,
        "spark_conf": {
            # What a cluster's own name service would say, and a writable place of the pod.
            "spark.kubernetes.driver.master": plane.url,
            "spark.kubernetes.executor.useDriverPodIP": True,
            **{local.format(role): "/opt/local" for role in ("driver", "executor")},
        },
    }
    login = {"login": "postgres", "password": SECRET, "host": HOST, "port": store.port}
    schema = run.dsn.rpartition("/")[2]
    return json.dumps({"conn_type": "deltaforge", "schema": schema, **login, "extra": extra})


def test_a_stream_outlives_its_worker_and_is_adopted_restarted_stopped(
    plane, node, worker, connection, run, tmp_path, monkeypatch
):
    start, first = run.begin(), tmp_path / "first"
    launched_and_gone(first, plane, node, worker, connection, run)
    record, at = run.control.read(), lines_of(run)
    wait_for("the stream without its launcher", lambda: lines_of(run) > at + 300, PATIENCE_S)
    assert not first.exists()

    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    (tmp_path / "second.yaml").write_text(parameterised(run))
    monkeypatch.setenv("OUTPUT", str(run.directory))
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(tmp_path / "second.yaml"), master=run.master
    )
    attempt = context(2)
    trigger = deferred(lambda: task.execute(attempt))
    adopted = run.control.read()
    assert (adopted.generation, adopted.handle) == (record.generation, record.handle)
    assert trigger.look()[0] is None
    hook = DeltaForgeHook()
    assert hook.get_status(NAME).status == "running"
    log = log_tail(run.store, NAME, hook.backend(), 50)
    assert log["lines"]
    assert log["host"] == adopted.handle["pod"]
    assert leaked(plane, node) == []
    assert holders_of_the_secret(node) == {"jvm", "driver", "executor"}

    [jvm] = [pid for pid in processes(node) if is_driver_jvm(pid)]
    os.kill(jvm, signal.SIGKILL)
    wait_for("the death", lambda: trigger.look()[0] is not None, PATIENCE_S)
    event = trigger.look()[0].payload
    assert event["event"] == "ended"
    waiting = deferred(lambda: task.execute_complete(attempt, event))
    again = {**waiting.watch, "event": "resubmit"}
    deferred(lambda: task.execute_complete(attempt, again))
    restarted = run.control.read()
    assert restarted.generation == record.generation
    assert restarted.handle["uid"] != record.handle["uid"]
    wait_for("the stream again", lambda: hook.get_status(NAME).is_ready, PATIENCE_S)
    at = lines_of(run)
    wait_for("more events", lambda: lines_of(run) > at + 300, PATIENCE_S)

    hook.stop(NAME)

    backends = hook.backend()
    wait_for("its end", lambda: backends.status(restarted.handle).state is JobState.ENDED, 60)
    assert backends.status(restarted.handle).exit_code == 0
    run.close_log()
    assert run.judge(start) == []
    assert leaked(plane, node) == []


def launched_and_gone(directory, plane, node, kubeconfig, connection, run):
    """Launch from a worker of Airflow that dies, and whose directory goes, once it streams."""
    directory.mkdir()
    (directory / "orders.yaml").write_text(parameterised(run))
    names = ("PATH", "LANG", "JAVA_HOME")
    environment = {
        **{name: os.environ[name] for name in names if name in os.environ},
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "AIRFLOW_HOME": str(directory / "airflow"),
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": connection,
        "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": str(CHECKOUT),
        "OUTPUT": str(run.directory),
    }
    log = directory / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, run.master],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(
            "the launch",
            lambda: "deferred" in log.read_text() or worker.poll() is not None,
            PATIENCE_S,
        )
        assert worker.poll() is None, log.read_text()[-3000:]
        wait_for("the stream", lambda: events_of(run) > 300, PATIENCE_S)
    except AssertionError as error:
        outputs = [pod.log.read_text()[-3000:] for pod in node.runs.values()]
        raise AssertionError("\n".join([str(error), *outputs])) from error
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        shutil.rmtree(directory)


def parameterised(run):
    return run.document.replace(f'"{run.directory}/out.jsonl"', '"${OUTPUT}/out.jsonl"')


def events_of(run):
    progress = run.control.progress()
    return progress.events if progress else 0


def lines_of(run):
    return run.output.read_bytes().count(b"\n") if run.output.exists() else 0


def processes(node):
    return [
        pid
        for run in node.runs.values()
        if run.process.poll() is None
        for pid in family(run.process.pid)
    ]


def is_driver_jvm(pid):
    line = spark.command_line(pid)
    return "/java" in line.partition(" ")[0] and "deltaforge_stream_job.py" in line


def holders_of_the_secret(node):
    """Return the kinds of processes that have the password of the store in their environment."""
    kinds = {
        "KubernetesExecutorBackend": "jvm",
        "SparkSubmit": "jvm",
        "deltaforge_stream_job": "driver",
        "python_streaming_source_runner": "driver",
        "pyspark.daemon": "executor",
        "tini": "jvm",
    }
    found = set()
    for pid in processes(node):
        try:
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except OSError:
            continue
        if SECRET in environment:
            line = spark.command_line(pid)
            found.add(next((kind for mark, kind in kinds.items() if mark in line), line))
    return found
