"""Carries the log to a sink that is behind while the others go on. Begin at ``lagging_sinks``."""
