"""The Redis sink: its settings are in ``sink``, ``writer`` obeys them.

Importing it imports no driver.
"""

from airflow_provider_deltaforge.sinks.redis.sink import RedisSink

__all__ = ["RedisSink"]
