"""The engine on Spark: lanes as long tasks, chunks as jobs. Begin at ``application``."""
