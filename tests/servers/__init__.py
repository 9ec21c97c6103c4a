"""Real servers for the tests, started natively: no container engine, no mock.

Every module here has one function, ``start(directory, port=None, **options) -> Server``. The
server keeps its data below ``directory``, listens on loopback only, answers when ``start``
returns, and dies with the process that started it.
"""
