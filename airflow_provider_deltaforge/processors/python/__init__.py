"""Functions in Python, over batches, rows or single events."""
