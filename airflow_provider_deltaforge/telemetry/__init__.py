"""Telemetry: metric names and log fields."""
