"""Copies tables: planned once, chunk by chunk, finished in one write. Begin at ``snapshot_run``.

``attempts`` decides when what is left is tried again, ``chunk_copy`` copies, and within it sinks
and processors retry by themselves (``engine.base.retry``). A table's chunks are cut by its source.
"""
