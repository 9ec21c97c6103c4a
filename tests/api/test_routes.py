"""Every route and shape that the documents promise, as ``routes.yaml`` lists them."""

import copy
import json
from pathlib import Path

import yaml

from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.api.conftest import DOCUMENT
from tests.waiting import wait_until

TABLE = yaml.safe_load(Path(__file__).with_name("routes.yaml").read_text())
PLACES = {"{name}": "orders", "{db}": "script", "{table}": "rows"}


def place_of(path):
    for name, value in PLACES.items():
        path = path.replace(name, value)
    return path


def lacking(answer, row):
    """Return what an answer lacks of what its row promises."""
    if answer.status_code != row.get("status", 200):
        return [f"{answer.status_code} {answer.text[:300]}"]
    if "text" in row:
        return [] if answer.text == row["text"] else [answer.text]
    if "holds" in row:
        return [] if row["holds"] in answer.text else [answer.text[:300]]
    told = answer.json()
    wanted = [("", told, row.get("fields", []))]
    wanted += [(key, told[key], fields) for key, fields in row.get("each", {}).items()]
    missing = []
    for key, value, fields in wanted:
        shown = value if isinstance(value, list) else [value]
        if not shown:
            missing.append(f"{key}: an empty list")
        missing += [f"{key}.{name}" for item in shown for name in fields if name not in item]
    said = {key: told[key] for key in row.get("says", {})}
    return missing + ([] if said == row.get("says", {}) else [said])


def test_every_route_of_the_table_answers_as_the_documents_promise(rest, server):
    document = copy.deepcopy(DOCUMENT)
    wrong = {}
    for row in TABLE:
        verb, path = row["ask"].split(" ", 1)
        body = document if row.get("body") == "document" else row.get("body")
        if path.startswith("/pipelines/{name}/checkpoints"):
            leave_records(server.store)
        answer = rest.request(verb, place_of(path), json=body)
        if found := lacking(answer, row):
            wrong[row["ask"]] = found
        if "until" in row:
            wait_until(lambda: rest.get("/pipelines/orders").json()["status"] == "running")
    assert wrong == {}


def leave_records(store):
    """Write what a driver would have: a checkpoint, and an event that was set aside."""
    control = Control(store, "orders")
    entry = {
        "v": 1,
        "timestamp": 1,
        "pipeline": "orders",
        "event_id": "6c41dd12-89d5-844d-9293-c68c8183472b",
        "event": {"op": "c", "before": None, "after": {"id": 1}, "source": {"table": "rows"}},
        "meta": {"sink_id": "files", "error_kind": "too_large", "error_message": "too large"},
    }
    fence = Fence("epochs", "orders", control.epoch())
    moved = Checkpoints(store, "orders", "shop-db").put("files", {"tx": 1})
    set_aside = DeadLetterRecords(store, "orders").push(json.dumps(entry).encode())
    store.transact([moved, set_aside], fence)
