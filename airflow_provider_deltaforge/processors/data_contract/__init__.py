"""What rows of tables have to hold: columns in bulk, JSON Schema row by row."""
