"""Writes messages to sinks: one thread each, fenced, each event once where that is promised.

Begin at ``sink_group``.
"""
