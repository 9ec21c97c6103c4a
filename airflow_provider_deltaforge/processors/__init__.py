"""Processors: columns in, columns out."""
