"""What every part of the engine stands on.

A worker's context, retries, counters, and what people want of it.
"""
