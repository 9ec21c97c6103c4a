"""From change events to messages: the processors, then one rendering a sink.

Begin at ``render_stage``.
"""
