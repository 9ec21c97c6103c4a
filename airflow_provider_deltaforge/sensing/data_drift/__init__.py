"""Data drift: where rows differ from what the catalog says of their table."""
