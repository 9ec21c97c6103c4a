"""Digits that a double cannot hold, and bytes that nobody changed."""

import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.processors.javascript.number_scan_kernel import (
    EXACT,
    SPELLED,
    image_flags,
    utf16_offsets,
)
from airflow_provider_deltaforge.testing.changes import change, change_rows

LARGE = b'{"id":9007199254740993,"n":-18446744073709551615,"s":[1,12345678901234567890]}'
ODD = b'{ "a": 1.50, "b": 1e2, "\\u0061b": -0, "10": 1, "2": "\\/", "c": 0.00000001 }'
KEYED = b'{"b":"10115","7":"x"}'
REPEATED = b'{"a":1,"b":{"c":1,"c":2},"a":2}'


@pytest.mark.parametrize("image", [LARGE, ODD, KEYED, REPEATED])
def test_what_is_only_read_keeps_its_bytes(tried, image):
    done = tried("JSON.stringify(event); event.tags = [typeof event.after]", after=image)

    assert done.rows["after"].to_pylist() == [image]


def test_large_integers_stay_exact_beside_a_change(tried):
    done = tried("event.after.x = event.after.id + 1n", after=LARGE)

    assert done.rows["after"].to_pylist() == [LARGE[:-1] + b',"x":9007199254740994}']


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("typeof event.after.id", "bigint"),
        ("`user:${event.after.id}`", "user:9007199254740993"),
        ("event.after.id > 1000", True),
        ("event.after.s[0] + 1", 2),
        ("JSON.parse('[9007199254740993]')[0] === event.after.id", True),
        ("JSON.stringify({ a: [event.after.id] })", '{"a":[9007199254740993]}'),
    ],
)
def test_scripts_see_them_as_bigint(shown, expression, expected):
    assert shown(expression, after=LARGE) == expected


def test_clones_keep_them(tried):
    done = tried("const e = JSON.parse(JSON.stringify(event)); return e", after=LARGE)

    assert done.rows["after"].to_pylist() == [LARGE]


def test_mixing_them_with_numbers_refuses_the_event_and_shows_no_value(tried):
    done = tried("event.after.x = event.after.id + 1", after=LARGE)

    assert re.fullmatch(
        r"the script threw TypeError at line \d+, column \d+", done.rejections[0].reason
    )


def test_numbers_beyond_a_double_are_not_lost(tried):
    done = tried("event.after.x = 1", after=b'{"v":1e400,"w":0.5}')

    assert done.rows["after"].to_pylist() == [b'{"v":1e400,"w":0.5,"x":1}']


numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=10**12).map(str),
).filter(lambda text: re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", text))
texts = st.lists(
    st.one_of(numbers, st.text(max_size=5).map(json.dumps), st.sampled_from(["true", "[ ]", "{}"])),
    max_size=6,
).map(lambda values: "{" + ",".join(f'"k{n}":{value}' for n, value in enumerate(values)) + "}")


@pytest.fixture(scope="module")
def copying():
    from tests.processors.javascript.conftest import opened

    worker = opened("function processBatch(es) { for (const e of es) { e.after.$ = 1 } return es }")
    yield worker
    worker.close()


@settings(max_examples=40, deadline=None)
@example(['{"a":"\\"","b":"1","c":1.10,"d":123456789012345}', '{"12":1}', '{"a":"\\\\"}'])
@given(images=st.lists(texts, min_size=1, max_size=30))
def test_every_integer_survives_a_change(copying, images):
    rows = change_rows([change(after=image.encode()) for image in images])

    done = copying.process(rows)

    for was, now in zip(images, done.rows["after"].to_pylist(), strict=True):
        loaded = json.loads(now)
        assert loaded.pop("$") == 1
        for name, value in json.loads(was).items():
            kept = loaded.pop(name)
            # JavaScript writes 1e17 as 100000000000000000: the same number to a double.
            assert (float(kept) if isinstance(value, float) else kept) == value
        assert not loaded


@settings(max_examples=200, deadline=None)
@given(images=st.lists(texts, min_size=1, max_size=5))
def test_flags_tell_what_must_be_read_exactly(images):
    data = np.frombuffer("".join(images).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(image.encode()) for image in images)]).astype(np.int32)

    flags = image_flags(data, offsets)

    for image, flag in zip(images, flags, strict=True):
        values = [v for v in json.loads(image).values() if type(v) is int]
        if any(abs(value) > 2**53 - 1 for value in values):
            assert flag & EXACT


@pytest.mark.parametrize(
    ("image", "flag"),
    [
        (KEYED, SPELLED),
        (b'{"zip":"10115","n":["1","22"],"":"","a":"1:"}', 0),
        (b'{"1a":"\\n","a":"7\\/"}', SPELLED),
    ],
    ids=["a key of digits", "values of digits", "an escape after a digit"],
)
def test_digits_are_spelled_differently_as_keys_alone(image, flag):
    data = np.frombuffer(image, np.uint8)

    assert image_flags(data, np.array([0, len(image)], np.int32)).tolist() == [flag]


@settings(deadline=None)
@given(images=st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_offsets_count_as_javascript_does(images):
    texts = [image.encode("utf-8", "ignore") for image in images]
    data = np.frombuffer(b"".join(texts), np.uint8)
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)

    units = np.diff(utf16_offsets(data, offsets)).tolist()

    assert units == [len(text.decode().encode("utf-16-le")) // 2 for text in texts]
