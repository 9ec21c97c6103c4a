"""The page of the UI: its endpoints in Airflow's own application, a real database and store."""

import json
import os
import re
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import owner_token
from airflow_provider_deltaforge.plugins_airflow import page
from airflow_provider_deltaforge.plugins_airflow.advice import advice
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.airflow.page_bench import JSON, READ, SECRET
from tests.control.bench import DOCUMENT
from tests.waiting import wait_until


def test_the_entry_point_is_the_only_source_of_the_plugin_and_it_loads():
    from airflow import plugins_manager

    points = [
        point for point in entry_points(group="airflow.plugins") if point.name == "deltaforge"
    ]
    loaded, errors = plugins_manager._get_plugins()

    assert [point.load() for point in points] == [page.DeltaForgePlugin]
    assert [one.name for one in loaded].count("deltaforge") == 1
    assert errors == {}


def test_importing_the_plugin_brings_no_web_framework():
    """Every component imports it; the test process has imported everything, so ask another."""
    asked = (
        "import sys, airflow.plugins_manager\n"
        "before = set(sys.modules)\n"
        "import airflow_provider_deltaforge.plugins_airflow.page\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=os.environ
    )

    brought = done.stdout.split()
    ours = [name for name in brought if name.startswith("airflow_provider_deltaforge")]
    assert "airflow_provider_deltaforge.plugins_airflow.page" in ours
    assert set(brought) == set(ours)


@pytest.mark.parametrize(
    "path",
    ["/pipelines", "/pipelines/orders", "/pipelines/orders/log", "/pipelines/orders/document"],
)
def test_nobody_is_answered_without_signing_in(ask, orders, path):
    assert ask(path, role=None).status_code == 401
    assert ask(path, role="viewer").status_code == 200


def test_the_description_of_the_endpoints_is_not_published(ask):
    assert {ask(path).status_code for path in ("/docs", "/redoc", "/openapi.json")} == {404}


def test_a_viewer_looks_and_changes_nothing(ask, orders):
    refused = ask("/pipelines/orders/stop", "viewer", "POST", headers=JSON, content="{}")
    told = ask("/pipelines/orders", "viewer").json()["pipeline"]

    assert refused.status_code == 403
    assert orders.read().desired == "running"
    assert told["may_change"] is False
    assert ask("/pipelines/orders", "user").json()["pipeline"]["may_change"] is True


def test_a_pipeline_without_a_dag_is_changed_by_who_may_edit_its_connection(ask, orders):
    orders.update(lambda old: old.model_copy(update={"owner": "deltaforge run"}))
    post = {"method": "POST", "headers": dict(JSON), "content": "{}"}

    assert ask("/pipelines/orders/pause", "user", **post).status_code == 403
    assert ask("/pipelines/orders/pause", "admin", **post).status_code == 200
    assert orders.read().desired == "paused"


def test_pause_resume_and_stop_reach_the_driver(ask, orders, store, backend):
    def send(verb):
        answer = ask(f"/pipelines/orders/{verb}", "user", "POST", headers=dict(JSON), content="{}")
        assert answer.status_code == 200, answer.text
        return answer.json()["pipeline"]["desired"]

    assert send("pause") == "paused"
    wait_until(lambda: status(store, "orders", backend).status == "paused")
    assert send("resume") == "running"
    wait_until(lambda: status(store, "orders", backend).status == "running")
    assert send("stop") == "stopped"
    wait_until(lambda: status(store, "orders", backend).status == "stopped")
    late = ask("/pipelines/orders/pause", "user", "POST", headers=dict(JSON), content="{}")
    assert (late.status_code, late.json()["code"]) == (409, "not_now")


