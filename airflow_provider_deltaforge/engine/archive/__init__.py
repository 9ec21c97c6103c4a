"""Keeps the source's log as Parquet files, so that it can be read when the source has forgotten it.

Begin at ``writer`` for how it is kept, at ``archive`` for how it is read.
"""
