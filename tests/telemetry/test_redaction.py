import pytest

from airflow_provider_deltaforge.telemetry.redaction import (
    redacted,
    redacted_document,
    redacted_value,
)

SECRET = "hunter2"


def document(*lines):
    return "\n".join(["spec:", "  source:", *(f"    {line}" for line in lines), "  sinks: []", ""])


@pytest.mark.parametrize(
    "lines",
    [
        ["password: my hunter2 pass"],
        ["password: ab,hunter2"],
        ["password: |", "  one", "", "  hunter2"],
        ["password: >-", "  hunter2", "host: db"],
        ["password: &x hunter2"],
        ['password: &x "one', 'hunter2"'],
        ['password: "one \\" two', "hunter2", 'three"'],
        ["password: 'it''s", "hunter2'"],
        ["- password: |", "    hunter2", "  host: db"],
        ["{user: app, password: a hunter2, host: db}"],
        ["{user: app, password:", "  hunter2, host: db}"],
        ["passwords:", "- hunter2", "-", "  hunter2"],
        ["credentials:", "# of the shop", "  word: hunter2"],
        ['"password":', '"hunter2"'],
        ["{a: [b,", "x], password: [c,", "hunter2: d]}"],
        ["{password: \"a\", b: '\"', token: 'c", "hunter2'}"],
        ["{a: {", "token: c}, api_key: [", "hunter2]}"],
        ["password: ${X}, hunter2"],
        ["password: ${X}#hunter2"],
        ["password: ${X}}hunter2"],
        ["password: prefix-${X}-hunter2"],
        ["password: ${X:-hunter2}"],
        ["url: ${SHOP_PASSWORD:-hunter2}"],
        ["headers: {X-Api-Key: hunter2, Authorization: Bearer hunter2}"],
        ["url: jdbc:mysql://db/shop?user=app&password=a hunter2"],
        ["url: mysql://app:p@hunter2@db/shop"],
        ["url: mysql://app:p/hunter2@db/shop"],
        ["url: mysql://app:p/s@hunter2@db/shop"],
        ["url: postgres://me@corp:hunter2@db/shop"],
        ["url: mysql://a:hunter2@db1,b:hunter2@db2/shop"],
        ["# password: a hunter2"],
        ["shared: &pw hunter2", "password: *pw"],
        ["{shared: &pw hunter2, token: *pw}"],
        ["shared:", "- &pw", "  hunter2", "- &all [*pw]", "credentials:", "  word: *all"],
        ["shared: &pw", "  hunter2", "{a: b, token:", "  *pw}"],
        ["url: https://h/x?sig=hunter2"],
        ["url: https://h/x?a=b&code=hunter2&c=d"],
        ["url: nats://hunter2@h:4222"],
        ["url: hunter2@h:4222"],
        ["url: h:4222,hunter2@i:4222"],
        ["url: https://hunter2@h"],
        ["nkey_seed: hunter2"],
        ["ssl.key.pem: |", "  hunter2"],
        ["headers: {X-Auth: hunter2}"],
        ["headers:", "  X-Auth: a", "  Cookie: hunter2"],
    ],
)
def test_no_document_shows_a_secret_and_what_follows_it_stays(lines):
    shown = redacted_document(document(*lines))

    assert SECRET not in shown
    assert "***" in shown
    assert shown.startswith("spec:\n  source:\n")
    assert shown.endswith("\n  sinks: []\n")


@pytest.mark.parametrize(
    "line",
    [
        "password: ${DB_PASSWORD}",
        'password: "${DB_PASSWORD}"  # of the shop',
        "{user: app, password: ${DB_PASSWORD}, host: db}",
        "password: ${DB_PASSWORD:-}",
        "{a: {user: app, password: ${DB_PASSWORD}}, b: [c, {token: '${TOKEN}' }]}",
        "url: mysql://app:${DB_PASSWORD}@db/shop",
        "topic: auth.token.events",
        "tables: [shop.user_tokens, shop.passwords]",
        "primary_key: id",
        "url: https://db:8080/path",
        "url: https://db:8080/${source.table}?key=${after.id}",
        "url: nats://${TOKEN}@h:4222",
        "dsn: postgres://root@h/d?sslrootcert=/a.pem",
        "message_headers: {X-Auth: a}",
    ],
)
def test_references_and_words_that_are_no_keys_stay_readable(line):
    assert redacted_document(document(line)) == document(line)


