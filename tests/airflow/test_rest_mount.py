"""The REST API inside Airflow's own application: its users, its roles, its audit log."""

import json
import random
import re

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import status
from tests.airflow.page_bench import JSON, SECRET
from tests.api.test_rest_fuzz import requests_of
from tests.api.test_routes import TABLE, lacking, place_of
from tests.control.bench import DOCUMENT
from tests.waiting import wait_until

ORDERS = "/pipelines/orders"
OTHER = DOCUMENT.replace("orders", "other").replace("shop-db", "other-db")


@pytest.fixture
def rest(ask):
    """Ask a route of the REST API; changes bear their content type."""

    def asked(path, role="admin", method="GET", body=None, **options):
        if method != "GET":
            options = {"headers": dict(JSON), "content": json.dumps(body or {}), **options}
        return ask(f"/api{path}", role, method, **options)

    return asked


@pytest.fixture
def routes(rest, orders):
    """Every route of the description, with its verb, for the pipeline ``orders``."""
    described = rest("/openapi.json").json()["paths"]
    names = {"{name}": "orders", "{db}": "shop", "{table}": "orders", "{sink_id}": "files"}
    names |= {"{request_id}": "again", "{ticket}": "none", "{verification_id}": "none"}
    found = []
    for path, verbs in described.items():
        place = re.sub("{.+?}", lambda name: names[name[0]], path)
        found += [(verb.upper(), place) for verb in verbs]
    assert len(found) > 35
    return found


def test_without_signing_in_nothing_is_read_or_changed(rest, routes, orders):
    before = orders.read()
    for verb, path in [*routes, ("GET", "/openapi.json")]:
        answer = rest(path, None, verb)
        assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHORIZED"), (verb, path)
    assert orders.read() == before


@pytest.mark.parametrize("role", [None, "viewer"])
def test_requests_that_nobody_means_read_and_change_nothing(ask, rest, orders, role):
    before = orders.read()
    paths = rest("/openapi.json").json()["paths"]
    for verb, place, query, content in requests_of(paths, random.Random(1), each=1):
        query.pop("conn_id", None)
        options = {"params": query, "content": content, "headers": JSON}
        answer = ask(f"/api{place}", role, verb, **options)
        asked = (verb, place[:80], query, answer.text[:200])
        assert answer.status_code < 500, asked
        if role is None:
            assert answer.status_code in {401, 404, 405, 422}, asked
            assert "shop" not in answer.text, asked
    assert orders.read() == before


@pytest.mark.usefixtures("orders")
def test_what_the_documents_promise_is_read_in_airflow(rest):
    wrong = {}
    for row in TABLE:
        verb, path = row["ask"].split(" ", 1)
        if verb != "GET":
            continue
        answer = rest(place_of(path))
        found = lacking(answer, {**row, "says": {}})
        # This pipeline has no schemas, no labels, and nothing set aside.
        if found and answer.json() != [] and "{table}" not in path:
            wrong[path] = found
    assert wrong == {}


def test_a_viewer_changes_nothing_and_a_user_forgets_nothing(rest, routes, orders):
    before = orders.read()
    viewer = {
        path: rest(path, "viewer", verb).status_code for verb, path in routes if verb != "GET"
    }
    assert viewer.pop("/validate") in {400, 422}
    assert set(viewer.values()) == {403}
    assert rest(ORDERS, "viewer").json()["rights"] == [
        *("read", "read_document", "read_rows", "read_log")
    ]
    assert rest(ORDERS, "user").json()["rights"][-1] == "operate"
    assert rest(ORDERS, "op").json()["rights"][-1] == "admin"
    for verb, path in [("DELETE", ORDERS), ("DELETE", f"{ORDERS}/journal/dlq")]:
        assert rest(path, "user", verb).status_code == 403
    assert orders.read() == before


def test_every_route_reads_the_store_of_its_connection(rest, routes):
    for verb, path in routes:
        if verb == "GET":
            answer = rest(path)
            is_answer = answer.status_code == 200
            code = None if is_answer else answer.json()["code"]
            assert is_answer or code.endswith("_NOT_FOUND") or code == "SENSING_OFF", path
            missing = rest(f"{path}?conn_id=nothing")
            if path != "/connections":
                assert missing.json()["code"] == "CONNECTION_NOT_FOUND", path


