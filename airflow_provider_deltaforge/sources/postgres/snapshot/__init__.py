"""Reads tables in chunks with ``COPY``. Begin at ``snapshotter``."""
