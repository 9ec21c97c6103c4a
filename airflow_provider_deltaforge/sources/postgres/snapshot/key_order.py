"""Sorts keys as a column does, without the table: by literals in its type and collation."""

import base64
import re
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared import key_order
from airflow_provider_deltaforge.sources.shared.key_order import ToText

_ORDER = re.compile(
    r"(?P<type>(?P<base>text|character varying|character|name|bytea|uuid|smallint|integer|bigint"
    r"|numeric|date|timestamp(?=[ (]))[a-z0-9(), ]*?)(?: collation (?P<collation>.+))?"
)


def chunks_of(
    connection: Any, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return which of a table's chunks each key is in; -1 where the server cannot be asked."""
    orders = [_ORDER.fullmatch(text) for text in chunks[0].bounds.get("order", ())]
    if not orders or any(order is None for order in orders):
        return [-1] * len(keys)
    known = [order for order in orders if order is not None]
    texts: list[ToText] = [_bytes if order["base"] == "bytea" else _text for order in known]
    sort = partial(_sorted, connection, [_sorted_by(order) for order in known])
    return key_order.chunks_of(chunks, keys, [str] * len(known), texts, sort)


def _sorted(
    connection: Any,
    columns: Sequence[str],
    keys: Sequence[Sequence[str]],
    bounds: Sequence[Sequence[str]],
) -> list[int]:
    rows = [*keys, *bounds]
    texts = [[row[at] for row in rows] for at in range(len(columns))]
    names = ", ".join(f"k{at}" for at in range(len(columns)))
    lists = ", ".join("%s::text[]" for _ in columns)
    order = ", ".join(column.replace("?", f"k{at}") for at, column in enumerate(columns))
    order = order.replace("%", "%%")  # In a collation's name it is no parameter's place.
    found = connection.execute(
        f"SELECT no FROM unnest(%s::int[], {lists}) AS sorted_keys (no, {names}) "
        f"ORDER BY {order}, no",
        [[*range(len(rows))], *texts],
    )
    return [int(row[0]) for row in found.fetchall()]


def _sorted_by(order: re.Match[str]) -> str:
    """Return what a column is sorted by; ``?`` stands for the text."""
    collation = f" COLLATE {order['collation']}" if order["collation"] else ""
    return f"?::{order['type']}{collation}"


def _text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value)


def _bytes(value: Any) -> str | None:
    text = value.get("_base64") if isinstance(value, Mapping) else None
    try:
        return None if text is None else "\\x" + base64.b64decode(text, validate=True).hex()
    except (NotBase64, ValueError):
        return None
