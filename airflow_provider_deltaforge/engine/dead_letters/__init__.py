"""Keeps what could not be delivered, in the transaction that moves the position past it.

Begin at ``queue``.
"""
