"""The driver of a pipeline, from its start to its end. Begin at ``driver``."""
