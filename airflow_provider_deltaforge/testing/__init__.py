"""What authors of plug-ins test with: contract suites to inherit, and doubles that need no server.

A contract suite is a class of tests. Inherit it in a test module, define its fixtures, and pytest
checks everything that the engine relies on. ``docs/plugins.md`` shows it step by step.
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ImportError(
        "airflow_provider_deltaforge.testing needs pytest: "
        "pip install 'airflow-provider-deltaforge[testing]'"
    ) from error

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("processors", "sinks", "sources", "stores"))
)

from airflow_provider_deltaforge.sinks.memory import MemorySink, memory_log  # noqa: E402
from airflow_provider_deltaforge.sources.scripted import ScriptedSource  # noqa: E402
from airflow_provider_deltaforge.storage.memory import MemoryStore  # noqa: E402
from airflow_provider_deltaforge.testing.changes import change, change_rows  # noqa: E402
from airflow_provider_deltaforge.testing.processors import ProcessorContract  # noqa: E402
from airflow_provider_deltaforge.testing.sinks import SinkContract, messages  # noqa: E402
from airflow_provider_deltaforge.testing.sources import SourceContract  # noqa: E402
from airflow_provider_deltaforge.testing.stores import (  # noqa: E402
    DurableStoreContract,
    StoreContract,
)

__all__ = [
    "DurableStoreContract",
    "MemorySink",
    "MemoryStore",
    "ProcessorContract",
    "ScriptedSource",
    "SinkContract",
    "SourceContract",
    "StoreContract",
    "change",
    "change_rows",
    "memory_log",
    "messages",
]
