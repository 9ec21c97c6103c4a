"""What is left of an error's text when the row's values are taken out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_deltaforge.processors.bad_rows import without_values
from airflow_provider_deltaforge.testing.changes import change, change_rows


def row(**after):
    return change_rows([change(after=json.dumps(after).encode(), key=None)])


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("KeyError: 'emial'", "KeyError: 'emial'"),
        ("KeyError: 'email'", "KeyError: 'email'"),
        ("ValueError: bad address ann@example.com", "ValueError: bad address ***@***.***"),
        ("ValueError: bad ANN", "ValueError: bad ***"),
        ("ValueError: not a number: 'nn@ex'", "ValueError: not a number: '***'"),
        ("ValueError: 17 is too much", "ValueError: *** is too much"),
        ("TypeError: can only add 'int' to 'str'", "TypeError: can only add 'int' to 'str'"),
        ("OSError: mysql://u:pw@host", "OSError: mysql://u:***@host"),
        ("two\nlines", "two lines"),
    ],
)
def test_values_are_hidden_and_the_rest_stays(text, left):
    assert without_values(text, row(email="ann@example.com", age=17)) == left


def test_an_image_that_is_no_json_is_hidden_as_well():
    bad = change_rows([change(after=b"secret text", key=None)])
    assert without_values("at secret text", bad) == "at *** ***"


def test_a_value_is_hidden_as_the_image_writes_it_too():
    event = change_rows([change(after=b'{"note":"M\\u00fcller"}')])
    assert without_values('column note: "M\\u00fcller", Müller', event) == (
        'column note: "***", ***'
    )


@pytest.mark.parametrize(
    "hidden",
    [
        {"after": b'{"note":"planted","note":"other"}'},
        {"after": b"[" * 5000 + b'"planted"' + b"]" * 5000},
        {"routing": {"key": "planted"}},
        {"routing": {"headers": [("h", "planted")]}},
        {"tags": ["planted"]},
    ],
)
def test_values_are_hidden_wherever_an_event_holds_them(hidden):
    assert without_values("bad planted", change_rows([change(**hidden)])) == "bad ***"


@given(
    st.text(st.characters(categories=["L"]), min_size=10), st.sampled_from(["{}", "{!r}", "x {}"])
)
def test_no_text_of_a_row_is_shown(value, template):
    assert value not in without_values(template.format(value), row(note=value))
