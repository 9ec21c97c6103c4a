"""Secrets that a document holds itself stay out of what is stored."""

import pickle

import pytest
import yaml
from pydantic import SecretStr

from airflow_provider_deltaforge import plugins
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import command
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment as LaneJob
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.inline_secrets import document_for_people, withhold
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control

CANARY = "c4n4ry-пароль"
WEBHOOK = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5"

AVRO = {"type": "avro", "schema_registry_url": "https://r", "username": "u", "password": CANARY}
MTLS = {"cert_file": "/c.pem", "key_password": CANARY}
PG = {"slot": "s", "publication": "p"}
SOURCES = {
    "mysql": [{"dsn": f"mysql://u:{CANARY}@h/d"}, {"dsn": f"mysql://u:/{CANARY}?x@h/d"}],
    "postgres": [
        {**PG, "dsn": f"postgres://u:{CANARY}@h/d"},
        {**PG, "dsn": f"host=h dbname=d password={CANARY}"},
        {**PG, "dsn": f"postgres://u@h/d?sslpassword={CANARY}"},
    ],
    "turso": [{"url": "libsql://h", "tables": ["a"], "auth_token": CANARY}],
    "scripted": [],
}
SINKS = {
    "kafka": [
        {"brokers": "b", "topic": "t", "client_conf": {"sasl.password": CANARY}},
        {"brokers": "b", "topic": "t", "client_conf": {"ssl.key.password": CANARY}},
        {"brokers": "b", "topic": "t", "client_conf": {"ssl.key.pem": CANARY}},
        {"brokers": "b", "topic": "t", "client_conf": {"sasl.oauthbearer.config": CANARY}},
        {"brokers": "b", "topic": "t", "encoding": AVRO},
        {"brokers": "b", "topic": "t", "encoding": {**AVRO, "cert_file": "/c"} | MTLS},
    ],
    "redis": [
        {"uri": f"redis://:{CANARY}@h", "stream": "s"},
        {"uri": f"redis+sentinel://h/m?sentinel_password={CANARY}", "stream": "s"},
        {"uri": "redis://h", "stream": "s", "password": CANARY},
        {"uri": "rediss://h", "stream": "s", **MTLS},
    ],
    "nats": [
        {"url": f"nats://u:{CANARY}@h", "subject": "s"},
        {"url": f"nats://{CANARY}@h", "subject": "s"},
        {"url": f"{CANARY}@h", "subject": "s"},
        {"url": f"nats://h:4222, {CANARY}@i:4222", "subject": "s"},
        {"url": "nats://h", "subject": "s", "username": "u", "password": CANARY},
        {"url": "nats://h", "subject": "s", "token": CANARY},
        {"url": "nats://h", "subject": "s", "nkey_seed": CANARY},
    ],
    "http": [
        {"url": "https://h", "headers": {"Authorization": "Bearer c4n4ry-x"}},
        {"url": "https://h", "headers": {"X-Shop": "c4n4ry-x"}},
        {"url": f"https://h/x?token={CANARY}"},
        {"url": f"https://h/x?sig={CANARY}"},
        {"url": f"https://h/x?a=b&code={CANARY}&c=d"},
        {"url": "https://h", "proxy": f"http://u:{CANARY}@p:1"},
        {"url": "https://h", "signing_secret": WEBHOOK},
        {"url": "https://h", **MTLS},
    ],
    "file": [],
    "memory": [],
    "stdout": [],
}
PROCESSORS = {
    "mask": [{"rules": [{"columns": ["a.b.c"], "action": "hash"}], "secret": f"{CANARY}-16-long"}],
}
CASES = [
    pytest.param(where, name, config, id=f"{name}-{number}")
    for where, kinds in (("source", SOURCES), ("sinks", SINKS), ("processors", PROCESSORS))
    for name, configs in kinds.items()
    for number, config in enumerate(configs)
]


def document(where="source", name="scripted", config=None, style=yaml.safe_dump):
    plug = {"type": name, **config} if where == "processors" else {"type": name, "config": config}
    spec = {
        "source": {"type": "scripted", "config": {"id": "shop"}},
        "sinks": [{"type": "memory", "config": {"id": "out"}}],
    }
    if where == "source":
        plug["config"] = {"id": "shop", **config}
        spec["source"] = plug
    else:
        spec[where] = [plug]
    told = {
        "apiVersion": "deltaforge/v1",
        "kind": "Pipeline",
        "metadata": {"name": "orders", "tenant": "t"},
        "spec": spec,
    }
    return style(told)


def json_style(told):
    import json

    return json.dumps(told)


