"""Lines of COPY's text format: escapes, borders, and lines that do not fit."""

import json

import pytest

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_rows import decode_copy
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalTablePlan


def plan_of(*kinds, key=()):
    columns = tuple(Column(f"c{i}", "", "") for i in range(len(kinds)))
    return WalTablePlan(
        TableSchema("db", "public", "t", columns),
        captured=True,
        chains=tuple((kind,) for kind in kinds),
        key=key,
        identity=(False,) * len(kinds),
    )


def texts(data, *kinds):
    batch, consumed = decode_copy(data, plan_of(*kinds))
    assert consumed == len(data)
    return [json.loads(row["after"]) for row in batch.to_pylist()]


def test_escapes_are_undone():
    data = rb"\b\f\n\r\t\v\\ \q" + b"\t" + rb"\\N" + b"\t" + rb"\N" + b"\n"

    assert texts(data, k.TEXT, k.TEXT, k.TEXT) == [
        {"c0": "\b\f\n\r\t\v\\ q", "c1": "\\N", "c2": None}
    ]


def test_an_empty_text_is_no_null():
    assert texts(b"\t\\N\n\\N\t\n", k.TEXT, k.TEXT) == [
        {"c0": "", "c1": None},
        {"c0": None, "c1": ""},
    ]


@pytest.mark.parametrize("data", [b"", b"1\t2", rb"1\t\\", b"\\"])
def test_a_line_without_its_end_is_left(data):
    batch, consumed = decode_copy(b"7\t8\n" + data, plan_of(k.NUMBER, k.TEXT, key=(0,)))

    assert consumed == 4
    assert batch.to_pylist() == [{"after": b'{"c0":7,"c1":"8"}', "key": b'{"c0":7}'}]


def test_a_table_without_columns_has_empty_rows():
    assert texts(b"\n\n\n") == [{}, {}, {}]


@pytest.mark.parametrize("data", [b"1\n", b"1\t2\t3\n", b"1\\t2\n", b"\n"])
def test_a_line_with_other_columns_is_refused(data):
    with pytest.raises(SchemaError, match=r"public\.t: .* read the chunk again"):
        decode_copy(data, plan_of(k.NUMBER, k.NUMBER))


def test_bytes_in_the_old_format_are_read():
    assert texts(rb"a\\\\\\000\\377" + b"\n", k.BYTEA) == [{"c0": {"_base64": "YVwA/w=="}}]


def test_what_is_given_is_not_changed():
    data = bytearray(b"a\\nb\n")
    decode_copy(data, plan_of(k.TEXT))

    assert data == b"a\\nb\n"
