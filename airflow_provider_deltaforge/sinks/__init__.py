"""Sinks: one file each, 50 to 150 lines. They receive finished messages, never events."""
