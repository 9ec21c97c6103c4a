"""What statements in the log do to tables. Begin at ``schema_evolution``."""
