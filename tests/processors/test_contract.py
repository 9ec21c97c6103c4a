"""Every processor of the package keeps the contract that plug-ins are tested by."""

import pytest

from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.testing import ProcessorContract

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


@pytest.mark.parametrize("name", SETTINGS)
class TestProcessors(ProcessorContract):
    @pytest.fixture
    def processor(self, name):
        return PROCESSORS.load(name)(id=name, **SETTINGS[name])


def test_every_processor_is_held_to_it():
    assert set(SETTINGS) == set(PROCESSORS.shipped)