def test_a_pipeline_of_a_dag_one_may_not_see_is_not_there(rest, routes, orders, store, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def hidden(self, *, details=None, **_):
        return details is None or details.id != "shop"

    pipelines.apply(store, OTHER)
    before = orders.read()
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", hidden)
    for verb, path in routes:
        if "orders" in path:
            answer = rest(path, "admin", verb)
            assert answer.status_code in {404, 422}, (verb, path)
            assert verb != "GET" or answer.json()["code"] == "PIPELINE_NOT_FOUND", path
    assert orders.read() == before
    for path in ("/pipelines", "/metrics", "/readyz", "/health"):
        assert "orders" not in rest(path).text.replace("orders_db", ""), path
    assert [shown["name"] for shown in rest("/pipelines").json()] == ["other"]
    assert 'pipeline="other"' in rest("/metrics").text


def test_a_document_is_for_who_may_read_its_dags_code(rest, orders, monkeypatch):
    from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def no_code(self, *, access_entity=None, **_):
        return access_entity not in {DagAccessEntity.CODE, DagAccessEntity.XCOM}

    assert rest(ORDERS).json()["spec"]["metadata"]["name"] == "orders"
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", no_code)
    assert rest(ORDERS).json()["spec"] is None
    assert rest("/pipelines").json()[0]["spec"] is None
    for path in ("/readyz", "/ready"):
        (shown,) = rest(path).json()["pipelines"]
        assert (shown["name"], shown["spec"]) == ("orders", None), path
    assert rest(f"{ORDERS}/journal/dlq").status_code == 403


def test_a_list_is_of_one_dag_if_one_is_named(rest, orders):
    (shown,) = rest("/pipelines?dag_id=shop").json()
    assert (shown["supervisor"]["dag_id"], shown["supervisor"]["try_number"]) == ("shop", 2)
    assert rest("/pipelines?dag_id=other").json() == []


def test_the_driver_is_asked_and_nobody_waits_for_it(rest, orders, store, backend):
    def word(verb):
        answer = rest(f"{ORDERS}/{verb}", "user", "POST")
        assert answer.status_code == 200, answer.text
        return orders.read().desired

    def becomes(expected):
        wait_until(lambda: status(store, "orders", backend).status == expected)

    assert word("pause") == "paused"
    becomes("paused")
    assert word("resume") == "running"
    becomes("running")
    busy = rest(ORDERS, "op", "DELETE")
    assert (busy.status_code, busy.json()["code"]) == (409, "NOT_NOW")
    becomes("stopped")
    late = rest(f"{ORDERS}/resume", "user", "POST")
    assert (late.status_code, late.json()["code"]) == (409, "NOT_HERE")
    assert "its DAG 'shop' starts it" in late.json()["error"]
    assert rest(ORDERS, "op", "DELETE").status_code == 204
    assert rest(ORDERS).status_code == 404


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/pipelines"),
        ("PATCH", ORDERS),
        ("POST", f"{ORDERS}/preflight"),
        ("POST", f"{ORDERS}/schemas/reload"),
    ],
)
def test_what_belongs_to_drivers_is_refused_with_what_to_do(rest, orders, verb, path):
    document = {"metadata": {"name": "new"}, "spec": {}}
    answer = rest(path, "admin", verb, document)
    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_HERE")
    assert "DAG" in answer.json()["error"]


def test_a_form_of_another_site_changes_nothing(rest, routes, orders):
    before = orders.read()
    for kind in ("application/x-www-form-urlencoded", "text/plain", None):
        headers = {"Content-Type": kind} if kind else {}
        for verb, path in routes:
            if verb != "GET":
                answer = rest(path, "admin", verb, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (415, "NO_JSON"), path
    assert orders.read() == before


def test_who_changed_something_stands_in_the_audit_log_without_the_body(rest, orders):
    from airflow.models import Log
    from airflow.utils.session import create_session

    rest(f"{ORDERS}/pause", "user", "POST")
    rest(ORDERS, "viewer", "PATCH", {"spec": {"sinks": [{"uri": f"redis://:{SECRET}@h"}]}})
    rest("/pipelines/none/stop", "user", "POST")
    with create_session() as session:
        entries = session.query(Log).filter_by(event="deltaforge_pipeline").order_by(Log.id).all()
        shown = [(entry.owner, entry.dag_id, json.loads(entry.extra)) for entry in entries[-3:]]
    where = {"conn_id": "deltaforge_default"}
    assert shown == [
        ("user", "shop", {**where, "method": "POST", "name": "orders", "path": path_of("/pause")}),
        ("viewer", "shop", {**where, "method": "PATCH", "name": "orders", "path": path_of("")}),
        (
            *("user", None),
            {**where, "method": "POST", "name": "none", "path": path_of("/stop", "none")},
        ),
    ]


def path_of(verb, name="orders"):
    return f"/deltaforge/api/pipelines/{name}{verb}"


@pytest.mark.parametrize(
    ("value", "answered"),
    [
        (None, (404, "CONNECTION_NOT_FOUND")),
        ({"conn_type": "mysql", "host": "db"}, (422, "WRONG_CONNECTION")),
        ({"conn_type": "deltaforge"}, (502, "WRONG_CONNECTION")),
        ({"conn_type": "deltaforge", "host": "db", "password": SECRET}, (502, "WRONG_CONNECTION")),
        (
            {"conn_type": "deltaforge", "host": "127.0.0.1", "port": 1}
            | {"login": "u", "password": SECRET},
            (503, "TRY_AGAIN"),
        ),
    ],
)
def test_what_is_wrong_with_the_connection_is_explained(rest, monkeypatch, value, answered):
    if value is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(value))
    answer = rest("/pipelines?conn_id=shop")
    assert (answer.status_code, answer.json()["code"]) == answered
    assert len(answer.json()["error"]) > 20
    assert SECRET not in answer.text


def test_who_may_see_no_dag_learns_nothing_of_connections(rest, routes, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "mysql", "host": "db"}))
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, **__: False)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda *_, **__: set())
    ids = ("deltaforge_default", "shop", "nothing")
    answers = {}
    for conn_id in ids:
        for path in (ORDERS, "/pipelines", "/metrics"):
            answer = rest(f"{path}?conn_id={conn_id}")
            answers.setdefault(answer.text.replace(conn_id, "ID"), answer.status_code)
    assert list(answers.values()) == [404]
    assert rest("/connections").json() == []
