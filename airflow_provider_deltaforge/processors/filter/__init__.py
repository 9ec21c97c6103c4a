"""Keep or drop events by tables, operations and fields."""
