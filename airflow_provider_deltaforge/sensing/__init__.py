"""Sensing: what JSON columns really hold."""
