"""The REST API as its callers meet it: over HTTP, with a token, and with fake drivers."""

import copy
import threading

import pytest
import yaml

from airflow_provider_deltaforge.control import pipelines, tokens
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.driver_logs import DriverLogs, LogTail
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.api.conftest import DOCUMENT
from tests.waiting import wait_until


def named(name, **metadata):
    document = copy.deepcopy(DOCUMENT)
    document["metadata"] = {**document["metadata"], "name": name, **metadata}
    document["spec"]["source"]["config"]["id"] = f"{name}-db"
    return document


@pytest.fixture
def orders(rest):
    """The path of a pipeline that runs."""
    assert rest.post("/pipelines", json=DOCUMENT).status_code == 200
    wait_until(lambda: rest.get("/pipelines/orders").json()["status"] == "running")
    return "/pipelines/orders"


@pytest.fixture
def kept(server):
    """The path of a pipeline that nobody has started."""
    pipelines.apply(server.store, yaml.safe_dump(DOCUMENT))
    return "/pipelines/orders"


def test_a_pipeline_is_made_seen_and_forgotten(rest, orders, server):
    shown = rest.get(orders).json()
    assert (shown["name"], shown["spec"]) == ("orders", DOCUMENT)
    assert shown["ops"]["events"] > 0
    assert shown["ops"]["handle"] is None
    assert [info["name"] for info in rest.get("/pipelines").json()] == ["orders"]

    assert rest.delete(orders).status_code == 204
    assert rest.get(orders).status_code == 404
    assert Control.list_pipelines(server.store) == []


def test_one_that_is_there_is_not_made_again(rest, orders):
    generation = rest.get(orders).json()["ops"]["generation"]
    answer = rest.post("/pipelines", json=DOCUMENT)
    assert (answer.status_code, answer.json()["code"]) == (409, "PIPELINE_ALREADY_EXISTS")
    assert rest.get(orders).json()["ops"]["generation"] == generation


def test_of_two_that_make_it_at_once_the_server_lets_one(client):
    answers = []

    def create():
        answers.append(client().post("/pipelines", json=DOCUMENT).status_code)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 409, 409, 409]


def test_it_is_paused_resumed_stopped_and_started_again(rest, orders):
    def after(verb):
        answer = rest.post(f"{orders}/{verb}")
        assert answer.status_code == 200
        return answer.json()["status"]

    assert [after(verb) for verb in ("pause", "pause", "resume", "stop", "stop")] == [
        *("paused", "paused", "running", "stopped", "stopped")
    ]
    answer = rest.post(f"{orders}/pause")
    assert (answer.status_code, answer.json()["code"]) == (409, "NOT_NOW")
    rest.post(f"{orders}/resume")
    wait_until(lambda: rest.get(orders).json()["status"] == "running")


def test_the_log_is_delivered_again_once_that_is_confirmed(rest, orders, server):
    checkpoints = Checkpoints(server.store, "orders", "shop-db")
    server.store.transact([checkpoints.put("files", {"tx": 9})])

    answer = rest.post(f"{orders}/rewind", json={"to": "4"})
    assert (answer.status_code, answer.json()["code"]) == (400, "NOT_CONFIRMED")
    assert "every change behind {'tx': 4}" in answer.json()["message"]
    answer = rest.post(f"{orders}/rewind", json={"to": "4", "dry_run": True})
    assert (answer.status_code, answer.json()["to"]) == (200, {"tx": 4})
    assert "every change behind {'tx': 4}" in answer.json()["summary"]
    assert Gaps(server.store, "orders").wishes() == []
    asked = {"to": "4", "tables": ["script.rows"], "confirm": "orders"}
    answer = rest.post(f"{orders}/sinks/files/rewind", json=asked)
    assert (answer.status_code, answer.json()["sinks"]) == (202, {"files": {"tx": 9}})
    [wish] = Gaps(server.store, "orders").wishes()
    assert (wish.to, wish.tables) == ({"tx": 4}, ("script.rows",))
    assert wish.by.startswith("rest: ")
    answer = rest.post(f"{orders}/sinks/gone/rewind", json=asked)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_a_patch_is_laid_over_the_document_and_starts_the_pipeline_anew(rest, orders):
    before = rest.get(orders).json()["ops"]["generation"]
    patch = {
        "metadata": {"labels": {"tier": None, "zone": "b"}},
        "spec": {
            "batch": {"max_events": 1000, "max_ms": 500},
            "sinks": [
                {"config": {"id": "files", "path": "/tmp/other.jsonl"}},
                {"type": "file", "config": {"id": "more", "path": "/tmp/more.jsonl"}},
            ],
        },
    }
    answer = rest.patch(orders, json=patch)
    assert answer.status_code == 200
    spec = answer.json()["spec"]
    assert spec["metadata"]["labels"] == {"team": "data", "zone": "b"}
    assert spec["spec"]["batch"] == {"max_events": 1000, "max_ms": 500}
    assert spec["spec"]["sinks"] == [
        {"type": "file", "config": {"id": "files", "path": "/tmp/other.jsonl"}},
        {"type": "file", "config": {"id": "more", "path": "/tmp/more.jsonl"}},
    ]
    assert answer.json()["ops"]["generation"] == before + 1

    answer = rest.patch(orders, json={"spec": {"sinks": [{"id": "files", "$remove": True}]}})
    assert [sink["config"]["id"] for sink in answer.json()["spec"]["spec"]["sinks"]] == ["more"]


