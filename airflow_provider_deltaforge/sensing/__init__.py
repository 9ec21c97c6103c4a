"""Schema sensing: what rows and JSON columns really hold, learned from what flows."""