def test_who_stopped_a_pipeline_stands_in_the_audit_log(ask, orders):
    from airflow.models import Log
    from airflow.utils.session import create_session

    ask("/pipelines/orders/pause", "user", "POST", headers=dict(JSON), content="{}")

    with create_session() as session:
        entry = session.query(Log).filter_by(event="deltaforge_pipeline").order_by(Log.id).all()[-1]
        assert entry.owner == "user"
        assert json.loads(entry.extra) == {"name": "orders", "verb": "pause", "method": "POST"}


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_form_of_another_site_changes_nothing(ask, orders, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = ask("/pipelines/orders/stop", "admin", "POST", headers=headers, content="{}")

    assert answer.status_code == 415
    assert orders.read().desired == "running"


@pytest.mark.parametrize("body", ["", "{", "\xff"])
def test_a_body_that_is_no_json_is_refused_in_words(ask, orders, body):
    answer = ask("/pipelines/orders/stop", method="POST", headers=dict(JSON), content=body)

    assert (answer.status_code, answer.json()["code"]) == (422, "no_json")
    assert orders.read().desired == "running"


def test_an_unknown_verb_and_an_unknown_pipeline_are_not_found(ask, orders):
    verb = ask("/pipelines/orders/destroy", method="POST", headers=dict(JSON), content="{}")
    name = ask("/pipelines/nothing")

    assert (verb.status_code, verb.json()["code"]) == (404, "unknown_verb")
    assert (name.status_code, name.json()["code"]) == (404, "unknown_pipeline")


def test_the_list_is_of_one_dag_if_one_is_named(ask, orders):
    def names(path):
        return [one["name"] for one in ask(path).json()["pipelines"]]

    assert names("/pipelines") == ["orders"]
    assert names("/pipelines?dag_id=shop") == ["orders"]
    assert names("/pipelines?dag_id=other") == []


def test_a_pipeline_of_a_dag_one_may_not_see_is_not_there(ask, orders, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def hidden(self, *, details=None, **_):
        return details is None or details.id != "shop"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", hidden)

    assert ask("/pipelines").json()["pipelines"] == []
    for path in ("", "/log", "/document"):
        assert ask(f"/pipelines/orders{path}").status_code == 404
    stop = ask("/pipelines/orders/stop", method="POST", headers=dict(JSON), content="{}")
    assert stop.status_code == 404
    assert orders.read().desired == "running"


def test_the_details_tell_what_the_store_holds(ask, orders):
    told = ask("/pipelines/orders").json()["pipeline"]

    assert told["status"] == "running"
    assert told["lag_ms"] == 12
    assert told["tables"]["shop.orders"]["c"] > 0
    assert told["sinks"]["files"]["events"] > 0
    assert told["snapshot"]["tables"]["shop.orders"]["rows"] == 25
    assert told["supervisor"]["dag_id"] == "shop"
    assert told["supervisor"]["try_number"] == 2
    assert told["driver"]["job"] == "running"
    assert [request["id"] for request in told["requests"]] == ["again"]
    assert [(one["id"], one["rows"]) for one in told["results"]] == [("first", 7)]


def test_the_log_is_the_drivers_without_secrets(ask, orders):
    place = Path(orders.read().handle["directory"]) / "driver.log"
    with place.open("a") as log:
        log.write(f"connecting to mysql://app:{SECRET}@db/shop password={SECRET}\n")

    told = ask("/pipelines/orders/log?lines=2").json()

    assert len(told["lines"]) == 2
    assert told["lines"][-1].startswith("connecting to mysql://app:***@db/shop")
    assert told["missing"] is None
    assert ask("/pipelines/orders/log?lines=0").status_code == 422


def test_of_a_very_long_log_only_the_end_is_read(ask, orders):
    place = Path(orders.read().handle["directory"]) / "driver.log"
    with place.open("a") as log:
        log.writelines(f"{number:07d} {'x' * 992}\n" for number in range(3000))

    lines = ask("/pipelines/orders/log?lines=2000").json()["lines"]

    assert lines[-1].startswith("0002999 ")
    assert 1000 < len(lines) < 1100
    assert all(len(line) == 1000 for line in lines)


def test_a_log_on_another_host_is_named_with_its_place(ask, orders):
    elsewhere = {**orders.read().handle, "host": f"not-{socket.gethostname()}"}
    orders.update(lambda old: old.model_copy(update={"handle": elsewhere}))

    told = ask("/pipelines/orders/log").json()

    assert told["lines"] == []
    assert elsewhere["host"] in told["missing"]
    assert elsewhere["directory"] in told["missing"]


def test_no_answer_holds_a_secret(ask, orders, store, monkeypatch):
    """Planted in the environment of a variable, and written out in a document and a reason."""
    monkeypatch.setenv("OUTPUT", f"/{SECRET}")
    text = DOCUMENT.replace("metadata:", f"# password: of {SECRET}\nmetadata:")
    pipelines.apply(store, text)
    paths = (
        "/pipelines",
        "/pipelines/orders",
        "/pipelines/orders/log",
        "/pipelines/orders/document",
    )
    answers = [ask(path).text for path in paths]

    assert "${OUTPUT}" in answers[-1]
    assert not [answer for answer in answers if SECRET in answer]


@pytest.mark.parametrize(
    ("value", "answered"),
    [
        pytest.param(None, (404, "no_connection"), id="no connection"),
        pytest.param({"conn_type": "mysql", "host": "db"}, (422, "wrong_connection"), id="type"),
        pytest.param({"conn_type": "deltaforge"}, (502, "store_refused"), id="names no store"),
        pytest.param(
            {
                "conn_type": "deltaforge",
                "host": "127.0.0.1",
                "port": 1,
                "login": "df",
                "password": SECRET,
            },
            (503, "store_away"),
            id="store is away",
        ),
    ],
)
def test_what_is_wrong_with_the_connection_is_said_in_words(ask, monkeypatch, value, answered):
    monkeypatch.delenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", raising=False)
    if value is not None:
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(value))

    answer = ask("/pipelines?conn_id=shop")

    assert (answer.status_code, answer.json()["code"]) == answered
    assert len(answer.json()["detail"]) > 20
    assert SECRET not in answer.text


@pytest.fixture
def kinds(orders, monkeypatch):
    """Connections to probe: one that names the store, one of another type, none."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "mysql", "host": "db"}))
    return "deltaforge_default", "shop", "nothing"


def test_who_may_see_no_dag_learns_nothing_of_connections(ask, kinds, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    asked = []
    found = DeltaForgeHook.get_connection
    monkeypatch.setattr(DeltaForgeHook, "get_connection", lambda *a: asked.append(a) or found(*a))
    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", lambda *_, **__: False)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda *_, **__: set())

    answers = [ask(f"{path}?conn_id={kind}") for path in READ for kind in kinds]

    told = {re.sub("deltaforge_default|shop|nothing", "ID", answer.text) for answer in answers}
    assert {answer.status_code for answer in answers} == {404}
    assert len(told) == 1
    assert asked == []


def test_who_may_see_one_dag_alone_is_answered(ask, orders, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def only_shop(self, *, details=None, **_):
        return details is not None and details.id == "shop"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", only_shop)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda *_, **__: {"shop"})

    assert [one["name"] for one in ask("/pipelines").json()["pipelines"]] == ["orders"]


def test_a_connection_of_another_type_is_there_for_who_may_read_connections(ask, kinds):
    def told(role):
        answers = [ask(f"/pipelines?conn_id={kind}", role).json() for kind in kinds]
        return [answer.get("code") for answer in answers]

    assert told("viewer") == [None, "no_connection", "no_connection"]
    assert told("admin") == [None, "wrong_connection", "no_connection"]


def test_a_lost_position_is_cured_by_what_its_advice_names():
    from airflow_provider_deltaforge.operators import control

    operator, action = re.findall("`(.+?)`", advice("failed", "position_lost", watched=True))

    assert hasattr(control, operator)
    assert action in control._ACTIONS


def test_the_owner_token_of_the_operators_is_understood():
    from types import SimpleNamespace

    ti = SimpleNamespace(
        dag_id="team.shop", task_id="g.stream", run_id="a/b+c", map_index=3, try_number=4
    )

    assert Supervisor.of(owner_token({"ti": ti})) == Supervisor(
        "team.shop", "g.stream", "a/b+c", 3, 4
    )
    assert Supervisor.of("cli:host:77") is None
    assert Supervisor.of(None) is None


def test_the_connections_to_choose_from_are_ours_alone(ask, orders, monkeypatch):
    from airflow.models import Connection
    from airflow.utils.session import create_session

    monkeypatch.setenv("AIRFLOW_CONN_ARCHIVE", f"deltaforge://app:{SECRET}@db/archive")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", f"mysql://app:{SECRET}@db/shop")
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", "{")
    with create_session() as session:
        session.add(Connection(conn_id="stored", conn_type="deltaforge", host="db"))
        session.add(Connection(conn_id="other", conn_type="http", host="db"))
    try:
        told = ask("/connections", "viewer").json()
    finally:
        with create_session() as session:
            session.query(Connection).delete()

    assert told == {"connections": ["deltaforge_default", "archive", "stored"]}


def test_an_empty_store_answers_with_an_empty_list(ask, monkeypatch, tmp_path):
    extra = {"path": str(tmp_path / "new.db")}
    monkeypatch.setenv(
        "AIRFLOW_CONN_EMPTY", json.dumps({"conn_type": "deltaforge", "extra": extra})
    )
    StoreLocation.from_dsn(f"sqlite:///{extra['path']}").create().close()

    assert ask("/pipelines?conn_id=empty").json()["pipelines"] == []
