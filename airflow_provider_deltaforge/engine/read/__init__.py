"""Reads the log ahead of delivery and cuts it into batches at transaction boundaries.

Begin at ``read_ahead``.
"""
