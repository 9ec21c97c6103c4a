"""JSON values in row images that stand for something else."""

UNCHANGED = b'{"_unchanged":true}'
"""Stands in a row image for a value that the log does not repeat, because it did not change.

A source writes no value of a row with these very bytes (``{"_unchanged": true}`` has a space), so
processors know the mark by them; consumers know it by the event's field ``unchanged``.
"""
