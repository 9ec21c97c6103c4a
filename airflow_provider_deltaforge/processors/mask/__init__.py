"""Masking of columns, in row images and keys."""
