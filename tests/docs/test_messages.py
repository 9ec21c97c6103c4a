"""docs/messages.md shows what the envelopes write, with every field and every operation."""

import json
import re

from airflow_provider_deltaforge.envelopes import cloudevents
from airflow_provider_deltaforge.envelopes.shapes import NATIVE
from airflow_provider_deltaforge.events.shapes import Shape
from tests.docs.pages import CHECKOUT, DOCS, fences, tokens

PAGE = DOCS / "messages.md"
GOLDEN = CHECKOUT / "tests" / "golden" / "envelopes"


def names_below(heading):
    """Return the names in the first column of the table below a heading."""
    chapter = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    heads = re.findall(r"^\| (`[^|]+`) \|", chapter, re.MULTILINE)
    return [name for head in heads for name in re.findall(r"`(\w+)`", head)]


def golden(envelope, case):
    return json.loads((GOLDEN / envelope / f"{case}.json").read_text())


def test_the_messages_are_what_the_envelopes_write():
    native, debezium, event = (
        json.loads(block.text)
        for block in fences(tokens(PAGE), "docs/messages.md")
        if block.language == "json"
    )

    assert native == golden("native", "insert_ends_transaction")
    assert [*native] == [*golden("native", "insert_ends_transaction")]
    assert event == golden("cloudevents", "insert")
    full = golden("debezium", "insert")
    assert debezium.keys() == full.keys()
    shown, whole = debezium["payload"], full["payload"]
    assert shown == {name: whole[name] for name in shown} | {"source": {}}


def test_every_field_is_explained():
    assert names_below("Native") == [field.name for field in NATIVE.fields]

    page = PAGE.read_text()
    inner = [field.what for field in NATIVE.fields if isinstance(field.what, Shape)]
    lacking = [
        field.name for shape in inner for field in shape.fields if f"`{field.name}`" not in page
    ]
    assert lacking == ["sequence"]  # Of the scripted source, which only tests read.


def test_every_operation_is_explained():
    assert names_below("Operations") == [*cloudevents._SUFFIXES]
    for word in cloudevents._SUFFIXES.values():
        assert f"| `{word}` |" in PAGE.read_text()
