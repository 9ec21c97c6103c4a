"""The write-ahead log as ``pgoutput`` sends it: from bytes to change batches.

Begin at ``reader``.
"""
