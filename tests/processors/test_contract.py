"""Every processor of the package keeps the contract that plug-ins are tested by."""

import pytest

from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.testing import ProcessorContract
from airflow_provider_deltaforge.testing.processors import process
from tests.processors.rows import rows_of

SETTINGS = {
    "contract": {"tables": [{"table": "shop.*", "columns": {"sku": {"type": "string"}}}]},
    "filter": {"ops": ["create", "delete"]},
    "flatten": {},
    "javascript": {"inline": "(event) => [event, { ...event, table: 'copies' }]"},
    "mask": {"rules": [{"columns": ["*.*.sku"], "action": "tokenise"}], "secret": "s" * 16},
    "outbox": {},
    "python": {"function": "tests.processors.python_samples:twice"},
    "sql": {"query": "select events.* from events, range(2) order by _row"},
}

BACKWARDS = "tests.processors.python_samples:backwards"


@pytest.mark.parametrize("name", SETTINGS)
class TestProcessors(ProcessorContract):
    @pytest.fixture
    def processor(self, name):
        return PROCESSORS.load(name)(id=name, **SETTINGS[name])


def test_every_processor_is_held_to_it():
    assert set(SETTINGS) == set(PROCESSORS.shipped)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("python", {"function": BACKWARDS}),
        ("python", {"function": BACKWARDS, "mode": "rows", "columns": {"n": "int64"}}),
        ("javascript", {"inline": "function processBatch(events) { return events.reverse() }"}),
        ("sql", {"query": "select * from events order by _row desc"}),
    ],
)
def test_events_come_out_in_the_order_of_the_log(name, settings):
    rows = rows_of({"n": 3}, {"n": 2}, {"n": 1})
    assert process(PROCESSORS.load(name)(id=name, **settings), rows).rows.equals(rows)