def test_a_patch_changes_no_word_of_what_it_does_not_name(rest, server):
    """YAML 1.1 would read most of these as numbers, times and truth values."""
    words = {"country": "NO", "at": "12:30", "day": "2024-01-01", "size": "1e3", "mode": "on"}
    document = named("words", labels=words)
    pipelines.apply(server.store, yaml_of_words(document, words))
    assert rest.get("/pipelines/words").json()["spec"]["metadata"]["labels"] == words
    answer = rest.patch("/pipelines/words", json={"spec": {"batch": {"max_events": 7}}})
    assert answer.json()["spec"]["metadata"]["labels"] == words
    assert rest.post("/pipelines", json=named("others", labels=words)).status_code == 200
    kept = rest.get("/pipelines/others").json()["spec"]
    assert kept["metadata"]["labels"] == words


def yaml_of_words(document, words):
    """Return a document as people write it; 1e3 alone needs its quotes."""
    text = yaml.safe_dump(document)
    for word in words.values():
        text = text.replace(f"'{word}'", word if word != "1e3" else f"'{word}'")
    return text.replace("size: 1e3", "size: '1e3'")


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"metadata": {"name": "other"}}, "PIPELINE_NAME_MISMATCH"),
        ({"spec": {"sinks": [{"id": "nowhere", "$remove": True}]}}, "INVALID_REQUEST"),
        ({"spec": {"batch": {"max_event": 3}}}, "INVALID_REQUEST"),
        ({"spec": None}, "INVALID_REQUEST"),
    ],
)
def test_a_patch_that_is_wrong_changes_nothing(rest, orders, patch, code):
    before = rest.get(orders).json()
    answer = rest.patch(orders, json=patch)
    assert (answer.status_code, answer.json()["code"]) == (400, code)
    after = rest.get(orders).json()
    assert after["spec"] == before["spec"]
    assert (after["status"], after["ops"]["generation"]) == ("running", 1)


def test_a_stopped_pipeline_stays_stopped_when_it_is_changed(rest, orders):
    rest.post(f"{orders}/stop")
    answer = rest.patch(orders, json={"spec": {"batch": {"max_events": 7}}})
    assert answer.json()["status"] == "stopped"
    assert answer.json()["spec"]["spec"]["batch"] == {"max_events": 7}


def test_the_list_is_filtered_by_label_status_and_tenant(rest):
    rest.post("/pipelines", json=named("one"))
    rest.post("/pipelines", json=named("two", tenant="beta", labels={"team": "web"}))
    rest.post("/pipelines/two/stop")
    wait_until(lambda: rest.get("/pipelines/one").json()["status"] == "running")

    def found(**query):
        answer = rest.get("/pipelines", params=query)
        assert answer.status_code == 200
        return [info["name"] for info in answer.json()]

    assert found() == ["one", "two"]
    assert found(label="team") == ["one", "two"]
    assert found(label="team:data") == found(label="team=data") == ["one"]
    assert found(label=["team:data", "tier:1"]) == ["one"]
    assert found(label=["team:data", "tier:2"]) == []
    assert found(tenant="beta") == found(status="stopped") == ["two"]


