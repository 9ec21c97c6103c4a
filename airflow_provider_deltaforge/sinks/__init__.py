"""Sinks: they receive finished messages, never events. A small one is one file."""
