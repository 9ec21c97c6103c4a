"""Reads the log ahead of delivery and cuts it into batches at transaction borders.

Begin at ``read_ahead``.
"""
