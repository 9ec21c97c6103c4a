"""Row changes of a Turso database or a SQLite file."""
