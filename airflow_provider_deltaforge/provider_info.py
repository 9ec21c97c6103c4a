"""What Airflow reads about this provider. Imports nothing, so that discovery stays cheap."""

from typing import Any

_ROOT = "airflow_provider_deltaforge"
_INTEGRATION = "DeltaForge"
_DRIVEN = ("snapshot", "stream")


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description in Airflow's own schema."""
    return {
        "package-name": "airflow-provider-deltaforge",
        "name": _INTEGRATION,
        "description": "Change data capture run by Spark: preflight, snapshot, supervised stream.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["service"]}],
        "hooks": [_modules("hooks.deltaforge")],
        "operators": [
            _modules(
                *(
                    f"operators.{name}"
                    for name in (
                        *("control", "fleet", "preflight", "replay", "rewind", "verify"),
                        *_DRIVEN,
                    )
                )
            ),
        ],
        "sensors": [_modules("sensors.deltaforge")],
        "triggers": [
            _modules(
                *(
                    f"triggers.{name}"
                    for name in ("arrival", "condition", "failed", "store", *_DRIVEN)
                )
            ),
        ],
        "extra-links": [
            f"{_ROOT}.links.pipeline.DeltaForgePipelineLink",
            f"{_ROOT}.links.pipeline.DeltaForgePipelinesLink",
        ],
        "connection-types": [_connection_type()],
        "asset-uris": [
            {
                "schemes": ["deltaforge"],
                "handler": f"{_ROOT}.assets.tables.sanitize_uri",
                "factory": f"{_ROOT}.assets.tables.create_asset",
            }
        ],
        "notifications": [f"{_ROOT}.notifications.webhook.DeltaForgeNotifier"],
        "task-decorators": [
            {"name": "deltaforge", "class-name": f"{_ROOT}.decorators.stream.stream_task"}
        ],
        "config": {"deltaforge": _config()},
    }


def _modules(*names: str) -> dict[str, Any]:
    return {
        "integration-name": _INTEGRATION,
        "python-modules": [f"{_ROOT}.{name}" for name in names],
    }


def _config() -> dict[str, Any]:
    return {
        "description": "Settings of the DeltaForge provider.",
        "options": {
            "dag_tab": {
                "description": "Show the tab *DeltaForge* on every DAG.",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": None,
                "default": "True",
            },
            "failure_webhook_conn_id": {
                "description": "A connection of type HTTP to which every failed attempt of a task "
                "of this provider is posted.",
                "version_added": "0.1.0",
                "type": "string",
                "example": "alerts",
                "default": "",
            },
            "trigger_settle_seconds": _seconds(
                "How long a trigger lives at least before it fires. Airflow 3.3 fails a task that "
                "goes on before its scheduler has read that it deferred; give it more time if the "
                "scheduler is slow. 0 fires at once.",
                "5.0",
            ),
            "kill_grace_seconds": _seconds(
                "Where Airflow cannot tell whether a task was cleared or ended by a user: how long "
                "a new attempt may take to adopt the stream before that is stopped.",
                "3.0",
            ),
            "driver_log_lines": {
                "description": "So many lines of what a driver logs are in the log of the task "
                "that supervises it, after each look at the state store; of more, the last ones. "
                "0 for none.",
                "version_added": "0.1.0",
                "type": "integer",
                "example": "500",
                "default": "100",
            },
            "long_lived_workers": {
                "description": "Workers outlive their tasks, whatever the executor says: drivers "
                "may be processes of the worker.",
                "version_added": "0.1.0",
                "type": "boolean",
                "example": "True",
                "default": "False",
            },
        },
    }


def _seconds(description: str, default: str) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": "float",
        "example": None,
        "default": default,
    }