def test_checkpoints_are_shown_and_reset_with_confirmation_only(rest, orders):
    assert rest.get(f"{orders}/checkpoints").json() == []
    for path in (f"{orders}/checkpoint", f"{orders}/checkpoints"):
        answer = rest.delete(path)
        assert (answer.status_code, answer.json()["code"]) == (400, "NOT_CONFIRMED")
        answer = rest.delete(path, params={"confirm": "orders"})
        assert (answer.status_code, answer.json()["code"]) == (409, "NOT_NOW")
    rest.post(f"{orders}/stop")
    answer = rest.delete(f"{orders}/checkpoint", params={"confirm": "orders"})
    assert answer.json() == {"name": "orders", "reset": True}


def test_a_snapshot_is_asked_for_and_withdrawn(rest, orders):
    answer = rest.post(f"{orders}/snapshots", json={"tables": ["shop.orders"], "id": "again"})
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert rest.get(f"{orders}/snapshots/again").json()["tables"] == ["shop.orders"]
    assert [each["id"] for each in rest.get(f"{orders}/snapshots").json()["requests"]] == ["again"]
    assert rest.delete(f"{orders}/snapshots/again").json() == {"id": "again", "withdrawn": True}
    assert rest.get(f"{orders}/snapshots/never").status_code == 404
    wrong = rest.post(f"{orders}/snapshots", json={"where": "id > 3"})
    assert (wrong.status_code, "where" in wrong.json()["error"]) == (400, True)


def test_dead_letters_are_counted_replayed_and_forgotten(rest, orders):
    queue = f"{orders}/journal/dlq"
    assert rest.get(queue).json() == []
    assert rest.get(f"{queue}/count", params={"sink_id": "files"}).json() == {"count": 0}
    assert rest.post(f"{queue}/ack", json={"up_to_seq": 5}).json() == {"acked": 0}
    assert rest.delete(queue).json() == {"purged": 0}
    assert rest.post(f"{queue}/replay", json={}).status_code == 400
    ticket = rest.post(f"{queue}/replay", json={"all": True}).json()["ticket"]
    assert rest.get(f"{queue}/replays/{ticket}").json()["state"] == "pending"
    assert rest.get(f"{queue}/replays/none").status_code == 404
    assert rest.get(queue, params={"limit": 1001}).status_code == 422


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/journal/dlq/replay", r'{"table": "\ud800"}'),
        ("/journal/dlq/replay", r'{"all": true, "sink_id": "a\udfff"}'),
        ("/journal/dlq/replay", r'{"\ud800": 1}'),
        ("/journal/dlq/ack", r'{"up_to_seq": "\ud800"}'),
        ("/snapshots", r'{"tables": ["script.rows"], "id": "\ud800"}'),
        ("/snapshots", r'{"tables": ["\ud800"]}'),
        ("/snapshots", r'{"tables": ["script.rows"], "where": "\ud800"}'),
        ("/verify", r'{"sinks": ["files", "\ud800"]}'),
        ("/rewind", r'{"to": "\ud800"}'),
    ],
)
def test_half_a_character_is_refused(rest, kept, path, body):
    answer = rest.post(f"{kept}{path}", content=body, headers={"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")


def test_both_halves_of_a_character_are_taken(rest, kept):
    body = r'{"tables": ["script.rows"], "id": "\ud83d\udcb6"}'
    headers = {"Content-Type": "application/json"}
    answer = rest.post(f"{kept}/snapshots", content=body, headers=headers)

    assert (answer.status_code, answer.json()["id"]) == (202, "\U0001f4b6")


@pytest.mark.parametrize(
    "request_id",
    [
        "",
        "x" * 1001,
        "a\nWARNING forged",
        "a\r",
        "a\n",
        "\x1b[2K",
        "a\x85b",
        "a\u2028b",
        "a\u202eb",
        "\x00",
    ],
)
def test_an_id_that_could_forge_a_line_of_a_log_is_refused(rest, kept, request_id):
    answer = rest.post(f"{kept}/snapshots", json={"tables": ["script.rows"], "id": request_id})

    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "request_id",
    [
        "airflow:shop.dag/copy__one/scheduled__2026-03-05T10:00:00.000000+00:00/-1",
        "airflow:Bestellungen ä/копия/manual__2026-03-05T10:00:00+00:00_aB3/17",
        "x" * 1000,
    ],
)
def test_ids_of_airflow_are_taken(rest, kept, request_id):
    answer = rest.post(f"{kept}/snapshots", json={"tables": ["script.rows"], "id": request_id})

    assert (answer.status_code, answer.json()["id"]) == (202, request_id)


