"""Sources: they read a database's log and tables, and emit change batches."""
