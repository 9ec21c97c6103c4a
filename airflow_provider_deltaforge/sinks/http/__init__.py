"""The HTTP sink; importing it imports no driver."""

from airflow_provider_deltaforge.sinks.http.sink import HttpSink

__all__ = ["HttpSink"]