@pytest.mark.parametrize("number", [2**63, 10**23, 10**400])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/journal/dlq", "after"),
        ("/schemas/script/rows", "version"),
        ("/schemas/script/rows", "sequence"),
        ("/log", "lines"),
        ("/history", "since"),
    ],
)
def test_a_number_that_is_too_large_is_refused(rest, kept, path, name, number):
    answer = rest.get(f"{kept}{path}", params={name: number})

    assert 400 <= answer.status_code < 500, answer.text


def test_a_driver_shows_the_end_of_its_log(rest, orders):
    assert "fake driver started" in rest.get(f"{orders}/log").json()["lines"][0]


def test_a_log_of_another_machine_is_what_its_driver_shipped(rest, orders, server):
    control = Control(server.store, "orders")
    handle = control.read().handle
    control.update(lambda old: old.model_copy(update={"handle": {**handle, "host": "far"}}))
    assert rest.get(f"{orders}/log").json()["missing"].startswith("No driver")
    tail = LogTail(driver="it", generation=1, host="far", at_ms=7, lines=["one", "two"])
    logs = DriverLogs(server.store, "orders")
    server.store.transact([logs.put("driver", tail)], Fence("epochs", "orders", control.epoch()))
    answer = rest.get(f"{orders}/log", params={"lines": 1}).json()
    control.update(lambda old: old.model_copy(update={"handle": handle}))
    assert answer == {"lines": ["two"], "host": "far", "at_ms": 7, "missing": None}


def test_one_that_is_about_to_stop_is_started_again(rest, orders, server):
    before = rest.get(orders).json()["ops"]["generation"]
    pipelines.ask_to_stop(server.store, "orders")
    assert rest.post(f"{orders}/resume").status_code == 200
    wait_until(lambda: rest.get(orders).json()["status"] == "running")
    assert rest.get(orders).json()["ops"]["generation"] == before + 1


def test_a_document_is_checked_without_being_kept(rest):
    assert rest.post("/validate", json=DOCUMENT).json() == {
        "valid": True,
        "pipeline": "orders",
        "source_type": "scripted",
        "sink_count": 1,
    }
    wrong = copy.deepcopy(DOCUMENT)
    wrong["spec"]["sinks"][0]["config"]["pth"] = "x"
    answer = rest.post("/validate", json=wrong)
    assert (answer.status_code, "pth" in answer.json()["error"]) == (400, True)
    assert rest.get("/pipelines").json() == []


@pytest.mark.parametrize("path", ["/pipelines/none", "/nothing", "/pipelines/none/schemas"])
def test_every_error_has_one_body(rest, path):
    answer = rest.get(path)
    assert answer.status_code == 404
    assert set(answer.json()) == {"error", "code", "message"}
    assert answer.json()["error"] == answer.json()["message"]


@pytest.mark.parametrize(
    ("content", "status"), [(b"{", 422), (b"[]", 422), (b"x" * 3_000_000, 413)]
)
def test_a_body_that_is_no_document_is_refused(rest, content, status):
    def parts():
        yield content

    headers = {"Content-Type": "application/json"}
    for body in (content, parts()):
        answer = rest.post("/pipelines", content=body, headers=headers)
        assert (answer.status_code, set(answer.json())) == (status, {"error", "code", "message"})


