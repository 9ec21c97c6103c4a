"""Envelopes: the shape of a message, made by joining columns, never row by row."""
