"""Words, numbers and escapes of a document mean what people and JSON mean by them."""

import json

import pytest
import yaml

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.processors.flatten.settings import Flatten
from airflow_provider_deltaforge.spec.load import check, load, spec_hash
from airflow_provider_deltaforge.spec.yaml_text import NODES_MAX, parse
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


def test_no_more_values_are_made_than_a_document_may_hold(monkeypatch):
    made = []
    compose = yaml.SafeLoader.compose_scalar_node
    monkeypatch.setattr(
        yaml.SafeLoader,
        "compose_scalar_node",
        lambda *arguments: made.append(1) or compose(*arguments),
    )
    with pytest.raises(SpecError, match=f"more than {NODES_MAX} values"):
        parse("[" + "1," * 100_000 + "1]")
    assert len(made) <= NODES_MAX + 1


@pytest.mark.parametrize("core", ["{}", "{x: 1}"])
def test_merges_of_merges_are_counted_and_never_copied(monkeypatch, core):
    def copied(*_):
        raise AssertionError("copies what it merges")

    monkeypatch.setattr(yaml.SafeLoader, "flatten_mapping", copied)
    text = core
    for level in range(8):
        text = f"{{<<: [&a{level} {text}{f', *a{level}' * 9}]}}"
    with pytest.raises(SpecError, match=f"more than {NODES_MAX} values"):
        parse(f"root: {text}")


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}", {"x": 1, "y": 3}),
        ("a: &a {x: 1, y: 2}\nb: {y: 3, <<: *a}", {"x": 1, "y": 3}),
        ("a: [&a {x: 1}, &c {x: 2, y: 3}]\nb: {<<: [*a, *c]}", {"x": 1, "y": 3}),
        ("a: [&a {x: 1}, &c {<<: *a, y: {z: 3}}]\nb: {<<: *c, x: 4}", {"x": 4, "y": {"z": 3}}),
        ("a: &a {x: 1}\nc: &c {<<: *a, x: 2}\nb: *c", {"x": 2}),
        ("b: {<<: []}", {}),
        ("b: {=: 1}", {"=": 1}),
        ("b: {'<<': 1}", {"<<": 1}),
    ],
)
def test_merged_keys_stand_behind_those_of_the_map_itself(text, data):
    parsed = parse(text)
    assert (parsed.data["b"], parsed.problems) == (data, ())


@pytest.mark.parametrize("value", ["1", "[1]", "[[{a: 1}]]"])
def test_only_maps_are_merged(value):
    with pytest.raises(SpecError, match=r"line 2, column .*not YAML: '<<' merges a map"):
        parse(f"a: 1\nb: {{<<: {value}}}")


def test_a_map_that_merges_itself_is_refused():
    with pytest.raises(SpecError, match="an alias holds itself"):
        parse("a: &a {<<: *a}")
