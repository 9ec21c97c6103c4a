"""The Kafka sink; importing it imports no driver."""

from airflow_provider_deltaforge.sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]
