"""What a connection says about drivers on Kubernetes, and the names of what is made there."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_deltaforge.control.launching.cluster import OURS, spark_conf, store_place
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.errors import SpecError

SPARK_SUBMIT = "spark-submit"
SPARK_OPERATOR = "spark-operator"
LAUNCHERS = (SPARK_SUBMIT, SPARK_OPERATOR)

JOB_LABEL = "deltaforge/job"
PIPELINE_LABEL = "deltaforge/pipeline"
GENERATION_LABEL = "deltaforge/generation"
STORE_LABEL = "deltaforge/store"
SECRET_ANNOTATION = "deltaforge/secret"  # noqa: S105 - the name of an annotation
"""Of the driver's pod: the Secret that was made for it."""

_NAME_MAX = 47
"""Spark refuses a longer prefix for the names of executors."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[^\s{}]+")
_SECRETS_GO = (
    "would lie in a ConfigMap; put the value into a Secret, and name that: "
    "spark.kubernetes.driver.secretKeyRef.VARIABLE = secret:key, and the same for the executor"
)
_REFERENCES = re.compile(r"spark\.kubernetes\.(driver|executor)\.(secretKeyRef|secrets)\..+")
"""Settings that name a Secret of the namespace, and hold none."""
_OURS = frozenset(
    {
        *OURS,
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.container.image",
        "spark.kubernetes.driver.pod.name",
        "spark.kubernetes.driver.podTemplateFile",
        "spark.kubernetes.executor.podNamePrefix",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.namespace",
        "spark.kubernetes.submission.waitAppCompletion",
    }
)


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """Where and as what drivers run; everything but the image has a default.

    Attributes:
        image: of driver and executors, as ``deltaforge image --host kubernetes`` writes it.
        namespace: of the pods, and of the Secrets that are made for them.
        service_account: of the driver, which starts its executors with it.
        launcher: ``spark-submit`` from the worker, or ``spark-operator``: a ``SparkApplication``.
        python: the interpreter in the image; the scripts of the package lie beside it.
        driver_template: a file on the worker with a pod template; likewise for executors.
        executor_template: see there.
        conf: Spark settings; they lie in a ConfigMap that people can read.
    """

    image: str | None = None
    namespace: str = "default"
    service_account: str = "deltaforge-driver"
    launcher: str = SPARK_SUBMIT
    python: str = "/opt/deltaforge/bin/python"
    driver_template: str | None = None
    executor_template: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> "KubernetesSettings":
        """Read the keys ``kubernetes_…``, ``spark_python`` and ``spark_conf`` of an extra.

        Raises:
            SpecError: a value is refused; the text names its key.
        """
        plain = cls()
        launcher = str(extra.get("kubernetes_launcher") or plain.launcher)
        if launcher not in LAUNCHERS:
            raise SpecError(
                f"kubernetes_launcher: write {' or '.join(LAUNCHERS)}; got {launcher!r}"
            )
        python = str(extra.get("spark_python") or plain.python)
        if not PurePosixPath(python).is_absolute():
            raise SpecError(
                "spark_python: write the absolute path of the interpreter in the image, "
                f"{plain.python}; got {python!r}"
            )
        image = extra.get("kubernetes_image") or None
        if image is not None and not _IMAGE.fullmatch(str(image)):
            raise SpecError(
                "kubernetes_image: write the name of an image, registry.example.com/deltaforge:1; "
                f"got {image!r}"
            )
        return cls(
            image=str(image) if image else None,
            namespace=_object_name(extra, "kubernetes_namespace", plain.namespace),
            service_account=_object_name(
                extra, "kubernetes_service_account", plain.service_account
            ),
            launcher=launcher,
            python=python,
            driver_template=str(extra.get("kubernetes_driver_template") or "") or None,
            executor_template=str(extra.get("kubernetes_executor_template") or "") or None,
            conf=spark_conf(
                extra.get("spark_conf"),
                _OURS,
                made_from=", from the extras kubernetes_…",
                instead=_SECRETS_GO,
                references=_REFERENCES,
            ),
        )


@dataclass(frozen=True, slots=True)
class JobNames:
    """How a driver's pod is called, and by which labels it is found again.

    The same pipeline, generation and state store have the same names on every host. Two
    installations may have pipelines of one name, and one namespace: the store tells them apart.
    """

    job: str
    pipeline: str
    generation: str
    store: str

    @classmethod
    def of(cls, job: LaunchSpec) -> "JobNames":
        """Return the names of a driver that is to be started."""
        store = _digest(store_place(job.store))
        tail = f"-g{job.generation}-{store}"
        part = _slug(job.pipeline, _NAME_MAX - len(tail) - len("df-"))
        label = job.pipeline if _LABEL_VALUE.fullmatch(job.pipeline) else _slug(job.pipeline, 63)
        return cls(f"df-{part}{tail}", label, str(job.generation), store)

    def labels(self) -> dict[str, str]:
        """Return the labels of everything that is made for the driver."""
        return {
            "app.kubernetes.io/managed-by": "deltaforge",
            JOB_LABEL: self.job,
            PIPELINE_LABEL: self.pipeline,
            GENERATION_LABEL: self.generation,
            STORE_LABEL: self.store,
        }

    def selector(self) -> str:
        """Return the label selector of every generation of the pipeline."""
        return f"{PIPELINE_LABEL}={self.pipeline},{STORE_LABEL}={self.store}"


def _slug(name: str, length: int) -> str:
    """Return a name as the API takes it; one that had to change keeps a digest of what it was."""
    plain = re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= length:
        return plain
    digest = _digest(name)
    return f"{plain[: length - len(digest) - 1].rstrip('-')}-{digest}".lstrip("-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def _object_name(extra: Mapping[str, Any], key: str, default: str) -> str:
    name = str(extra.get(key) or default)
    if not _OBJECT_NAME.fullmatch(name):
        raise SpecError(f"{key}: {name!r} is no name that Kubernetes takes (a-z, 0-9 and -)")
    return name
