"""MySQL and MariaDB: the binlog stream, the snapshot and the preflight.

Begin at ``source``. ``column_types`` has a row for each type and its other names.
"""
