"""Reads tables in chunks, each from a view with a known place in the log.

Begin at ``snapshotter``.
"""
