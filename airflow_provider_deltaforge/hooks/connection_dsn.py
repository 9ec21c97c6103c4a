"""The state store that an Airflow connection stands for."""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_deltaforge.errors import SpecError


def dsn_of(connection: Any) -> str:
    """Return the state store's DSN of an Airflow connection.

    Raises:
        SpecError: it names neither a file nor a host, or a relative file.
    """
    extra = connection.extra_dejson
    path = extra.get("path")
    if path and connection.host:
        raise SpecError(
            f"connection {connection.conn_id!r} has both a SQLite file (extra `path`) and a host; "
            "keep one"
        )
    if path:
        if not Path(path).is_absolute():
            raise SpecError(
                f"connection {connection.conn_id!r}: `path` must be absolute, every Airflow "
                f"component has its own working directory; got {path!r}"
            )
        return f"sqlite:///{path}"
    if not connection.host:
        raise SpecError(
            f"connection {connection.conn_id!r} names no state store: set the extra `path` for "
            "SQLite, or host, database, login and password for PostgreSQL"
        )
    user = quote(connection.login or "", safe="")
    secret = f":{quote(connection.password, safe='')}" if connection.password else ""
    port = f":{connection.port}" if connection.port else ""
    options = urlencode({"sslmode": extra["sslmode"]}) if extra.get("sslmode") else ""
    query = f"?{options}" if options else ""
    at = f"{user}{secret}@" if user else ""
    database = connection.schema or "deltaforge"
    return f"postgresql://{at}{connection.host}{port}/{database}{query}"
