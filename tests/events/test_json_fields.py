"""Fields found and changed in JSON texts are the ones that a parser finds."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_scan_kernel import DEPTH_MAX
from tests.events.json_texts import KEYS, columns, objects, paths, texts

MISSING = object()
KINDS = {
    bool: json_fields.BOOL,
    int: json_fields.NUMBER,
    float: json_fields.NUMBER,
    str: json_fields.STRING,
    dict: json_fields.OBJECT,
    list: json_fields.ARRAY,
    type(None): json_fields.NULL,
}


def column(values):
    """A slice from the middle of a larger column, as batches are."""
    around = [b'{"a":0}', None, b'{"a":1}']
    return pa.array([*around, *values, b'{"a":2}'], pa.binary()).slice(3, len(values))


def dig(text, path):
    """What a parser finds; every digit of a number is kept."""
    value = json.loads(text, parse_float=Exact, parse_int=Exact)
    for name in path:
        value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


class Exact(str):
    """A number as it stands in the text."""

    __slots__ = ()


def kind_of(value):
    if value is MISSING:
        return json_fields.ABSENT
    return json_fields.NUMBER if isinstance(value, Exact) else KINDS[type(value)]


@settings(max_examples=200, deadline=None)
@given(columns, paths)
def test_what_is_found_is_what_a_parser_finds(given_texts, path):
    wanted = [MISSING if text is None else dig(text, path) for text in given_texts]
    whole = column(given_texts)

    spans = json_fields.locate(whole, path)
    found = json_fields.values(whole, spans).to_pylist()

    assert json_fields.kinds(whole, spans).tolist() == [kind_of(value) for value in wanted]
    assert [MISSING if text is None else dig(text, []) for text in found] == wanted


@settings(max_examples=100, deadline=None)
@given(columns, st.lists(paths, min_size=1, max_size=4))
def test_several_paths_in_one_reading_are_each_path_alone(given_texts, several):
    whole = column(given_texts)

    together = json_fields.locate_each(whole, several)

    for path, spans in zip(several, together, strict=True):
        alone = json_fields.locate(whole, path)
        assert np.array_equal(spans.starts, alone.starts)
        assert np.array_equal(spans.stops, alone.stops)


@settings(max_examples=100, deadline=None)
@given(columns)
def test_text_of_values_is_decoded_once(given_texts):
    wanted = []
    for text in given_texts:
        value = None if text is None else json.loads(text, parse_float=Exact, parse_int=Exact)
        if not (value is None or isinstance(value, str)):
            value = text.decode().strip(" \n\r\t")
        wanted.append(value)

    assert json_fields.as_text(column(given_texts)).to_pylist() == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(objects, min_size=1, max_size=3), st.sets(st.sampled_from(KEYS)))
def test_a_replaced_value_stands_where_the_old_one_stood(given_texts, names):
    whole = column(given_texts)
    new = pa.array([b'{"new":%d}' % n for n in range(len(given_texts))], pa.binary())
    places = [(json_fields.locate(whole, [name]), new) for name in sorted(names)]

    changed = json_fields.replaced(whole, places).to_pylist()

    for n, (old, text) in enumerate(zip(given_texts, changed, strict=True)):
        values = json.loads(old)
        wanted = {k: {"new": n} if k in names else v for k, v in values.items()}
        assert json.loads(text) == wanted
        assert list(json.loads(text)) == list(values)


@settings(max_examples=100, deadline=None)
@given(st.lists(objects, min_size=1, max_size=3), st.sets(st.sampled_from(KEYS)))
def test_a_removed_member_is_gone_with_its_comma(given_texts, names):
    whole = column(given_texts)
    spans = [json_fields.locate(whole, [name]) for name in sorted(names)]

    for old, text in zip(given_texts, json_fields.without(whole, spans).to_pylist(), strict=True):
        members = json.loads(old, object_pairs_hook=list)
        last = {key: i for i, (key, _) in enumerate(members)}
        gone = {last[name] for name in names if name in last}
        wanted = [member for i, member in enumerate(members) if i not in gone]
        assert json.loads(text, object_pairs_hook=list) == wanted


@settings(max_examples=200, deadline=None)
@given(columns)
def test_a_compact_text_has_white_space_in_its_strings_only(given_texts):
    found = json_fields.compact(column(given_texts)).to_pylist()

    space = re.compile(rb'("(?:\\.|[^"\\])*")|\s+')
    wanted = [None if text is None else space.sub(rb"\1", text) for text in given_texts]
    assert found == wanted


def test_replacements_that_are_null_keep_the_value_and_null_rows_stay_null():
    whole = column([b'{ "a" : 1, "b": 2 }', None, b'{"b":3}'])
    spans = json_fields.locate(whole, ["a"])
    other = json_fields.locate(whole, ["b"])
    new = pa.array([None, b"9", b"9"], pa.binary())

    assert json_fields.replaced(whole, [(spans, new), (other, new)]).to_pylist() == [
        b'{ "a" : 1, "b": 2 }',
        None,
        b'{"b":9}',
    ]


def test_of_a_value_inside_a_replaced_one_nothing_is_left():
    whole = column([b'{"a":{"b":1},"c":2}'])
    outer, inner = json_fields.locate_each(whole, [["a"], ["a", "b"]])
    new = pa.array([b"0"], pa.binary())

    assert json_fields.replaced(whole, [(inner, new), (outer, new)]).to_pylist() == [
        b'{"a":0,"c":2}'
    ]
    assert json_fields.without(whole, [inner, outer]).to_pylist() == [b'{"c":2}']


@settings(max_examples=300, deadline=None)
@given(texts, st.integers(0, 200), st.binary(max_size=3), st.booleans())
@example(b"{}", 1, b"", True)
@example(b'{"a":"\\u12"}', 0, b"", False)
def test_a_broken_text_has_no_fields(text, at, noise, cut):
    """Whatever is cut off or put in: what a parser refuses is absent, and nothing else is read."""
    broken = text[:at] if cut else text[:at] + noise + text[at:]
    alone = pa.array([broken], pa.binary())
    # The last bytes of their buffer: whoever reads on reads behind it.
    tight = pa.BinaryArray.from_buffers(
        pa.binary(),
        1,
        [None, pa.py_buffer(np.array([0, len(broken)], np.int32)), pa.py_buffer(broken)],
    )

    for one in (alone, tight):
        spans = json_fields.locate(one, [])
        assert (spans.starts[0] >= 0) == is_json(broken)
        assert len(json_fields.as_text(one)) == 1


def is_json(data):
    try:
        text = data.decode("utf-8", errors="replace")
        value = json.loads(text.encode("utf-8", errors="replace"), parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return value is not MISSING


def refuse(name):
    raise ValueError(name)


@pytest.mark.parametrize("depth", [1, 7, DEPTH_MAX, DEPTH_MAX + 1, 1_000_000])
def test_texts_are_read_to_any_depth_and_checked_at_every_level(depth):
    whole, mixed = b"[" * depth + b"]" * depth, b'{"a":[' * depth + b"]}" * depth
    broken = [whole[:-1], whole + b"]", whole[:-1] + b"}", mixed[:-1], mixed[:-2] + b"}]"]

    starts = json_fields.locate(column([whole, mixed, *broken]), []).starts

    assert (starts >= 0).tolist() == [True, True, *[False] * len(broken)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83dx"', "�x"),
        (rb'"\udc00\ud800"', "��"),
        (b'"\xff"', "�"),
        (b"nul", None),
    ],
)
def test_text_that_is_no_valid_unicode_is_still_text(text, wanted):
    assert json_fields.as_text(column([text])).to_pylist() == [wanted]
