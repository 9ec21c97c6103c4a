"""What was found in a batch: plain data, which travels from workers to drivers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

DriftType: TypeAlias = Literal[
    "unexpected_null",
    "type_mismatch",
    "undeclared_column",
    "missing_column",
    "value_out_of_range",
]
"""What is found here; a change of a JSON column's structure is found by schema sensing."""


@dataclass(frozen=True, slots=True)
class ColumnFinding:
    """What is wrong with one column in one way.

    Attributes:
        column: its name.
        drift_type: the way.
        expected: what the catalog says.
        count: values, one for each event.
        observed: what was there, in words; for values their JSON types.
        samples: at most five values, as JSON texts of at most 100 characters.
    """

    column: str
    drift_type: DriftType
    expected: str
    count: int
    observed: Sequence[str]
    samples: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TableFindings:
    """What was found in the events of one table.

    Attributes:
        table: its full name.
        fingerprint: of the schema that they were held to.
        events: how many were looked at.
        drifted: how many differ from what is expected, missing columns aside.
        delivered: how many of them left the processors; the others are rows of the source.
        drifted_rows: how many of the others differ.
        columns: what is wrong; empty where nothing is.
        absent: by declared column, how many delivered events lack it, and its type; those that
            none lacks are left out.
        unlisted: values of further undeclared columns, which are too many to count separately.
    """

    table: str
    fingerprint: str
    events: int
    drifted: int = 0
    delivered: int = 0
    drifted_rows: int = 0
    columns: Sequence[ColumnFinding] = ()
    absent: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    unlisted: int = 0


def combined(findings: Iterable[TableFindings], samples: int) -> list[TableFindings]:
    """Return findings with those of one table and schema added up, in the order of the first."""
    kept: dict[tuple[str, str], TableFindings] = {}
    for found in findings:
        key = found.table, found.fingerprint
        kept[key] = _sum(kept[key], found, samples) if key in kept else found
    return list(kept.values())


def _sum(first: TableFindings, other: TableFindings, samples: int) -> TableFindings:
    columns = {(found.column, found.drift_type): found for found in first.columns}
    for found in other.columns:
        key = found.column, found.drift_type
        former = columns.get(key)
        if former is None:
            columns[key] = found
            continue
        columns[key] = replace(
            found,
            count=former.count + found.count,
            observed=tuple(dict.fromkeys([*former.observed, *found.observed])),
            samples=tuple(dict.fromkeys([*former.samples, *found.samples]))[:samples],
        )
    absent = dict(first.absent)
    for column, (count, column_type) in other.absent.items():
        absent[column] = (absent[column][0] + count if column in absent else count, column_type)
    return replace(
        first,
        events=first.events + other.events,
        drifted=first.drifted + other.drifted,
        delivered=first.delivered + other.delivered,
        drifted_rows=first.drifted_rows + other.drifted_rows,
        columns=tuple(columns.values()),
        absent=absent,
        unlisted=first.unlisted + other.unlisted,
    )
