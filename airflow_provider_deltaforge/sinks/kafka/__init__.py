"""The Kafka sink: its settings are in ``sink``, ``writer`` obeys them.

Importing it imports no driver.
"""

from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
