"""Fingerprints are promises: consumers compare them, and a registry outlives releases."""

from dataclasses import replace

import pytest

from airflow_provider_deltaforge.events.schema import Column, TableSchema

MYSQL = TableSchema(
    "shop",
    None,
    "orders",
    (
        Column(
            "id", "bigint", "bigint unsigned", nullable=False, ordinal_position=1, unsigned=True,
            extra="auto_increment", numeric_precision=20, numeric_scale=0,
        ),
        Column(
            "note", "varchar", "varchar(40)", ordinal_position=2, charset="utf8mb4",
            collation="utf8mb4_bin", default_value="\u00fc", comment="free", char_max_length=40,
        ),
    ),
    ("id",),
)  # fmt: skip
POSTGRES = TableSchema(
    "shop",
    "public",
    "orders",
    (
        Column(
            "id", "bigint", "bigint", nullable=False, ordinal_position=1, type_oid=20,
            is_identity=True, identity_generation="ALWAYS", udt_name="int8",
        ),
        Column(
            "tags", "text[]", "text[]", ordinal_position=2, type_oid=1009, is_array=True,
            element_type="text", udt_name="_text",
        ),
    ),
    ("id",),
)  # fmt: skip
GOLDEN = {
    "mysql": "sha256:5318469c52c213a982ba96b99aa97f9406c0349718216ae79e753bef8ef8c368",
    "postgresql": "sha256:b712d1b4213e5b056dc874c4ee7ec58f6110f09f8d8feabf0231dff678933f8b",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a_fingerprint_never_changes(name):
    schema = {"mysql": MYSQL, "postgresql": POSTGRES}[name]
    assert schema.fingerprint == GOLDEN[name]
    assert len(schema.fingerprint) == 71


def test_the_tables_name_and_character_sets_do_not_count():
    plain = [replace(c, charset=None, collation=None, unsigned=False) for c in MYSQL.columns]
    other = replace(MYSQL, db="else", table="other", columns=tuple(plain))
    assert other.fingerprint == MYSQL.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"name": "x"}, {"column_type": "int"}, {"data_type": "int"}, {"nullable": True},
        {"ordinal_position": 3}, {"default_value": "1"}, {"extra": None}, {"comment": "c"},
        {"char_max_length": 1}, {"numeric_precision": 19}, {"numeric_scale": 1},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_every_other_attribute_counts(change):
    columns = (replace(MYSQL.columns[0], **change), MYSQL.columns[1])
    assert replace(MYSQL, columns=columns).fingerprint != MYSQL.fingerprint
    assert replace(MYSQL, primary_key=()).fingerprint != MYSQL.fingerprint
