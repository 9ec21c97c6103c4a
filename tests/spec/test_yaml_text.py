"""Words, numbers and escapes of a document mean what people and JSON mean by them."""

import json

import pytest

from airflow_provider_deltaforge.processors.flatten.settings import Flatten
from airflow_provider_deltaforge.spec.load import check, load, spec_hash
from airflow_provider_deltaforge.spec.yaml_text import parse
from tests.processors.rows import images

DOCUMENT = {
    "metadata": {"name": "orders", "tenant": "acme"},
    "spec": {
        "source": {"type": "mysql", "config": {"dsn": "mysql://u@h/d", "tables": ["d.t"]}},
        "processors": [{"type": "filter", "fields": [{"path": "a", "op": "eq", "value": "😀"}]}],
        "sinks": [{"type": "stdout", "config": {"id": "out"}}],
    },
}


def test_a_document_of_json_dumps_is_the_same_document():
    escaped, plain = json.dumps(DOCUMENT), json.dumps(DOCUMENT, ensure_ascii=False)
    assert "\\ud83d" in escaped
    assert check(escaped) == []
    assert load(escaped) == load(plain)
    assert spec_hash(escaped) == spec_hash(plain)


@pytest.mark.parametrize("half", ["\ud83d", "x\ude00y", "\ude00\ud83d"])
@pytest.mark.parametrize("as_key", [False, True])
def test_half_a_surrogate_pair_is_named_with_its_line(half, as_key):
    told = {half: 1} if as_key else {"path": half}
    text = json.dumps({**DOCUMENT, "metadata": {**DOCUMENT["metadata"], "labels": told}})
    found = [problem for problem in check(text) if "surrogate" in problem.message]
    assert [problem.line for problem in found] == [1]
    assert len(spec_hash(text)) == 64


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("12:30", "12:30"),
        ("12:30:45.5", "12:30:45.5"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("1e3", 1000.0),
        ("-1.5E-2", -0.015),
        ("1_000", 1000),
        ("0x1F", 31),
        (".5", 0.5),
        ("-0", 0),
    ],
)
def test_plain_words_are_read_as_yaml_1_2_reads_them(text, value):
    found = parse(f"a: {text}").data["a"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize("word", ["yes", "on", "true", "True", "no", "off", "false"])
def test_a_switch_takes_the_words_of_yaml_1_1_all_the_same(word):
    text = json.dumps({**DOCUMENT, "spec": {**DOCUMENT["spec"], "journal": {"enabled": "WORD"}}})
    pipeline = load(text.replace('"WORD"', word))
    assert pipeline.spec.journal.enabled is (word.lower() in {"yes", "on", "true"})


@pytest.mark.parametrize("written", ["null", "~", '"null"', ""])
def test_null_without_quotes_is_null(written):
    text = f"empty_object: {written}\nempty_list: {written}"
    worker = Flatten(**parse(text).data).open()
    done = worker.process(images(b'{"a":{},"b":[],"c":{"d":{}}}'))
    assert done.rows["after"].to_pylist() == [b'{"a":null,"b":null,"c__d":null}']
