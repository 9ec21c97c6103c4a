"""Sorts keys as a column does, without the table: by literals in its type or collation."""

import base64
import json
import re
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.catalog import fetch
from airflow_provider_deltaforge.sources.shared import key_order
from airflow_provider_deltaforge.sources.shared.key_order import ToText

_NAME = re.compile(r"[A-Za-z0-9_]+")
_INTEGER = re.compile(r"-?[0-9]{1,20}")
# What DECIMAL(65,30) holds.
_DECIMAL = re.compile(r"-?[0-9]{1,35}(\.[0-9]{0,30})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9:.]{8,15}Z?)?")
_LOST = "\ufffd"
"""Stands for what is no text: nobody knows how the server sorts the value."""


def chunks_of(
    connection: Any, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Return which of a table's chunks each key is in; -1 where the server cannot be asked."""
    order = chunks[0].bounds.get("order", ())
    columns = [_column(text, chunks[0].bounds["upto"][at]) for at, text in enumerate(order)]
    if not columns or any(column is None for column in columns):
        return [-1] * len(keys)
    known = [column for column in columns if column is not None]
    return key_order.chunks_of(
        chunks,
        keys,
        [bound for _, bound, _ in known],
        [key for _, _, key in known],
        partial(_sorted, connection, [sql for sql, _, _ in known]),
    )


def _sorted(
    connection: Any,
    columns: Sequence[str],
    keys: Sequence[Sequence[str]],
    bounds: Sequence[Sequence[str]],
) -> list[int]:
    rows = [[0, at, *texts] for at, texts in enumerate(keys)]
    rows += [[1, len(keys) + at, *texts] for at, texts in enumerate(bounds)]
    places = range(len(columns))
    lengths = [max(len(str(row[2 + at])) for row in rows) for at in places]
    paths = ", ".join(f"k{at} VARCHAR({lengths[at]}) PATH '$[{2 + at}]'" for at in places)
    order = ", ".join(columns[at].replace("?", f"k{at}") for at in places)
    fetch(connection, "SET SESSION max_sort_length = 65536")
    found = fetch(
        connection,
        "SELECT no FROM JSON_TABLE(%s, '$[*]' COLUMNS (is_bound INT PATH '$[0]', "
        f"no INT PATH '$[1]', {paths})) sorted_keys ORDER BY {order}, is_bound, no",
        (json.dumps(rows),),
    )
    return [int(row[0]) for row in found]


def _column(order: str, bound: Any) -> tuple[str, ToText, ToText] | None:
    """Return what a column is sorted by, and what makes texts of bounds and of keys.

    None of a type whose values are not asked for. ``?`` stands for the text.
    """
    if order in ("number", "decimal"):
        pattern = _INTEGER if order == "number" else _DECIMAL
        number: ToText = partial(_matching, pattern)
        return "CAST(? AS DECIMAL(65,30))", number, number
    if order == "date":
        return "CAST(? AS BINARY)", _date, _date
    if order == "binary":
        return "UNHEX(?)", lambda value: str(value["hex"]), _hex
    _, is_text, collation = order.partition("collation ")
    charset = str(bound.get("charset") or "") if isinstance(bound, Mapping) else ""
    if not is_text or not _NAME.fullmatch(collation) or not _NAME.fullmatch(charset):
        return None
    # A bound is in the column's character set, a key is in UTF-8.
    text = "CONVERT(UNHEX(?) USING utf8mb4)"
    if charset != "utf8mb4":
        text = f"IF(is_bound, CONVERT(UNHEX(?) USING {charset}), CONVERT({text} USING {charset}))"
    return f"{text} COLLATE {collation}", lambda value: str(value["hex"]), _text


def _matching(pattern: re.Pattern[str], value: Any) -> str | None:
    text = "" if isinstance(value, bool) else str(value)
    return text if pattern.fullmatch(text) else None


def _date(value: Any) -> str | None:
    text = str(value)
    return text.replace("T", " ").rstrip("Z") if _DATE.fullmatch(text) else None


def _hex(value: Any) -> str | None:
    text = value.get("_base64") if isinstance(value, Mapping) else None
    try:
        return None if text is None else base64.b64decode(text, validate=True).hex()
    except (NotBase64, ValueError):
        return None


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or _LOST in value:
        return None
    return value.encode("utf-8", "replace").hex()
