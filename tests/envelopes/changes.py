"""What an envelope makes of a change, written row by row."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.envelopes.contract import Origin

ORIGIN = Origin("orders-cdc", "acme", "mysql", "0.1.0")


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def slow_native(row: Mapping[str, Any], origin: Origin) -> str:
    """Write one native event the straightforward way."""
    source = [
        ("version", compact(f"deltaforge-{origin.version}")),
        ("connector", compact(origin.connector)),
        ("name", compact(origin.pipeline)),
        ("ts_ms", str(row["ts_ms"])),
        ("db", compact(row["db"])),
    ]
    if row["schema"] is not None:
        source.append(("schema", compact(row["schema"])))
    source.append(("table", compact(row["table"])))
    if row["op"] == "r":
        source.append(("snapshot", '"true"'))
    inside = _members(source)
    if row["source_position"] is not None:
        inside += f',{row["source_position"].decode()},"row":{row["row"]}'
    members = [
        ("before", _image(row["before"])),
        ("after", _image(row["after"])),
        ("source", "{" + inside + "}"),
        ("op", compact(row["op"])),
        ("ts_ms", str(row["ts_ms"])),
    ]
    if row["tx_id"] is not None:
        transaction = {"id": row["tx_id"], "total_order": row["row"] + 1}
        members.append(("transaction", compact(transaction)))
    members.append(("event_id", compact(str(uuid.UUID(bytes=row["event_id"])))))
    members.append(("tenant_id", compact(origin.tenant)))
    for name in ("schema_version", "schema_sequence"):
        if row[name] is not None:
            members.append((name, compact(row[name])))
    members += _details(row)
    if row["tx_end"]:
        members.append(("tx_end", "true"))
    return "{" + _members(members) + "}"


def slow_debezium(row: Mapping[str, Any], origin: Origin) -> str:
    """Write one Debezium event the straightforward way."""
    return '{"schema":null,"payload":' + slow_native(row, origin) + "}"


def slow_cloudevent(row: Mapping[str, Any], origin: Origin, prefix: str) -> str:
    """Write one CloudEvent the straightforward way."""
    full = f"{row['schema'] or row['db']}.{row['table']}"
    at = datetime.fromtimestamp(row["ts_ms"] / 1000, tz=timezone.utc)
    suffix = {
        "c": "created",
        "u": "updated",
        "d": "deleted",
        "r": "snapshot",
        "t": "truncated",
        "ddl": "schema_changed",
    }[row["op"]]
    data = [("before", _image(row["before"])), ("after", _image(row["after"]))]
    data += [("op", compact(row["op"])), *_details(row)]
    from urllib.parse import quote

    members = [
        ("specversion", '"1.0"'),
        ("id", compact(str(uuid.UUID(bytes=row["event_id"])))),
        ("source", compact(quote(f"deltaforge/{origin.pipeline}/{full}"))),
        ("type", compact(f"{prefix}.{suffix}")),
        ("time", compact(f"{at:%Y-%m-%dT%H:%M:%S}.{row['ts_ms'] % 1000:03d}Z")),
        ("datacontenttype", '"application/json"'),
        ("subject", compact(full)),
        ("data", "{" + _members(data) + "}"),
    ]
    return "{" + _members(members) + "}"


def _details(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    if row["ddl"] is not None:
        found.append(("ddl", row["ddl"].decode()))
    for name in ("tags", "synthetic"):
        if row[name] is not None:
            found.append((name, compact(row[name])))
    if row.get("unchanged") is not None:
        found.append(("unchanged", row["unchanged"].decode()))
    return found


def _image(text: bytes | None) -> str:
    return "null" if text is None else text.decode()


def _members(pairs: Sequence[tuple[str, str]]) -> str:
    return ",".join(f"{compact(name)}:{text}" for name, text in pairs)
