"""The NATS sink: its settings are in ``sink``, ``writer`` obeys them.

Importing it imports no driver.
"""

from airflow_provider_deltaforge.sinks.nats.sink import NatsSink

__all__ = ["NatsSink"]
