"""Encodings: the bytes of a message."""
