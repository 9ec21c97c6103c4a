"""Which connections name a state store, as far as they can be listed.

A secrets backend cannot be listed: a connection that lies there is found by its id only.
"""

import json
import os
from collections.abc import Iterator

from airflow.models import Connection
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook

_PREFIX = "AIRFLOW_CONN_"


def known() -> list[str]:
    """Return the ids of every connection of our type, the default one first."""
    with create_session() as session:
        ours = Connection.conn_type == DeltaForgeHook.conn_type
        stored = set(session.scalars(select(Connection.conn_id).where(ours)))
    default = DeltaForgeHook.default_conn_name
    return sorted({*stored, *_of_environment()}, key=lambda conn_id: (conn_id != default, conn_id))


def _of_environment() -> Iterator[str]:
    for variable, value in os.environ.items():
        if variable.startswith(_PREFIX) and _conn_type(value) == DeltaForgeHook.conn_type:
            yield variable.removeprefix(_PREFIX).lower()


def _conn_type(value: str) -> str:
    """Return the type of a connection written as JSON or as a URI; never more of it."""
    if not value.lstrip().startswith("{"):
        return value.partition(":")[0]
    try:
        return str(json.loads(value).get("conn_type"))
    except ValueError:
        return ""
