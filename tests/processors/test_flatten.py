"""Flattened images are what the rules say, as a plain reading of them in Python says it too."""

import itertools
import json

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.processors.flatten import flatten_kernel
from airflow_provider_deltaforge.processors.flatten.settings import Flatten
from tests.events.json_texts import columns, texts
from tests.processors.flatten_twin import CollisionError, flat, parsed
from tests.processors.rows import images, rows

EXAMPLE = (
    b'{"order_id":"abc","customer":{"id":1,"address":{"city":"Berlin","zip":"10115"}},'
    b'"tags":["vip"],"meta":{}}'
)


def flattened(text, **given_settings):
    done = Flatten(**given_settings).open().process(images(text))
    assert done.rows.num_rows == 1, done.rejections
    return done.rows["after"][0].as_py()


DESCRIPTIONS = st.builds(
    Flatten,
    separator=st.sampled_from(["__", ".", '"', "\\n\n", "ä"]),
    max_depth=st.sampled_from([None, 0, 1, 2]),
    on_collision=st.sampled_from(["last", "first", "error"]),
    empty_object=st.sampled_from(["preserve", "drop", "null"]),
    lists=st.sampled_from(["preserve", "index"]),
    empty_list=st.sampled_from(["preserve", "drop", "null"]),
)


@settings(max_examples=150, deadline=None)
@given(columns, DESCRIPTIONS)
def test_texts_are_flattened_as_by_plain_python(given_texts, description):
    done = description.open().process(images(*given_texts))

    kept, refused = {}, {}
    for row, text in enumerate(given_texts):
        try:
            kept[row] = text and flat(parsed(text), description)
        except CollisionError as error:
            refused[row] = f"flatten: key collision on {error.args[0]!r}"
    origins = range(len(given_texts)) if done.origins is None else done.origins.to_pylist()
    assert {one.event_row: one.reason.split(";")[0] for one in done.rejections} == refused
    assert list(origins) == list(kept)
    for row, made in zip(origins, done.rows["after"].to_pylist(), strict=True):
        assert (made and parsed(made)) == kept[row]


@settings(max_examples=60, deadline=None)
@given(texts, st.integers(0, 60), st.binary(max_size=2))
def test_a_text_that_is_not_json_is_left_alone(text, at, noise):
    broken = text[:at] + noise + text[at:]
    made = flattened(broken, lists="index", empty_object="drop")

    if not is_json(broken):
        assert made == broken


def is_json(data):
    """Say whether it is JSON; bytes that are not UTF-8 are somebody else's business."""
    try:
        json.loads(data.decode(errors="replace"))
    except ValueError:
        return False
    return True


def test_the_example_of_the_documentation():
    assert flattened(EXAMPLE) == (
        b'{"order_id":"abc","customer__id":1,"customer__address__city":"Berlin",'
        b'"customer__address__zip":"10115","tags":["vip"],"meta":{}}'
    )
    assert flattened(EXAMPLE, separator=".", lists="index", empty_object="drop") == (
        b'{"order_id":"abc","customer.id":1,"customer.address.city":"Berlin",'
        b'"customer.address.zip":"10115","tags.0":"vip"}'
    )


def test_objects_at_the_deepest_level_stay_as_they_are():
    text = b'{"customer":{"address":{"geo":{"lat":52.5, "lng":13.4},"note":{}}},"a":[[1]]}'

    assert flattened(text, max_depth=2, empty_object="null") == (
        b'{"customer__address__geo":{"lat":52.5, "lng":13.4},"customer__address__note":null,'
        b'"a":[[1]]}'
    )
    assert flattened(text, max_depth=1, lists="index") == (
        b'{"customer__address":{"geo":{"lat":52.5, "lng":13.4},"note":{}},"a__0":[1]}'
    )
    assert flattened(text, max_depth=0, lists="index", empty_object="drop") == text


@pytest.mark.parametrize(
    ("on_collision", "wanted"),
    [("last", b'{"a__b":2,"c":3}'), ("first", b'{"a__b":1,"c":3}')],
)
def test_one_of_two_equal_keys_wins(on_collision, wanted):
    text = b'{"a__b":1,"c":3,"a":{"\\u0062":2}}'

    assert flattened(text, on_collision=on_collision) == wanted


def test_a_key_that_is_not_utf8_is_named_as_well_as_it_can_be():
    batch = rows({"after": b'{"\xff":{"b":1},"\xff__b":2}'})

    [refused] = Flatten(on_collision="error").open().process(batch).rejections
    assert "'\ufffd__b'" in refused.reason


