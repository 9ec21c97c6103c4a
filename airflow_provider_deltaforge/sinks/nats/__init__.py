"""The NATS sink; importing it imports no driver."""

from airflow_provider_deltaforge.sinks.nats.sink import NatsSink

__all__ = ["NatsSink"]
