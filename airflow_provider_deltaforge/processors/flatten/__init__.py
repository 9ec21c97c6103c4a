"""Lift nested JSON members to the top of row images."""
