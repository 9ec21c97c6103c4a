"""A column type is one row of one table; everything else follows from it."""

import pytest

from airflow_provider_deltaforge.encodings.avro.column_types import Modes, type_of
from airflow_provider_deltaforge.events.schema import Column
from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.column_types import (
    TYPES,
    kind_of,
    length_of,
    precision_of,
)
from tests.sources.postgres import type_matrix
from tests.sources.postgres.stream_reading import execute

SAME_AS = {"oidvector": "int2vector"}
"""Types without golden values of their own: the server prints them alike."""
SHORT = {"character": "char", "character varying": "varchar"}


@pytest.fixture
def described(postgres_server):
    """Names in the catalog and in SQL, by oid."""
    rows = execute(postgres_server, "SELECT oid::int, typname, format_type(oid, NULL) FROM pg_type")
    return {oid: (name, sql) for oid, name, sql in rows}


def test_every_row_is_a_type_of_the_server_with_golden_values(described):
    written = {sample.sql.partition("(")[0] for sample in type_matrix.TYPES}
    for row in TYPES:
        name, sql = described[row.oid] if row.oid else (row.name, row.name)
        assert name == row.name
        wanted = SAME_AS.get(name, sql.removesuffix(" without time zone"))
        assert SHORT.get(wanted, wanted) in written


def test_every_type_has_an_avro_type_of_its_own():
    for row in TYPES:
        column = Column("c", row.name, row.name, udt_name=row.name, numeric_precision=9,
                        numeric_scale=2)  # fmt: skip
        made = type_of(column, "postgresql", Modes(naive_timestamp="timestamp"))
        assert (made.schema == "string") == (row.kind in (k.TEXT, k.TIMETZ, k.JSON))


def test_rows_are_unique():
    assert len({row.name for row in TYPES}) == len(TYPES)
    named = [row.oid or row.printer for row in TYPES]
    assert len(set(named)) == len(TYPES)
    assert all(named)


@pytest.mark.parametrize(
    ("oid", "typmod", "kind"),
    [(1560, 1, k.BIT1), (1560, 64, k.BIT), (1560, 65, k.TEXT), (1560, -1, k.TEXT),
     (1562, 8, k.TEXT), (1700, -1, k.PLAIN), (25, -1, k.TEXT), (0, -1, k.TEXT)],
)  # fmt: skip
def test_modifiers_decide(oid, typmod, kind):
    assert kind_of(oid, typmod, "", decimal_numbers=False) == kind


def test_modifiers_say_lengths_and_digits():
    assert (length_of(1043, 44), length_of(1042, -1), length_of(25, 44)) == (40, None, None)
    assert precision_of(1700, (10 << 16 | 2) + 4) == (10, 2)
    assert precision_of(1700, (2 << 16 | 0x7FD) + 4) == (2, -3)
    assert precision_of(1700, -1) == precision_of(1043, 44) == (None, None)
    assert kind_of(1700, -1, "", decimal_numbers=True) == k.FLOAT
