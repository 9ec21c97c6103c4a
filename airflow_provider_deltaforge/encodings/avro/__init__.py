"""Avro with a schema registry that speaks Confluent's API.

``column_types`` says which Avro type a column has, ``rows`` and ``frames`` write whole columns of
JSON messages as records, ``subjects`` has their schemas registered, ``encoder`` is the worker.
"""

from airflow_provider_deltaforge.encodings.avro.encoding import AvroEncoding

__all__ = ["AvroEncoding"]
