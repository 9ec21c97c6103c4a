"""Copies tables: planned once, chunk by chunk, finished in one write. Begin at ``snapshot_run``."""
