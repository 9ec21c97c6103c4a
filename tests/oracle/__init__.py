"""The oracle: an independent reading of the source's history against what the sink holds."""
