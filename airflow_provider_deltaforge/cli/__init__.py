"""The command line: a module for each command, put together in ``app``; tables in ``views``."""
