"""Who may see and change a pipeline, asked of Airflow's own auth manager.

A pipeline is as open as the DAG that supervises it. One that no DAG supervises may be seen by
users who may see DAGs, and changed by those who may edit the connection of its state store.
"""

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.models import Connection
from airflow.models.dag import DagModel


def may_look(user: Any) -> bool:
    """Return whether the user may see the pipelines of any DAG."""
    return may_see(user, None) or bool(get_auth_manager().get_authorized_dag_ids(user=user))


def may_see(user: Any, dag_id: str | None) -> bool:
    """Return whether the user may see the status of a DAG's pipelines."""
    return _may(user, "GET", dag_id, None)


def may_read_log(user: Any, dag_id: str | None) -> bool:
    """Return whether the user may read the driver logs of a DAG's pipelines."""
    return _may(user, "GET", dag_id, DagAccessEntity.TASK_LOGS)


def may_read_document(user: Any, dag_id: str | None) -> bool:
    """Return whether the user may read the documents of a DAG's pipelines."""
    return _may(user, "GET", dag_id, DagAccessEntity.CODE)


def may_read_rows(user: Any, dag_id: str | None) -> bool:
    """Return whether the user may see rows that a DAG's pipelines set aside."""
    return _may(user, "GET", dag_id, DagAccessEntity.XCOM)


def may_change(user: Any, dag_id: str | None, conn_id: str) -> bool:
    """Return whether the user may pause, resume and stop the pipelines of a DAG."""
    if dag_id is not None:
        return _may(user, "PUT", dag_id, DagAccessEntity.TASK_INSTANCE)
    return may_change_connection(user, conn_id)


def may_change_connection(user: Any, conn_id: str) -> bool:
    """Return whether the user may edit a connection."""
    return _may_connection(user, "PUT", conn_id)


def may_read_connection(user: Any, conn_id: str) -> bool:
    """Return whether the user may know that a connection exists, and its type."""
    return _may_connection(user, "GET", conn_id)


def _may_connection(user: Any, method: Any, conn_id: str) -> bool:
    details = ConnectionDetails(conn_id=conn_id, team_name=Connection.get_team_name(conn_id))
    return bool(
        get_auth_manager().is_authorized_connection(method=method, details=details, user=user)
    )


def _may(user: Any, method: Any, dag_id: str | None, entity: DagAccessEntity | None) -> bool:
    team_name = DagModel.get_team_name(dag_id) if dag_id else None
    details = DagDetails(id=dag_id, team_name=team_name)
    return bool(
        get_auth_manager().is_authorized_dag(
            method=method, access_entity=entity, details=details, user=user
        )
    )