@pytest.mark.parametrize("style", [yaml.safe_dump, json_style])
@pytest.mark.parametrize(("where", "name", "config"), CASES)
def test_no_inline_secret_is_stored_sent_or_shown(
    where, name, config, style, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("DELTAFORGE_JOBS", str(tmp_path / "jobs"))
    text = document(where, name, config, style)
    dsn = f"sqlite:///{tmp_path}/state.db"
    store = StoreLocation.from_dsn(dsn).create()
    pipelines.apply(store, text)

    stored = Control(store, "orders").document()
    job = LaneJob(stored, StoreLocation.from_dsn(dsn), "driver", 1)
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    kept += (
        pickle.dumps(job) + repr(command(LaunchSpec("orders", 1, "stream_job.py", dsn))).encode()
    )
    kept += caplog.text.encode()
    for secret in ("c4n4ry", "пароль", WEBHOOK, r"\u043f\u0430\u0440"):
        assert secret.encode() not in kept
    assert "holds a secret" in caplog.text
    assert load(stored) == load(text)
    store.close()


@pytest.mark.parametrize("style", [yaml.safe_dump, json_style])
@pytest.mark.parametrize(("where", "name", "config"), CASES)
def test_what_is_not_stored_is_not_shown_to_people(where, name, config, style):
    text = document(where, name, config, style)
    shown = document_for_people(text)

    for value in withhold(text, load(text, expand=False)).values.values():
        assert value not in shown
    for secret in ("c4n4ry", "пароль", WEBHOOK, r"\u043f\u0430\u0440"):
        assert secret not in shown
    assert "***" in shown


def test_every_secret_setting_of_every_plugin_is_among_the_cases():
    rooms = ((plugins.SOURCES, SOURCES), (plugins.SINKS, SINKS), (plugins.PROCESSORS, PROCESSORS))
    for room, cases in rooms:
        for name in room.shipped:
            fields = {
                field
                for field, info in room.load(name).model_fields.items()
                if SecretStr in _types(info.annotation)
            }
            tested = {key for config in cases.get(name, ()) for key in config}
            assert fields <= tested, name


def _types(annotation):
    parts = getattr(annotation, "__args__", ())
    return {annotation, *(found for part in parts for found in _types(part))}


@pytest.mark.parametrize("number", [73918264, 7391.8264])
def test_a_number_among_headers_is_a_secret_as_well(number):
    text = document("sinks", "http", {"url": "https://h", "headers": {"X-Pin": number}})

    withheld = withhold(text, load(text, expand=False))

    assert list(withheld.values.values()) == [str(number)]
    assert str(number) not in withheld.text
    assert load(withheld.text, withheld.values).spec == load(text, {}).spec


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("mysql", {"dsn": "mysql://cdc:${PW}@h:3306/shop"}),
        ("mysql", {"dsn": "mysql://${USER}:${PW}@${HOST}/shop?email=a@b"}),
        ("mysql", {"dsn": "mysql://root:@h/shop"}),
        ("postgres", {**PG, "dsn": "postgres://cdc:${PW:-}@h/shop?sslmode=require"}),
    ],
)
def test_a_password_that_is_a_variable_is_none_of_the_documents(name, config):
    text = document("source", name, config)
    held = withhold(text, load(text, expand=False))
    assert (held.text, held.values) == (text, {})


@pytest.mark.parametrize("password", ["@c4n4ry", "@c4n4ry/x", "c@n4ry", ":c4n4ry", "@:c4n4ry@"])
def test_a_password_with_marks_of_addresses_is_found(password):
    text = document("source", "mysql", {"dsn": f"mysql://cdc:{password}@h/shop"})
    held = withhold(text, load(text, expand=False))
    assert list(held.values.values()) == [f"mysql://cdc:{password}@h/shop"]
    assert "c4n4ry" not in held.text


def test_what_is_no_secret_is_stored_as_written():
    text = """
# Comments and 'quotes' stay.
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: t}
spec:
  source: {type: mysql, config: {id: a, dsn: "mysql://root@h:3306/d?ssl_ca=/a.pem"}}
  sinks:
    - {type: redis, config: {uri: "redis://h:6379/0", stream: s, password: "${PW}"}}
    - {type: nats, config: {url: "nats://one:4222,two:4222", subject: s, token: "${T:-}"}}
    - type: http
      config:
        url: "https://h:8443/${source.table}?v=1"
        headers: {Content-Type: text/plain, Authorization: "Bearer ${TOKEN}"}
"""
    held = withhold(text, load(text, expand=False))
    assert held.text == text
    assert not held.values


