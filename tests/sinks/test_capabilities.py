"""What sinks declare of themselves is what their documents can ask for."""

import pytest

from airflow_provider_deltaforge.plugins import SINKS
from airflow_provider_deltaforge.sinks.contract import Sink

NAMES = sorted(SINKS.shipped)


@pytest.mark.parametrize("name", NAMES)
def test_the_fields_of_templates_are_fields(name):
    sink = SINKS.load(name)

    assert sink.destination_field in sink.model_fields
    assert sink.key_field == ("key" if "key" in sink.model_fields else None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("field", "declared"), [("exactly_once", "holds_position"), ("tombstones", "writes_tombstones")]
)
def test_a_choice_of_the_document_is_declared(name, field, declared):
    sink = SINKS.load(name)

    assert (getattr(sink, declared) is not getattr(Sink, declared)) == (field in sink.model_fields)


@pytest.mark.parametrize("name", [n for n in NAMES if "exactly_once" in SINKS.load(n).model_fields])
def test_what_has_no_position_is_not_written_with_one(name):
    exact = SINKS.load(name).model_construct(exactly_once=True)

    assert exact.holds_position
    assert not exact.without_position().holds_position
