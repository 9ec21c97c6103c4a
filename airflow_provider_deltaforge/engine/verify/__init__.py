"""Compares a source's tables with what sinks hold, beside the running stream.

Begin with ``verification``. ``source_rows`` and ``sink_rows`` turn both sides into ``row_states``,
which are compared by their checksums.
"""
