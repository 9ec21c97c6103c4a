"""Values that are no UTF-8 or no JSON: refused by name, or written as sources write them."""

import json

import pytest

from airflow_provider_deltaforge.testing.changes import change, change_rows

HALF = r"'\ud83d'"


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (f"event.after = {{a: {HALF}}}", "after holds text"),
        (f"event.after = {{a: [{{b: 'x' + {HALF} + 'y'}}]}}", "after holds text"),
        (f"event.after = {{[{HALF}]: 1}}", "after holds text"),
        (r"event.after = {a: '\ude00\ud83d'}", "after holds text"),
        (r"event.after = {a: '\\\ud83d'}", "after holds text"),
        (f"event.before = {{a: {HALF}}}", "before holds text"),
        (f"event.tags = ['a', {HALF}]", "a tag holds"),
        (f"event.source = {{...event.source, db: {HALF}}}", "source.db holds"),
        (f"event.source = {{...event.source, table: {HALF}}}", "source.table holds"),
        (f"event.source = {{...event.source, schema: {HALF}}}", "source.schema holds"),
        (f"event.route({{topic: {HALF}}})", "topic holds"),
        (f"event.route({{key: {HALF}}})", "key holds"),
        (f"event.route({{headers: {{a: {HALF}}}}})", "every header holds"),
        (f"event.route({{headers: {{[{HALF}]: 'a'}}}})", "name of every header holds"),
        (f"event.ddl = {{sql: {HALF}}}", "ddl holds text"),
        (f"event.synthetic = {HALF}", "synthetic holds"),
        (f"event.schema_version = {HALF}", "schema_version holds"),
        (f"return {{...event, event_id: undefined, after: {{a: {HALF}}}}}", "after holds text"),
    ],
)
def test_half_a_surrogate_pair_is_refused_with_its_field(tried, code, what):
    done = tried(code)
    assert done.rows.num_rows == 0
    [rejection] = done.rejections
    assert what in rejection.reason


@pytest.mark.parametrize(
    "value", [r"'\\ud83d'", r"'\ud83d\ude00'", r"'\\\\ud83dx'", "'\U0001f600'", r"'\ufffd'"]
)
def test_whole_pairs_and_their_spelling_pass(shown, value):
    wanted = {r"'\\ud83d'": r"\ud83d", r"'\\\\ud83dx'": r"\\ud83dx", r"'\ufffd'": "\ufffd"}
    assert shown(value) == wanted.get(value, "\U0001f600")


@pytest.mark.parametrize(
    "image",
    [b'"t"', b"[1]", b"42", b"true", b"null", b'[1.50, {"a": 18446744073709551615}]', b' "x" '],
)
@pytest.mark.parametrize(
    "code",
    [
        "event.after",
        "event.after && event.after.total",
        "Object.keys(event)",
        "event.after; event.tags = ['a']",
        "return {...event}",
        "return [event]",
    ],
)
def test_an_image_that_is_no_object_and_was_only_read_keeps_its_bytes(tried, image, code):
    done = tried(code, after=image)
    assert not done.rejections
    assert done.rows["after"].to_pylist() == [image]


@pytest.mark.parametrize(
    ("image", "code"),
    [
        (b"[1]", "event.after.push(2)"),
        (b'"t"', "event.after += 'u'"),
        (b"42", "event.after = 43"),
        (b"42", "return {...event, event_id: undefined}"),
    ],
)
def test_a_script_itself_puts_only_objects_into_images(tried, image, code):
    done = tried(code, after=image)
    assert done.rows.num_rows == 0
    assert "after must be an object or null, not a" in done.rejections[0].reason


def test_halves_that_the_row_holds_stay_as_they_are(tried):
    image = rb'{"a": "\ud83d", "b": 1}'
    done = tried("event.after.b = 2", after=image)
    assert done.rows["after"].to_pylist() == [rb'{"a":"\ud83d","b":2}']
    assert not done.rejections


@pytest.mark.parametrize(
    "code",
    [
        f"console.log({HALF}); event.after = {{a: 1}}",
        "console.log('x'.repeat(999) + '\\u{1f600}'); event.after = {a: 1}",
        f"event[{HALF}] = 1; event.after = {{a: 1}}",
        "event['x'.repeat(99) + '\\u{1f600}'] = 1; event.after = {a: 1}",
    ],
)
def test_what_is_only_logged_is_shown_with_a_mark_in_its_place(tried, code):
    assert tried(code).rows["after"].to_pylist() == [b'{"a":1}']


@pytest.mark.parametrize(
    "code",
    [
        f"throw new Error({HALF})",
        f"const e = new Error('x'); e.name = 'x'.repeat(59) + {HALF}; throw e",
        f"const e = new Error('x'); e.stack = 'x'.repeat(3999) + {HALF}; throw e",
    ],
)
def test_an_error_with_half_a_pair_is_one_of_its_event(tried, code):
    done = tried(code)
    assert len(done.rejections) == 1


def test_numbers_without_a_form_in_json_are_strings_as_in_rows(shown):
    assert shown("[NaN, 1/0, -1/0, null, {a: 0/0, b: 1}]") == [
        "NaN", "Infinity", "-Infinity", None, {"a": "NaN", "b": 1},
    ]  # fmt: skip
    assert shown("[NaN, 12345678901234567890123n]") == ["NaN", 12345678901234567890123]


@pytest.mark.parametrize("depth", [1_025, 200_000])
def test_values_nested_to_any_depth_are_read_and_written(tried, depth):
    deep = b'{"v":' + b"[" * depth + b"null" + b"]" * depth + b',"n":1}'
    wanted = deep.replace(b'"n":1', b'"n":2')
    assert tried("event.after.n = 2", after=deep).rows["after"].to_pylist() == [wanted]
    build = f"let v = null; for (let i = 0; i < {depth}; i++) v = [v]; event.after = {{v, n: 2}}"
    assert tried(build).rows["after"].to_pylist() == [wanted]
    not_a_number = f"{build.replace('null', 'NaN')}"
    done = tried(not_a_number)
    texts = [wanted.replace(b"null", b'"NaN"')]
    assert done.rows["after"].to_pylist() == texts or len(done.rejections) == 1


ODD_KEYS = [
    b'{"e":1,"\\\\":1}',
    b'{"e":1,"\\n":2}',
    b'{"e":1,"\\u0041":3,"\\"":[1,{"\\t":null}],"__proto__":{"\\u00e9":12345678901234567890}}',
    b'{"e": {"\\\\u":1} , "\\ud83d\\ude00" : [ ] , "x":[{},[],"a,]}"],"\\n":-1.5e3}',
    b'{"e":{"\\u0041b":true},"\\/":false,"e":"\\\\","":""}',
]


def test_keys_with_escapes_stay_what_they_are_whatever_was_read_before(start):
    worker = start("(event) => { event.after.zz = 1; }")
    for images in (ODD_KEYS, ODD_KEYS[::-1], ODD_KEYS * 20):
        rows = [
            change(after=image, event_id=n.to_bytes(16, "big")) for n, image in enumerate(images)
        ]
        done = worker.process(change_rows(rows))
        wanted = [{**json.loads(image), "zz": 1} for image in images]
        assert [json.loads(text) for text in done.rows["after"].to_pylist()] == wanted