def test_anchors_stay_readable_that_no_hidden_value_could_mean():
    text = document("shared: &all [a]", "tables: *all", "password: a*b")

    assert redacted_document(text) == text.replace("a*b", "***")


def test_what_follows_a_reference_in_the_same_value_goes():
    assert (
        redacted_document("password: ${X}\n  hunter2\nhost: db\n") == "password: ${X}\nhost: db\n"
    )


def test_brackets_that_close_on_their_line_hide_nothing_below():
    shown = redacted_document("a: {user: app, password: 'a }', host: db}\nb: {c: d}\n")

    assert shown == "a: {user: app, password: ***\nb: {c: d}\n"


def test_only_the_value_of_a_key_goes():
    shown = redacted_document(document("password: |", "  hunter2", "# why", "host: db"))

    assert shown == document("password: ***", "# why", "host: db")


def test_numbers_lists_and_maps_below_the_name_of_a_secret_are_hidden():
    document = {
        "sasl.password": 73918264,
        "tokens": ["hunter2", 4, "${TOKEN}"],
        "credentials": {"user": "hunter2", "pins": [1.5, {"a": 7}]},
        "token": None,
        "secret": True,
        "port": 9092,
    }

    assert redacted_value(document) == {
        "sasl.password": "***",
        "tokens": ["***", "***", "${TOKEN}"],
        "credentials": {"user": "***", "pins": ["***", {"a": "***"}]},
        "token": None,
        "secret": True,
        "port": 9092,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to mysql://u:p@ss@h/db failed", "to mysql://u:***@h/db failed"),
        ('{"url":"http://u:p@h","by":"a@b"}', '{"url":"http://u:***@h","by":"a@b"}'),
        ("db_password='a b', host=h", "db_password=***, host=h"),
        ('{"token": "abc", "n": 1}', '{"token": ***, "n": 1}'),
        (r"password='it\'s one' host=h", "password=*** host=h"),
        ("PASSWORD = 'it''s one', HOST 'h'", "PASSWORD = ***, HOST 'h'"),
        (r'{"token": "a\"b c", "n": 1}', '{"token": ***, "n": 1}'),
        ("missing quote in password='one two", "missing quote in password=***"),
        ("password='' user='app'", "password=*** user='app'"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("http://h:80/x and a@b", "http://h:80/x and a@b"),
        ("line 1: spec.sinks[0].config.headers.X-Api-Key: holds a secret", None),
        ("spec.source.config.password: is missing", None),
        ("spec.source.config.password: hunter2", "spec.source.config.password: ***"),
        ("spec.source.config.password: hunter", "spec.source.config.password: ***"),
        ("spec.source.config: password: holds it", "spec.source.config: password: *** it"),
        ("spec.source.config.password=holds it", "spec.source.config.password=*** it"),
        ("X-Api-Key: holds it", "X-Api-Key: *** it"),
    ],
)
def test_drivers_texts_lose_their_secrets_alone(text, shown):
    assert redacted(text) == (text if shown is None else shown)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hide", [redacted, redacted_document])
@pytest.mark.parametrize(
    "part",
    [
        "://",
        "://a:",
        "://a:b",
        "://a:b@",
        "://a:b/@",
        "password",
        "token ",
        "token='",
        "token='\\",
        "@",
        "a: ",
        "&a",
        "&",
        "spec.token: a b",
        "nats://",
        "nats://a",
        "url: ",
        ",",
        "?sig=",
        "a.pem",
        "headers: ",
    ],
)
def test_a_hostile_text_takes_time_in_proportion(hide, part):
    """Quadratic, it would take minutes and not a second."""
    assert hide(part * 60_000)
