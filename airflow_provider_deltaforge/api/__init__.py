"""The REST API, and the health and metrics of ``deltaforge run``.

A module of routes for each subject, put together in ``app``: a new route is a function in one of
them and a line of ``docs/rest.md``. What it answers comes from ``control``.
"""
