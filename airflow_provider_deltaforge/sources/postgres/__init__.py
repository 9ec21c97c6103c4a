"""PostgreSQL as a source: logical replication with ``pgoutput``, snapshots with ``COPY``.

Begin at ``source``.
"""
