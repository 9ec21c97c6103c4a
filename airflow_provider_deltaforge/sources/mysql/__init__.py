"""MySQL and MariaDB: the binlog stream, the snapshot and the preflight."""