def _kubernetes_fields() -> dict[str, Any]:
    def text(label: str, description: str = "") -> dict[str, Any]:
        words = {"description": description} if description else {}
        return {"label": label, **words, "schema": {"type": ["string", "null"], "default": None}}

    launcher = text("Kubernetes: drivers are submitted by", "Empty: spark-submit, on the worker.")
    launcher["schema"]["enum"] = ["spark-submit", "spark-operator"]
    return {
        "kubernetes_image": text("Kubernetes: image", "Of drivers and their executors."),
        "kubernetes_namespace": text("Kubernetes: namespace", "Empty: default."),
        "kubernetes_service_account": text(
            "Kubernetes: service account of drivers", "Empty: deltaforge-driver."
        ),
        "kubernetes_launcher": launcher,
        "kubernetes_driver_template": text("Kubernetes: pod template of drivers, a file"),
        "kubernetes_executor_template": text("Kubernetes: pod template of executors, a file"),
        "kubernetes_conn_id": text(
            "Kubernetes: connection to the cluster",
            "Of Airflow's Kubernetes provider. Empty: the service account of the pod, or the "
            "kubeconfig.",
        ),
        "kubernetes_context": text("Kubernetes: context of the kubeconfig"),
    }


def _cluster_fields() -> dict[str, Any]:
    return {
        "spark_archive": {
            "label": "Environment for YARN",
            "description": "Archive with this package, in place of an interpreter on the "
            "nodes: hdfs:///apps/deltaforge.tar.gz.",
            "schema": {"type": ["string", "null"], "default": None},
        },
        "yarn_rest_url": {
            "label": "YARN's resource manager",
            "description": "Its web address: http://rm:8088; several separated by commas.",
            "schema": {"type": ["string", "null"], "default": None},
        },
        "yarn_user": {
            "label": "User on YARN",
            "description": "Empty: the user of the worker's process.",
            "schema": {"type": ["string", "null"], "default": None},
        },
        "hadoop_conf_dir": {
            "label": "Directory of yarn-site.xml",
            "description": "On the worker. Empty: HADOOP_CONF_DIR of its environment.",
            "schema": {"type": ["string", "null"], "default": None},
        },
        "spark_conf": {
            "label": "Spark settings of drivers",
            "description": "Seen on command lines: no secrets.",
            "schema": {"type": ["object", "null"], "default": None},
        },
    }


def _file(label: str) -> dict[str, Any]:
    return {
        "label": label,
        "description": "A file on every machine that opens the store, drivers' too.",
        "schema": {"type": ["string", "null"], "default": None},
    }


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "deltaforge",
        "hook-class-name": f"{_ROOT}.hooks.deltaforge.DeltaForgeHook",
        "hook-name": "DeltaForge state store",
        "ui-field-behaviour": {
            "relabeling": {"schema": "Database"},
            "placeholders": {
                "host": "PostgreSQL host; empty for SQLite",
                "port": "5432",
                "schema": "deltaforge",
            },
        },
        "conn-fields": {
            "path": {
                "label": "SQLite file",
                "description": "State store as a file of the machine that runs the drivers.",
                "schema": {"type": ["string", "null"], "default": None},
            },
            "sslmode": {
                "label": "TLS to PostgreSQL",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["disable", "prefer", "require", "verify-ca", "verify-full"],
                    "default": None,
                },
            },
            "sslrootcert": _file("TLS to PostgreSQL: certificates of authorities"),
            "sslcert": _file("TLS to PostgreSQL: client certificate"),
            "sslkey": _file("TLS to PostgreSQL: key of the client certificate"),
            "launch_backend": {
                "label": "Drivers run",
                "description": "local: beside the worker that starts them. standalone: on a Spark "
                "cluster, submitted to its master. kubernetes: as pods. yarn: on a YARN cluster.",
                "schema": {
                    "type": ["string", "null"],
                    "enum": ["local", "standalone", "kubernetes", "yarn"],
                    "default": None,
                },
            },
            "spark_python": {
                "label": "Python on the Spark cluster",
                "description": "Interpreter that has this package on every host of the cluster: "
                "/opt/deltaforge/bin/python.",
                "schema": {"type": ["string", "null"], "default": None},
            },
            "spark_rest_url": {
                "label": "REST server of Spark's master",
                "description": "Empty: http, port 6066 of the master's host.",
                "schema": {"type": ["string", "null"], "default": None},
            },
            "spark_rest_token": {
                "label": "Bearer token for it",
                "schema": {"type": ["string", "null"], "format": "password", "default": None},
            },
            **_kubernetes_fields(),
            **_cluster_fields(),
        },
    }
