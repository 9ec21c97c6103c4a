"""``python -m tests.control.metrics_page``: write ``docs/reference/metrics.md`` from the rows."""

from collections.abc import Iterator
from pathlib import Path

from airflow_provider_deltaforge.api.request_counts import REQUESTS, SECONDS
from airflow_provider_deltaforge.control.metrics import (
    OF_STORE,
    PREFIX,
    ROWS,
    drift,
    pipelines,
    processors,
    sensing,
    sinks,
    sources,
    verification,
)

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

GROUPS = {
    "Pipelines and drivers": pipelines.ROWS,
    "Sources": sources.ROWS,
    "Sinks": sinks.ROWS,
    "Processors and dead letters": processors.ROWS,
    "Schema sensing": sensing.ROWS,
    "Data drift": drift.ROWS,
    "Verification": verification.ROWS,
}
assert sum(map(len, GROUPS.values())) == len(ROWS), "a module of metrics has no heading here"

_HEAD = """\
# Metrics

Made by `python -m tests.control.metrics_page` from the code; a test holds the tables against a
scrape of pipelines that run. [Monitoring](../monitoring.md) says how to collect them, and has a
dashboard and alert rules.

Every name begins with `deltaforge_`. Metrics of a pipeline have the labels `pipeline` and `tenant`
before those of the table. A metric without a value is left out: what nobody measures is no zero.
"""


def _row(name: str, kind: str, labels: tuple[str, ...], description: str) -> str:
    shown = f"{name}{'_total' * (kind == 'counter')}"
    return f"| `{shown}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {description} |"


def _table(rows: list[tuple[str, str, tuple[str, ...], str]]) -> Iterator[str]:
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    yield from (_row(*row) for row in rows)


def rows() -> dict[str, list[tuple[str, str, tuple[str, ...], str]]]:
    """Return every metric, by the heading it stands under."""
    own = [
        (name, kind, labels, text) for name, kind, text, labels in (*OF_STORE, REQUESTS, SECONDS)
    ]
    found = {
        group: [(row.name, row.kind, row.labels, row.description) for row in metrics]
        for group, metrics in GROUPS.items()
    }
    return {**found, "The server": own}


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for group, metrics in rows().items():
        parts += [f"## {group}\n", "\n".join(_table(metrics)) + "\n"]
    return "\n".join(parts)


def names() -> set[str]:
    """Return the name of every metric, without what its samples append."""
    return {f"{PREFIX}{name}" for metrics in rows().values() for name, *_ in metrics}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
