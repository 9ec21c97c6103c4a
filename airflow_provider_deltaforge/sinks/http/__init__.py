"""The HTTP sink: its settings are in ``sink``, ``writer`` obeys them.

Importing it imports no driver.
"""

from airflow_provider_deltaforge.sinks.http.sink import HttpSink

__all__ = ["HttpSink"]
