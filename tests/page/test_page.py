"""The page behind ``serve``, in a real browser: what it shows, and what it keeps to itself."""

import hashlib
import json
import re
from dataclasses import replace

import httpx
import pytest

from airflow_provider_deltaforge.api.access import on_this_machine
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import Elsewhere
from airflow_provider_deltaforge.api.page import FILES, HEADERS
from airflow_provider_deltaforge.api.server import serving
from airflow_provider_deltaforge.control import snapshots, tokens
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.page.browser import PHONE, opened
from tests.page.fleet import HOSTILE
from tests.waiting import wait_until

TABS = (
    "overview",
    "copies",
    "verification",
    "schemas",
    "structure",
    "dead-letters",
    "log",
    "document",
)
DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: made-here, tenant: acme}
spec:
  source: {type: scripted, config: {id: made-here}}
  sinks: [{type: file, config: {id: files, path: "/tmp/made.jsonl", password: hunter2}}]
"""


def test_the_vendored_files_are_those_that_npm_publishes():
    listed = re.findall(
        r"`([\w.-]+\.js)` \|.*`([0-9a-f]{64})`", (FILES / "vendor/README.md").read_text()
    )
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (FILES / "vendor").glob("*.js")
    }
    assert len(found) == 2
    assert dict(listed) == found


def test_both_kits_have_the_same_components():
    kits = {
        name: set(re.findall(r"^export const (\w+)", (FILES / name).read_text(), re.MULTILINE))
        for name in ("kit_plain.js", "kit_chakra.js")
    }
    asked = set(re.findall(r"\w+", (FILES / "kit.js").read_text().split("{")[1].split("}")[0]))
    assert kits["kit_plain.js"] == kits["kit_chakra.js"] == asked


def test_no_module_puts_markup_of_others_into_the_page():
    for path in FILES.glob("*.js"):
        assert not re.search("dangerouslySetInnerHTML|innerHTML|eval", path.read_text()), path


def test_a_token_is_asked_for_once_and_kept_in_the_tab(served, page):
    page.goto("/")
    page.get_by_label("Token").fill("dft_wrong")
    page.keyboard.press("Enter")
    page.get_by_text("This token is not known").wait_for()
    page.get_by_label("Token").fill(served.tokens["read"])
    page.keyboard.press("Enter")
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_text("You may look at it, not change it.").wait_for()
    for verb in ("Pause", "Stop…", "Delete…", "Reset positions…"):
        assert page.get_by_role("button", name=verb).count() == 0
    assert page.get_by_role("tab", name="Log").count() == 0, "read may not read it"

    page.reload()
    page.get_by_role("tab", name="Overview").wait_for()
    kept = page.evaluate("[location.href, document.cookie, JSON.stringify(localStorage)].join()")
    assert served.tokens["read"] not in kept
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Token").wait_for()
    assert page.evaluate("sessionStorage.length") == 0

    page.get_by_label("Token").fill(tokens.create(served.store, "guest", "read"))
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Overview").wait_for()
    tokens.revoke(served.store, "guest")
    page.get_by_label("Token").wait_for()
    assert page.get_by_text("orders").count() == 0, "what was seen is gone with the token"


def test_what_the_server_cannot_do_is_not_offered(served, browser):
    elsewhere = Elsewhere(documents="none here", starts="nothing does", servers="nobody")
    lent = replace(served.context, starter=None, elsewhere=elsewhere, authority=on_this_machine())
    with serving(create_app(lent), "127.0.0.1:0") as url, opened(browser, url) as page:
        page.goto("/")
        page.get_by_role("link", name="payments", exact=True).wait_for()
        assert page.get_by_role("button", name="New pipeline…").count() == 0
        page.get_by_role("link", name="payments", exact=True).click()
        page.get_by_role("button", name="Delete…").wait_for()
        page.get_by_text("A task of DeltaForgeRewindOperator does it").wait_for()
        for name in ("Start", "Test…", "To files…"):
            assert page.get_by_role("button", name=name).count() == 0


def test_the_list_is_filtered_and_the_view_is_in_the_address(enter):
    page = enter()

    def names(count):
        rows = page.get_by_role("table", name="Pipelines").locator("tbody tr")
        page.wait_for_function("n => document.querySelectorAll('tbody tr').length === n", arg=count)
        return [row.get_by_role("link").inner_text() for row in rows.all()]

    assert names(5) == ["payments", "stock", "clicks", "orders", "visitors"]
    page.get_by_text("35 %, 159,200 rows copied").wait_for()
    assert page.get_by_role("cell", name="deltaforge serve on cdc-1").count() == 5
    page.get_by_label("Tenant").select_option("globex")
    assert names(2) == ["stock", "clicks"]
    page.get_by_label("Label").select_option("team: web")
    assert names(1) == ["clicks"]
    assert "tenant=globex" in page.url
    page.get_by_role("link", name="clicks").click()
    page.get_by_role("heading", name="clicks").wait_for()
    page.go_back()
    assert names(1) == ["clicks"]
    page.goto("/ui/?text=access%20denied")
    assert names(1) == ["payments"]
    page.get_by_label("Find").fill("nothing of the kind")
    page.get_by_text("No pipeline fits the filters.").wait_for()


def test_a_pipeline_shows_its_history_schemas_and_copies(enter):
    page = enter("?pipeline=orders")
    chart = page.get_by_role("img", name="Events per second")
    chart.focus()
    before = chart.get_attribute("aria-labelledby")
    words = page.locator(f"figcaption[id='{before}']")
    assert words.inner_text().endswith("latest")
    page.keyboard.press("ArrowLeft")
    at_key = words.inner_text()
    assert re.search(r"(\d /s|\u2013)\s*\d\d:\d\d", at_key)
    chart.hover(position={"x": 10, "y": 10})
    page.wait_for_function(
        "([id, old]) => document.getElementById(id).innerText !== old", arg=[before, at_key]
    )
    assert page.locator("polyline.df-curve").count() >= 6
    page.get_by_role("button", name="Give up…").click()
    page.get_by_text("What it lacks is recorded as a gap").wait_for()
    page.keyboard.press("Escape")

    page.get_by_role("tab", name="Overview").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("cell", name="12,000").wait_for()
    page.get_by_role("cell", name="rest-5b1f").wait_for()
    page.get_by_role("tab", name="Verification").click()
    page.get_by_text("Some rows differ.").wait_for()
    page.get_by_text('{"id":4711}  {"id":4712}').wait_for()
    page.get_by_text("the table has no key").wait_for()
    page.get_by_role("button", name="Verify now").wait_for()
    page.get_by_role("button", name="Repair").click()
    page.get_by_text("The running stream sends these rows again.").wait_for()
    page.get_by_role("tab", name="Copies").click()
    page.get_by_text("rows that verification 9925d1771133 found to differ").wait_for()
    page.get_by_role("tab", name="Schemas").click()
    page.get_by_role("cell", name="varchar(40)", exact=True).wait_for()
    compared = page.get_by_role("table", name="Differences")
    assert [row.inner_text().split("\t") for row in compared.locator("tbody tr").all()] == [
        ["note", "varchar(40)", "varchar(200)"],
        ["amount", "absent", "decimal(10,2), NOT NULL"],
    ]
    page.get_by_role("tab", name="Structure").click()
    page.get_by_text("spec.schema_sensing.enabled").first.wait_for()


def test_a_copy_that_an_airflow_task_asked_for_is_withdrawn(served, enter):
    asked = "airflow:orders_resnapshot/snapshot/manual__2026-01-05T00:00:00+00:00/-1"
    snapshots.request(served.store, "payments", CopySelection(), asked, f"{asked}#1@0123abcd")
    page = enter("?pipeline=payments&tab=copies")
    page.get_by_role("row", name=asked).get_by_role("button", name="Withdraw").click()
    page.get_by_text("cancelled: withdrawn by").wait_for()

    assert snapshots.request_state(served.store, "payments", asked).state == "cancelled"


def test_the_log_is_delivered_again_once_its_place_was_found(served, enter):
    page = enter("?pipeline=orders")
    rewinds = page.get_by_role("table", name="Rewinds")
    running = rewinds.locator("tbody tr").filter(has_text="search")
    for text in ("running", "binlog.000040", "shop.orders", "8.4 s behind", "DAG refill", "no log"):
        running.get_by_text(text).first.wait_for()
    rewinds.locator("tbody tr").filter(has_text="requested").wait_for()
    page.get_by_role("button", name="To every sink…").click()
    page.get_by_label("From").fill("soon")
    page.get_by_role("button", name="Find the place").click()
    page.get_by_text("no number of a transaction").wait_for()
    page.get_by_label("From").fill("40")
    page.get_by_role("button", name="Find the place").click()
    page.get_by_text("files: every change behind {'tx': 40} is delivered again").wait_for()
    assert not any(wish.sink == "files" for wish in Gaps(served.store, "orders").wishes())
    page.get_by_role("button", name="Deliver it again").click()
    page.get_by_role("dialog").wait_for(state="hidden")
    [wish] = [wish for wish in Gaps(served.store, "orders").wishes() if wish.sink == "files"]
    assert (wish.to, wish.by) == ({"tx": 40}, "rest: token admin")


def test_names_and_values_are_text_on_a_phone_in_the_dark(served, browser):
    with opened(browser, served.url, viewport=PHONE, color_scheme="dark") as page:
        page.goto("/ui/")
        token = served.tokens["admin"]
        page.evaluate(f"sessionStorage.setItem('deltaforge-token', {token!r})")
        for query in ("", *(f"?pipeline=visitors&tab={tab}" for tab in TABS)):
            page.goto(f"/ui/{query}")
            page.locator(":is([role=tabpanel], .df-stack) :is(table, pre, p)").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], query
            assert page.locator("#page :is(img, script, iframe)").count() == 0
        page.goto("/ui/?pipeline=visitors&tab=structure&sensed=shop.clicks:meta")
        page.get_by_text(f"one of {', '.join(sorted(HOSTILE))}").wait_for()
        page.get_by_text(f"meta.{HOSTILE[0]}", exact=True).last.wait_for()
        page.get_by_text(" · ".join(HOSTILE[:5]), exact=True).wait_for()
        page.get_by_text("As JSON Schema").click()
        page.get_by_text("json-schema.org").wait_for()
        page.goto("/ui/?pipeline=visitors&tab=dead-letters")
        for text in (HOSTILE[0], HOSTILE[1], HOSTILE[4]):
            page.get_by_text(text, exact=True).first.wait_for()
        page.get_by_role("button", name="Look").first.click()
        page.get_by_text("source_cursor").wait_for()
        assert page.title() == "DeltaForge"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert max(map(int, re.findall(r"\d+", ground))) < 60


INJECTED = """
const taken = "document.title='taken'";
document.body.insertAdjacentHTML("beforeend", `<img src=x onerror="${taken}">`);
const script = Object.assign(document.createElement("script"), { text: taken });
document.body.append(script);
"""


def test_the_policy_stops_what_would_run_in_spite_of_that(served, browser):
    for path in ("/ui/", "/ui/serve.js"):
        headers = httpx.get(f"{served.url}{path}").headers
        assert {key: headers.get(key) for key in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    page = browser.new_page(base_url=served.url)
    page.goto("/ui/")
    page.evaluate(INJECTED)
    page.wait_for_timeout(300)
    assert page.title() == "DeltaForge"
    page.close()


def test_what_costs_something_asks_first_and_can_be_left_by_keyboard(served, enter):
    page = enter("?pipeline=payments")
    control = Control(served.store, "payments")
    control.update(lambda old: old.model_copy(update={"desired": "stopped"}))
    page.get_by_role("button", name="Reset positions…").focus()
    page.keyboard.press("Enter")
    ready = page.get_by_role("button", name="Forget them")
    assert ready.is_disabled()
    page.get_by_label("Type payments to confirm").fill("payment")
    assert ready.is_disabled()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert page.evaluate("document.activeElement.innerText") == "Reset positions…"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"

    page.keyboard.press("Enter")
    page.get_by_label("Type payments to confirm").fill("payments")
    with page.expect_response(lambda answer: "checkpoints" in answer.url) as answer:
        page.keyboard.press("Enter")
    assert (answer.value.request.method, answer.value.status) == ("DELETE", 200)
    page.get_by_role("dialog").wait_for(state="hidden")


def test_a_document_is_checked_and_becomes_a_pipeline(served, enter):
    page = enter()
    page.get_by_role("button", name="New pipeline…").click()
    page.get_by_label("Document").fill(DOCUMENT.replace("scripted", "scriptd"))
    page.get_by_role("button", name="Check").click()
    page.get_by_text("line 6: spec.source.type: unknown source 'scriptd'").wait_for()
    page.get_by_label("Document").fill(DOCUMENT.replace(", password: hunter2", ""))
    page.get_by_role("button", name="Check").click()
    page.get_by_text("The document is right").wait_for()
    page.get_by_role("button", name="Create and start").click()
    page.get_by_role("heading", name="made-here").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    page.get_by_role("tab", name="Log").click()
    page.get_by_text("fake driver started").wait_for()
    page.get_by_role("tab", name="Document").click()
    page.get_by_role("button", name="Change…").click()
    page.get_by_label("What changes").fill("spec: {batch: {max_mss: 7}}")
    page.get_by_role("button", name="Change it").click()
    page.get_by_text("spec.batch.max_mss: unknown").wait_for()
    page.get_by_label("What changes").fill("spec: {batch: {max_ms: 7}}")
    page.get_by_role("button", name="Change it").click()
    page.get_by_text('"max_ms": 7').wait_for()
    page.get_by_role("button", name="Stop…").click()
    page.get_by_role("button", name="Stop it").click()
    page.get_by_role("button", name="Start").wait_for()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_label("Type made-here to confirm").fill("made-here")
    page.get_by_role("button", name="Delete it").click()
    page.get_by_role("table", name="Pipelines").wait_for()
    wait_until(lambda: Control(served.store, "made-here").read() is None)


def test_what_cannot_be_shown_is_explained(served, enter):
    page = enter("?pipeline=nothing")
    page.get_by_text("No such pipeline").wait_for()

    away = {"error": "no store", "code": "TRY_AGAIN", "message": "no store at `db`"}
    page.route(
        "**/pipelines/orders", lambda route: route.fulfill(status=503, body=json.dumps(away))
    )
    page.goto("/ui/?pipeline=orders")
    page.get_by_text("The state store, or a server, is away").wait_for()
    page.unroute("**/pipelines/orders")
    page.get_by_role("tab", name="Overview").wait_for()
    page.route("**/pipelines/orders", lambda route: route.abort())
    page.get_by_text("The server does not answer; what is below is old").wait_for()
    assert page.get_by_role("tab", name="Overview").is_visible()
    page.unroute("**/pipelines/orders")
    page.get_by_text("below is old").wait_for(state="hidden")

    page.clock.install()
    page.route("**/pipelines/stock", lambda route: None)
    page.goto("/ui/?pipeline=stock")
    page.get_by_text("Loading").wait_for()
    page.clock.fast_forward(5000)
    page.get_by_text("Still waiting for an answer").wait_for()
    refused = {"error": "no", "code": "FORBIDDEN", "message": "this needs read"}
    page.route(
        "**/pipelines/clicks", lambda route: route.fulfill(status=403, body=json.dumps(refused))
    )
    page.goto("/ui/?pipeline=clicks")
    page.get_by_text("You may not do this").wait_for()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_document_of_another_type_is_refused(served, kind):
    headers = {"Authorization": f"Bearer {served.tokens['admin']}", "Content-Type": kind}
    answer = httpx.post(f"{served.url}/validate", content=DOCUMENT, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


def test_a_yaml_document_keeps_its_own_text(served):
    headers = {"Authorization": f"Bearer {served.tokens['admin']}"}

    def send(content, kind="application/yaml; charset=utf-8"):
        more = {**headers, "Content-Type": kind}
        return httpx.post(f"{served.url}/validate", content=content, headers=more)

    assert send(DOCUMENT.replace(", password: hunter2", "")).json()["pipeline"] == "made-here"
    assert send(b"\xff").status_code == 422
    assert send(b"[" * 100_000).status_code == 400
    assert send(b"[" * 100_000, "application/json").status_code == 422
    assert send(b"a: 1\na: 2").status_code == 400
