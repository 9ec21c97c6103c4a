"""The launch backends as a connection describes them."""

from collections.abc import Mapping
from typing import Any

from airflow_provider_deltaforge.control.launching import yarn
from airflow_provider_deltaforge.control.launching.backends import LOCAL, LaunchBackends
from airflow_provider_deltaforge.control.launching.kubernetes.backend import NAME, KubernetesBackend
from airflow_provider_deltaforge.control.launching.kubernetes.cluster import ClusterAccess
from airflow_provider_deltaforge.control.launching.kubernetes.settings import KubernetesSettings
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from airflow_provider_deltaforge.control.launching.standalone import StandaloneBackend
from airflow_provider_deltaforge.control.launching.yarn import YarnBackend
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.connections import LOOKUP_ERRORS
from airflow_provider_deltaforge.telemetry.redaction import redacted


def launch_backends(dsn: str, extra: Mapping[str, Any], chosen: str) -> LaunchBackends:
    """Return where drivers are started, by the backend of a name, and where they are found.

    Args:
        dsn: of the state store.
        extra: of its connection.
        chosen: the name of the backend that starts drivers.

    Raises:
        SpecError: a value of the extra is refused; the text names its key.
    """
    if chosen == LOCAL == extra.get("launch_backend", LOCAL) and extra.get("spark_conf"):
        raise SpecError(
            "spark_conf: drivers of launch_backend local take none; remove it, or name a cluster's"
        )
    # Settings of drivers that are started: what is one cluster's, another may refuse.
    found_only = {key: value for key, value in extra.items() if key != "spark_conf"}
    elsewhere = chosen in {NAME, yarn.NAME}
    return LaunchBackends(
        LocalBackend(jobs_directory(dsn)),
        StandaloneBackend.from_extra(found_only if elsewhere else extra),
        kubernetes_backend(extra if chosen == NAME else found_only),
        YarnBackend.from_extra(extra if chosen == yarn.NAME else found_only),
        chosen=chosen,
    )


def kubernetes_backend(extra: Mapping[str, Any]) -> KubernetesBackend:
    """Return the backend of a connection's extra; nothing is connected to.

    ``kubernetes_conn_id`` names a connection of Airflow's Kubernetes provider, whose hook then
    says how the API server is reached; ``kubernetes_context`` a context of the kubeconfig.

    Raises:
        SpecError: a value is refused; the text names its key.
    """
    settings = KubernetesSettings.from_extra(extra)
    conn_id, context = extra.get("kubernetes_conn_id"), extra.get("kubernetes_context")
    if conn_id and context:
        raise SpecError(
            "kubernetes_context: the connection that kubernetes_conn_id names has its own context "
            "(cluster_context); keep one of the two"
        )
    if conn_id:
        access = ClusterAccess(
            configuration=lambda: _configuration(str(conn_id)), source=f"connection {conn_id}"
        )
    else:
        access = ClusterAccess(str(context) if context else None)
    return KubernetesBackend(settings, access)


def _configuration(conn_id: str) -> Any:
    try:
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    except ImportError:
        raise SpecError(
            "kubernetes_conn_id: needs Airflow's provider; install "
            "apache-airflow-providers-cncf-kubernetes"
        ) from None
    try:
        return KubernetesHook(conn_id).get_conn().configuration
    except LOOKUP_ERRORS:
        raise
    except Exception as error:  # Of Airflow, of the client, of the file system: all of its words.
        raise SpecError(
            f"kubernetes_conn_id: connection {conn_id!r} does not work here: {redacted(str(error))}"
        ) from error
