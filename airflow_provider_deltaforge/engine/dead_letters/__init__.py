"""Keeps what could not be delivered, in the transaction that moves the position past it.

Begin at ``queue``. The reason is worded by who refuses the event, in a ``Rejection``: a processor's
``worker``, ``engine.render``, a sink's ``writer`` or ``sender``.
"""