class TestTokens:
    def test_without_one_nothing_is_read_or_changed(self, client, rest, orders):
        openapi = rest.get("/openapi.json").json()
        free = {"/health", "/healthz", "/ready", "/readyz"}
        for path, verbs in openapi["paths"].items():
            for verb in verbs:
                answer = client(None).request(verb, path.replace("{name}", "orders"), json={})
                assert (answer.status_code == 401) == (path not in free), (verb, path)
        assert client(None).get("/readyz").json() == {"status": "ready"}
        assert client(None).get("/health").json() == {"status": "healthy"}
        assert rest.get("/readyz").json()["pipelines"][0]["name"] == "orders"
        assert rest.get(orders).json()["status"] == "running"

    @pytest.mark.parametrize(
        ("verb", "path", "scope"),
        [
            ("GET", "/pipelines/orders", "read"),
            ("GET", "/metrics", "read"),
            ("POST", "/pipelines/orders/pause", "operate"),
            ("GET", "/pipelines/orders/log", "operate"),
            ("PATCH", "/pipelines/orders", "admin"),
            ("DELETE", "/pipelines/orders/journal/dlq", "admin"),
        ],
    )
    @pytest.mark.usefixtures("kept")
    def test_each_scope_allows_what_it_says(self, client, verb, path, scope):
        for given in tokens.SCOPES:
            answer = client(given).request(verb, path, json={})
            allowed = tokens.SCOPES.index(given) >= tokens.SCOPES.index(scope)
            assert (answer.status_code == 403) == (not allowed), given

    def test_one_that_was_revoked_or_made_up_opens_nothing(self, client, server):
        reader = client("read")
        assert reader.get("/pipelines").status_code == 200
        tokens.revoke(server.store, "read")
        assert reader.get("/pipelines").json()["code"] == "UNKNOWN_TOKEN"
        for shown in ("dft_wrong", "x" * 5000, "two words"):
            answer = reader.get("/pipelines", headers={"Authorization": f"Bearer {shown}"})
            assert answer.status_code == 401

    def test_the_store_holds_no_token(self, server, tmp_path):
        kept = b"".join(file.read_bytes() for file in tmp_path.glob("state.db*"))
        assert server.tokens["admin"].encode() not in kept


def test_a_secret_of_a_document_is_in_no_answer(rest, orders):
    document = named("secret")
    document["spec"]["sinks"].append(
        {
            "type": "http",
            "config": {
                "id": "hook",
                "url": "https://example.org/x",
                "headers": {"Authorization": "Bearer c4n4ry-2"},
            },
        }
    )
    uri = {"id": "redis", "uri": "redis://:c4n4ry-1@h", "stream": "s"}
    document["spec"]["sinks"].append({"type": "redis", "config": uri})
    answers = [rest.post("/pipelines", json=document)]
    assert answers[0].status_code == 200, answers[0].text
    assert len(answers[0].json()["warnings"]) == 2
    answers += [rest.post("/validate", json=document)]
    answers += [rest.get(path) for path in ("/pipelines", "/pipelines/secret", "/readyz")]
    answers += [rest.get(f"/pipelines/secret/{path}") for path in ("log", "sinks", "checkpoints")]
    answers += [rest.patch("/pipelines/secret", json={"spec": {"batch": {"max_events": 9}}})]
    for answer in answers:
        assert "c4n4ry" not in answer.text, answer.url


def test_the_description_of_the_api_names_every_seed_route(rest):
    paths = rest.get("/openapi.json").json()["paths"]
    listed = yaml.safe_load(
        """
        /healthz: [get]
        /readyz: [get]
        /health: [get]
        /ready: [get]
        /validate: [post]
        /metrics: [get]
        /pipelines: [get, post]
        "/pipelines/{name}": [get, patch, delete]
        "/pipelines/{name}/pause": [post]
        "/pipelines/{name}/resume": [post]
        "/pipelines/{name}/stop": [post]
        "/pipelines/{name}/checkpoints": [get, delete]
        "/pipelines/{name}/checkpoint": [delete]
        "/pipelines/{name}/journal/dlq": [get, delete]
        "/pipelines/{name}/journal/dlq/count": [get]
        "/pipelines/{name}/journal/dlq/ack": [post]
        "/pipelines/{name}/schemas": [get]
        "/pipelines/{name}/schemas/reload": [post]
        "/pipelines/{name}/schemas/{db}/{table}": [get]
        "/pipelines/{name}/schemas/{db}/{table}/versions": [get]
        "/pipelines/{name}/schemas/{db}/{table}/reload": [post]
        """
    )
    assert {path: set(verbs) - set(paths.get(path, {})) for path, verbs in listed.items()} == {
        path: set() for path in listed
    }


def test_its_history_is_a_curve_of_the_range_that_is_asked_for(rest, orders, client):
    shown = rest.get(f"{orders}/history", params={"since": "30m", "step": "5m"}).json()
    assert (shown["pipeline"], shown["step_s"], len(shown["points"])) == ("orders", 300, 7)
    assert client("read").get(f"{orders}/history").status_code == 200
    answer = rest.get(f"{orders}/history", params={"step": "1s"})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert rest.get("/pipelines/none/history").json()["code"] == "PIPELINE_NOT_FOUND"