def test_a_collision_refuses_that_event_alone_and_names_the_key():
    batch = rows(
        {"after": b'{"a":{"b":1}}'},
        {"op": "u", "before": b'{"a__b":1,"a":{"b":2}}', "after": b'{"a":{"b":1}}'},
        {"after": b'{"x.y":1,"x":{"y":2},"\xc3\xa4":{}}'},
    )

    done = Flatten(on_collision="error").open().process(batch)
    dotted = Flatten(on_collision="error", separator=".").open().process(batch)

    assert done.rows["after"].to_pylist() == [b'{"a__b":1}', b'{"x.y":1,"x__y":2,"\xc3\xa4":{}}']
    assert done.origins.to_pylist() == [0, 2]
    [refused] = done.rejections
    assert (refused.event_row, refused.kind) == (1, "processor")
    assert refused.reason.startswith("flatten: key collision on 'a__b'")
    [refused] = dotted.rejections
    assert refused.event_row == 2
    assert "'x.y'" in refused.reason


@pytest.mark.parametrize(
    "value",
    [
        b'{"_base64":"AAEC"}',
        b'{"_unchanged":true}',
        b'{"srid":4326,"_base64":"AQEAAAA="}',
    ],
)
def test_values_that_sources_write_as_objects_stay_whole(value):
    text = b'{"id":1,"raw":' + value + b"}"

    assert flattened(text) == text
    assert flattened(b'{"a":{"raw":' + value + b"}}") == b'{"a__raw":' + value + b"}"


def test_objects_that_only_begin_like_them_are_flattened():
    text = b'{"a":{"_base64":1},"b":{"_base64":"x","y":1},"c":{"srid":1},"d":{"_unchanged":false}}'

    assert flattened(text) == (
        b'{"a___base64":1,"b___base64":"x","b__y":1,"c__srid":1,"d___unchanged":false}'
    )


def test_flat_images_keep_every_byte():
    spaced = b' { "b" : 1.50 , "a":"\\u00e4", "b": [ 1, 2 ] } '
    batch = images(spaced, b'{"a":{"b":1}}', None, b"[{}]", b'"{}"', b"null", b"{ }")

    made = Flatten(empty_object="drop").open().process(batch).rows["after"].to_pylist()

    assert made == [spaced, b'{"a__b":1}', None, b"[{}]", b'"{}"', b"null", b"{ }"]


def test_a_batch_without_nested_objects_is_passed_on_itself():
    batch = images(b'{"a":1}', b'{"a":[{}]}')

    assert Flatten(on_collision="error").open().process(batch).rows is batch


def test_both_images_are_flattened_and_everything_else_stays():
    batch = rows(
        {"op": "u", "before": b'{"a":{"b":0}}', "after": b'{"a":{"b":1}}', "key": b'{"a":{}}'}
    )

    made = Flatten().open().process(batch).rows

    assert made["before"].to_pylist() == [b'{"a__b":0}']
    assert made["after"].to_pylist() == [b'{"a__b":1}']
    others = [name for name in batch.schema.names if name not in {"before", "after"}]
    assert made.select(others).equals(batch.select(others))
    assert made.schema.equals(batch.schema)


def test_wide_and_deep_images_find_room():
    names = [f"k{n}" for n in range(700)]
    wide = orjson.dumps({name: {name: {"x": n}} for n, name in enumerate(names)})
    deep = b'{"long_name":' * 300 + b"{}" + b"}" * 300
    bushy = orjson.dumps({"x" * 90: {"y" * 90: [{"z": [[n], {}]} for n in range(300)]}})

    for text, lists in itertools.product((wide, deep, bushy), ("preserve", "index")):
        description = Flatten(lists=lists)
        assert parsed(flattened(text, lists=lists)) == flat(parsed(text), description)


def test_what_would_not_fit_a_batch_is_an_error_that_says_so(monkeypatch):
    """A kernel that says so; two real gigabytes are too many for a test."""
    monkeypatch.setattr(flatten_kernel, "flatten", lambda *_: (np.zeros(0, np.uint8), -1, 0))

    with pytest.raises(EventError, match="max_depth"):
        flattened(b'{"a":{"b":1}}')


def test_an_empty_batch_stays_empty():
    empty = images(b"{}").slice(0, 0)

    assert Flatten().open().process(empty).rows.num_rows == 0
