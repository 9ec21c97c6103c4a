"""``deltaforge://pipeline/db/table``: a table as a pipeline delivers it, and DAGs scheduled by it.

The path holds the parts of the table's full name as ``deltaforge status`` shows it, so it is
``/schema/table`` where the source has schemas. Without a path it is all tables of the pipeline.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow.sdk import Asset, AssetWatcher

from airflow_provider_deltaforge.control.arrivals import ArrivedRows
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import qualified_name, quoted_parts
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.spec.document import NAME_PATTERN
from airflow_provider_deltaforge.triggers.arrival import DeltaForgeArrivalTrigger

SCHEME = "deltaforge"


def deltaforge_asset(
    pipeline: str,
    table: str | None = None,
    *,
    sink: str | None = None,
    interval: timedelta = timedelta(minutes=1),
    deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
    poll_interval: timedelta = timedelta(seconds=5),
    **asset: Any,
) -> Asset:
    """Return a table's asset, which is updated while rows of it become durable in the sinks.

    ``schedule=[deltaforge_asset("orders", "shop.orders")]`` runs a DAG when they do. The event is
    in ``triggering_asset_events``; what arrived is in its ``extra["payload"]``: ``rows``,
    ``tables``, ``position`` and so on, as `DeltaForgeArrivalTrigger` says.

    Args:
        pipeline: the pipeline's name.
        table: full name of the table; None for all tables of the pipeline.
        sink: id of a sink that must not be behind the others.
        interval: time from one event to the next, at least.
        deltaforge_conn_id: connection of the state store.
        poll_interval: time between two looks at the state store.
        asset: further arguments of ``Asset``, such as ``group``.
    """
    uri = asset_uri(pipeline, table)
    named = {"name": uri, "uri": uri, **asset}
    is_renamed = (named["name"], named["uri"]) != (uri, uri)
    trigger = DeltaForgeArrivalTrigger(
        pipeline,
        table,
        sink,
        interval.total_seconds(),
        deltaforge_conn_id,
        poll_interval.total_seconds(),
        f"{named['name']} {named['uri']}" if is_renamed else None,
    )
    watcher = AssetWatcher(name=uri, trigger=trigger)
    return Asset(**{"watchers": [watcher], **named})


def asset_uri(pipeline: str, table: str | None = None) -> str:
    """Return the URI of a table, or of a whole pipeline.

    Raises:
        SpecError: the pipeline has a name that no pipeline can have.
    """
    if not re.match(NAME_PATTERN, pipeline):
        raise SpecError(f"{pipeline!r} is no name of a pipeline")
    quoted = quoted_parts(table) if table else None
    parts = [part for part, _ in quoted] if quoted else (table or "").split(".")
    return f"{SCHEME}://{pipeline}/" + "/".join(quote(part, safe="") for part in parts)


def table_of(uri: str) -> tuple[str, str | None]:
    """Return the pipeline and the full name of the table that a URI names; None: all tables.

    Raises:
        ValueError: it is another kind of URI.
    """
    parsed = sanitize_uri(urlsplit(uri))
    parts = [unquote(part) for part in parsed.path.strip("/").split("/") if part]
    return parsed.netloc, qualified_name(*parts) if parts else None


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Check a URI for Airflow, and return it as it is always written.

    Raises:
        ValueError: it names no pipeline, or more than a pipeline and a table.
    """
    if uri.scheme != SCHEME or not re.match(NAME_PATTERN, uri.netloc) or uri.query or uri.fragment:
        raise ValueError(
            f"write {SCHEME}://pipeline/db/table, or {SCHEME}://pipeline for all its tables: "
            f"{uri.geturl()!r}"
        )
    parts = [quote(unquote(part), safe="") for part in uri.path.strip("/").split("/")]
    if len(parts) > 1 and not all(parts):
        raise ValueError(f"a part of the table's name is empty: {uri.geturl()!r}")
    return uri._replace(path="/" + "/".join(parts))


def create_asset(*, pipeline: str, table: str | None = None, extra: Any = None) -> Asset:
    """Return the asset of a table as a producer names it: nobody watches for it."""
    return Asset(uri=asset_uri(pipeline, table), extra=extra)


def describe_events(
    context: Mapping[str, Any], outlets: Iterable[Any], pipeline: str, arrived: ArrivedRows
) -> None:
    """Have the events of every asset that a task updates carry what arrived.

    Args:
        context: of the task.
        outlets: of the task; one of this pipeline's tables counts only its rows, any other asset
            all.
        pipeline: the pipeline's name.
        arrived: what arrived while the task ran.
    """
    for outlet in outlets:
        if not isinstance(outlet, Asset):
            continue
        table = None
        if outlet.uri.startswith(f"{SCHEME}:"):
            named, of_table = table_of(outlet.uri)
            table = of_table if named == pipeline else None
        context["outlet_events"][outlet].extra.update(arrived.as_payload(pipeline, table))
