"""The Redis sink; importing it imports no driver."""

from airflow_provider_deltaforge.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
