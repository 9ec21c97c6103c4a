"""What Spark is given to start a driver on Kubernetes, by ``spark-submit`` or by its operator.

No value of a variable is in it: it names keys of a Secret. Spark keeps these settings in a
ConfigMap, and shows them on command lines.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.kubernetes.settings import (
    SECRET_ANNOTATION,
    JobNames,
    KubernetesSettings,
)
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, JOB
from airflow_provider_deltaforge.telemetry.redaction import redacted

_TIMEOUT_S = 180.0
_SPARK = "4.2.0"
_DEFAULTS = {
    # The page is off, as with every driver of ours, and no row ever crosses the JVM: what needs
    # memory is the Python beside it, which Spark counts as overhead.
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "512m",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.instances": "1",
    "spark.executor.cores": "2",
    "spark.kubernetes.executor.request.cores": "1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "1g",
}
_ACCESS_WORDS = ("Forbidden", "Unauthorized", "forbidden:", "code=401", "code=403")


def configuration(
    settings: KubernetesSettings, names: JobNames, job: LaunchSpec, secret: str
) -> dict[str, str]:
    """Return Spark's settings for a driver whose variables lie in a Secret."""
    conf = {
        **_DEFAULTS,
        "spark.pyspark.python": settings.python,
        "spark.kubernetes.driverEnv." + JOB: names.job,
        "spark.executorEnv." + JOB: names.job,
    }
    for role in ("driver", "executor"):
        for variable in variables(job):
            conf[f"spark.kubernetes.{role}.secretKeyRef.{variable}"] = f"{secret}:{variable}"
    return {**conf, **settings.conf}


def variables(job: LaunchSpec) -> list[str]:
    """Return the names of the variables that a driver gets from us."""
    return sorted({*job.environment, ENVIRONMENT})


def command(
    settings: KubernetesSettings, names: JobNames, job: LaunchSpec, secret: str
) -> list[str]:
    """Return the ``spark-submit`` command line that makes the driver's pod.

    Raises:
        SpecError: no ``spark-submit`` was found.
    """
    home = spark_submit.spark_home()
    submit = str(home / "bin" / "spark-submit") if home else shutil.which("spark-submit")
    if submit is None:
        raise SpecError(
            "spark-submit was not found on this worker: install "
            "airflow-provider-deltaforge[spark], set SPARK_HOME, or have the Spark Operator submit "
            "(kubernetes_launcher: spark-operator), which needs neither Spark nor Java here"
        )
    conf = {
        **configuration(settings, names, job, secret),
        "spark.kubernetes.namespace": settings.namespace,
        "spark.kubernetes.container.image": str(settings.image),
        "spark.kubernetes.authenticate.driver.serviceAccountName": settings.service_account,
        "spark.kubernetes.driver.pod.name": names.job,
        "spark.kubernetes.executor.podNamePrefix": names.job,
        # It returns once the pod is made: the pod is the handle, and nothing here waits for it.
        "spark.kubernetes.submission.waitAppCompletion": "false",
        f"spark.kubernetes.driver.annotation.{SECRET_ANNOTATION}": secret,
    }
    for role, template in _templates(settings).items():
        conf[f"spark.kubernetes.{role}.podTemplateFile"] = template
    for role in ("driver", "executor"):
        for label, value in names.labels().items():
            conf[f"spark.kubernetes.{role}.label.{label}"] = value
    return [
        submit,
        *("--master", job.master, "--deploy-mode", "cluster", "--name", names.job),
        *spark_submit.words_of(conf),
        f"local://{_script(settings, job)}",
        *_arguments(job),
    ]


def submit(command_line: list[str], kubeconfig: Mapping[str, Any]) -> None:
    """Run ``spark-submit`` and return when it has made the driver's pod.

    Args:
        command_line: what to run.
        kubeconfig: by which it reaches the API server; it is in a file of ours for this long.

    Raises:
        AccessError: the API server refuses the account.
        RetryableError: it could not be done.
    """
    with tempfile.TemporaryDirectory(prefix="deltaforge-submit-") as place:
        path = Path(place) / "kubeconfig"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(kubeconfig, file)
        home = spark_submit.spark_home()
        environment = {
            **os.environ,
            "KUBECONFIG": str(path),
            **({"SPARK_HOME": str(home)} if home else {}),
        }
        try:
            done = subprocess.run(  # noqa: S603 - the words are ours; no shell reads the values
                command_line,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT_S,
                check=False,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            raise RetryableError(
                f"spark-submit has not made the driver's pod within {_TIMEOUT_S:.0f} s"
            ) from error
    if done.returncode:
        reason = _reason(done.stdout.splitlines())
        words = f"spark-submit ended with exit code {done.returncode}: {reason}"
        if any(word in done.stdout for word in _ACCESS_WORDS):
            raise AccessError(f"{words}; docs/kubernetes has the roles that are needed")
        raise RetryableError(words)


def application(
    settings: KubernetesSettings, names: JobNames, job: LaunchSpec, secret: str
) -> dict[str, Any]:
    """Return the ``SparkApplication`` of a driver.

    Raises:
        SpecError: a pod template cannot be read.
    """
    conf = configuration(settings, names, job, secret)
    # One restarter only: control/supervise.py.
    spec: dict[str, Any] = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "sparkVersion": _spark_version(),
        "image": settings.image,
        "mainApplicationFile": f"local://{_script(settings, job)}",
        "arguments": _arguments(job),
        "restartPolicy": {"type": "Never"},
        "sparkConf": {**conf, "spark.kubernetes.executor.podNamePrefix": names.job},
        "driver": {
            "podName": names.job,
            "serviceAccount": settings.service_account,
            "labels": names.labels(),
            "annotations": {SECRET_ANNOTATION: secret},
        },
        "executor": {"labels": names.labels()},
    }
    for role, template in _templates(settings).items():
        spec[role]["template"] = _template(role, template)
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {
            "name": names.job,
            "namespace": settings.namespace,
            "labels": names.labels(),
            "annotations": {SECRET_ANNOTATION: secret},
        },
        "spec": spec,
    }


def _arguments(job: LaunchSpec) -> list[str]:
    which = ["--pipeline", job.pipeline, "--generation", str(job.generation)]
    return [*which, *job.arguments]


def _script(settings: KubernetesSettings, job: LaunchSpec) -> PurePosixPath:
    """Return where the image has the script: beside its interpreter."""
    return PurePosixPath(settings.python).parent / f"deltaforge_{job.script}"


def _templates(settings: KubernetesSettings) -> dict[str, str]:
    by_role = {"driver": settings.driver_template, "executor": settings.executor_template}
    return {role: path for role, path in by_role.items() if path}


def _template(role: str, path: str) -> Mapping[str, Any]:
    """Return a pod template as the operator takes it: without the pod's kind."""
    key = f"kubernetes_{role}_template"
    try:
        pod = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise SpecError(f"{key}: {path} cannot be read: {error}") from error
    if not isinstance(pod, Mapping) or "spec" not in pod:
        raise SpecError(f"{key}: {path} is no pod (kind: Pod, with a spec)")
    return {part: pod[part] for part in ("metadata", "spec") if part in pod}


def _spark_version() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return _SPARK


def _reason(lines: Iterable[str]) -> str:
    """Return what ``spark-submit`` says went wrong: its last exceptions, without their stacks."""
    plain = [line.strip() for line in lines if line.strip()]
    named = [line for line in plain if "Exception" in line or "Error" in line or "error" in line]
    picked = named[:1] + named[-1:] if len(named) > 1 else named or plain[-2:]
    return redacted(" | ".join(dict.fromkeys(picked)))[:500] or "it printed nothing"