@pytest.mark.parametrize(
    "line",
    [
        "dsn: 'mysql://u:{c}@h/d'  # why",
        'dsn: "mysql://u:{c}@h/d"',
        "dsn: mysql://u:{c}@h/d",
        "dsn: |-\n        mysql://u:{c}@h/d\n      tables: [a.b]",
        "dsn: >-\n        mysql://u:{c}@h/d\n      tables: [a.b]",
        'dsn: "mysql://u:{c}@\\\n        h/d"',
    ],
)
def test_however_it_is_written_it_is_taken_out(line):
    text = (
        "apiVersion: deltaforge/v1\nkind: Pipeline\nmetadata: {name: orders, tenant: t}\nspec:\n"
        "  source:\n    type: mysql\n    config:\n      id: a\n      "
        + line.replace("{c}", CANARY)
        + "\n  sinks: [{type: memory, config: {id: m}}]\n"
    )
    held = withhold(text, load(text, expand=False))
    assert CANARY not in held.text
    assert list(held.values.values()) == [f"mysql://u:{CANARY}@h/d"]
    assert load(held.text, held.values) == load(text, {})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("dsn: 'mysql://${USER}:c4n4ry@h/d'", "beside a variable"),
        ("dsn: '${DSN:-mysql://u:c4n4ry@h/d}'", "as its default"),
        ("dsn: 'mysql://u:${PW:-c4n4ry}@h/d'", "as its default"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_the_mend(line, what):
    text = (
        "apiVersion: deltaforge/v1\nkind: Pipeline\nmetadata: {name: orders, tenant: t}\nspec:\n"
        f"  source: {{type: mysql, config: {{id: a, {line}}}}}\n"
        "  sinks: [{type: memory, config: {id: m}}]\n"
    )
    with pytest.raises(SpecError, match=rf"spec\.source\.config\.dsn.*{what}.*\$\{{NAME\}}") as got:
        withhold(text, load(text, expand=False))
    assert "c4n4ry" not in str(got.value)


def test_one_secret_under_two_keys_by_an_alias_is_refused():
    text = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: t}
spec:
  source: {type: scripted, config: {id: s}}
  sinks:
    - {type: redis, config: {id: a, uri: redis://h, stream: s, password: &p c4n4ry}}
    - {type: redis, config: {id: b, uri: redis://h, stream: s, password: *p}}
"""
    with pytest.raises(SpecError, match=r"cannot be taken out; write \$\{NAME\}") as got:
        withhold(text, load(text, expand=False))
    assert "c4n4ry" not in str(got.value)


def test_who_was_not_started_with_the_document_gets_an_error():
    text = document("source", "mysql", {"dsn": f"mysql://u:{CANARY}@h/d"})
    stored = withhold(text, load(text, expand=False)).text
    with pytest.raises(SpecError, match="deltaforge run FILE"):
        load(stored, {})


LOADED = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: t}
spec:
  source: {type: mysql, config: {id: a, dsn: "mysql://root@h:3306/d"}}
  sinks:
    - type: http
      config:
        url: https://h/x?sig=c4n4ry&v=1
        headers:
          Content-Type: text/plain
          Cookie: "c4n4ry
            two"
          X-Shop: Bearer ${TOKEN}
    - {type: nats, config: {url: nats://c4n4ry@h:4222, subject: s}}
"""


def test_people_see_what_is_no_secret():
    assert document_for_people(LOADED) == LOADED.replace(
        '"c4n4ry\n            two"', "***"
    ).replace("c4n4ry", "***")


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(LOADED + "  x: [", id="not YAML"),
        pytest.param(LOADED + "  source: {}", id="a key twice"),
    ],
)
def test_a_document_that_cannot_be_read_shows_no_secret_either(broken):
    broken = broken.replace("nats://c4n4ry@h:4222", "h:4222,c4n4ry@h:4222, nkey_seed: c4n4ry")
    shown = document_for_people(broken)

    assert "c4n4ry" not in shown
    assert "two" not in shown
    assert "mysql://root@h:3306/d" in shown


def test_one_value_under_two_keys_is_hidden_if_one_of_them_is_a_secrets():
    text = LOADED.replace("id: a,", "id: &i c4n4ry,").replace("Bearer ${TOKEN}", "*i")

    assert "c4n4ry" not in document_for_people(text)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("part", ["//", "//:", "//:@", "@", ":", ",", "nats://", "?sig=", "a@"])
def test_a_hostile_address_takes_time_in_proportion(part):
    """Quadratic, it would take minutes and not a second."""
    assert document_for_people(f"url: 'x{part * 60_000}'")


def test_no_two_sinks_share_the_variable_of_a_secret_when_the_list_has_moved():
    """As after a PATCH: a sink in front was taken away, and a new one stands at its end."""

    def changed(sinks):
        plain = yaml.safe_load(document(config={}))
        plain["spec"]["sinks"] = sinks
        text = yaml.safe_dump(plain)
        held = withhold(text, load(text, expand=False))
        return yaml.safe_load(held.text)["spec"]["sinks"], held.values

    def redis(sink_id, password):
        config = {"id": sink_id, "uri": "redis://h", "stream": "s", "password": password}
        return {"type": "redis", "config": config}

    (_, second), first_values = changed([redis("a", "pa"), redis("b", "pb")])
    kept, new_values = changed([second, redis("c", "pc")])

    values = {**first_values, **new_values}
    passwords = [values[sink["config"]["password"].strip("${}")] for sink in kept]
    assert passwords == ["pb", "pc"]
