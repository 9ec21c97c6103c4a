"""Counts by table, cut to the largest tables where they travel through Airflow's database."""

from collections.abc import Callable, Mapping
from typing import Any

TABLES_SHOWN = 50


def with_largest_tables(
    counts: Mapping[str, Any], size: Callable[[Mapping[str, Any]], int], key: str = "tables"
) -> dict[str, Any]:
    """Return the same with the largest tables only; ``tables_in_all`` says how many there are.

    Sums stay those of all tables. What needs the rows of each table takes the counts as they are.

    Args:
        counts: JSON-able data that holds counts by table.
        size: of one table, by its counts.
        key: where the tables are.
    """
    by_size = sorted(counts[key].items(), key=lambda item: -size(item[1]))
    return {**counts, key: dict(sorted(by_size[:TABLES_SHOWN])), "tables_in_all": len(by_size)}
