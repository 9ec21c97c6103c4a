"""What the statements of the log do to tables."""

import pytest

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.mysql.ddl.column_definitions import parse_definition
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import tokens_of
from airflow_provider_deltaforge.sources.mysql.ddl.statements import understand


@pytest.mark.parametrize(
    ("statement", "kind", "tables"),
    [
        ("CREATE TABLE IF NOT EXISTS `a b`.`c``d` (id int)", "ddl", (("a b", "c`d"),)),
        ("create or replace table x select 1", "ddl", ((None, "x"),)),
        ("CREATE TEMPORARY TABLE x (a int)", "other", ()),
        ("/* x */ ALTER /*! ONLINE */ TABLE t ADD c int -- DROP TABLE u", "ddl", ((None, "t"),)),
        ("ALTER TABLE t COMMENT 'RENAME TO u', RENAME AS v", "ddl", ((None, "t"), (None, "v"))),
        ("ALTER TABLE t RENAME COLUMN a TO b", "ddl", ((None, "t"),)),
        ("/*!40000 ALTER TABLE `t` DISABLE KEYS */", "ddl", ((None, "t"),)),
        ("DROP TABLE IF EXISTS a.b, c /* by server */", "ddl", (("a", "b"), (None, "c"))),
        ("TRUNCATE s.t", "truncate", (("s", "t"),)),
        ("truncate table t", "truncate", ((None, "t"),)),
        (
            "RENAME TABLE a TO b, c.d TO e.f",
            "ddl",
            ((None, "a"), (None, "b"), ("c", "d"), ("e", "f")),
        ),
        ("CREATE UNIQUE INDEX i USING BTREE ON s.t (a)", "ddl", (("s", "t"),)),
        ("DROP INDEX i ON t", "ddl", ((None, "t"),)),
        ("ALTER TABLE s.2024t ADD c int", "ddl", (("s", "2024t"),)),
        ("DROP TABLE `s`.7, t", "ddl", (("s", "7"), (None, "t"))),
        ("CREATE USER x IDENTIFIED BY 'TABLE t'", "other", ()),
        ("GRANT SELECT ON t TO u", "other", ()),
        ("INSERT INTO t VALUES (1)", "dml", ()),
        ("XA COMMIT 'x'", "control", ()),
        ("SAVEPOINT `s`", "control", ()),
        ("", "other", ()),
    ],
)
def test_statements_are_understood(statement: str, kind: str, tables: tuple) -> None:
    found = understand(statement)
    assert (found.kind, found.tables) == (kind, tables)


def test_databases_are_named() -> None:
    assert understand("DROP DATABASE IF EXISTS `x y`").databases == ("x y",)
    assert understand("CREATE SCHEMA z").databases == ("z",)


@pytest.mark.parametrize(
    "constraint",
    [
        "DEFAULT -1",
        "DEFAULT b'0'",
        "DEFAULT 'a' 'b'",
        "DEFAULT s.next_of(1, (2))",
        "DEFAULT NEXT VALUE FOR s.q",
        "DEFAULT now() + interval 1 day ON UPDATE current_timestamp(6)",
        "GENERATED ALWAYS AS (concat(a, ')')) STORED",
        "CONSTRAINT c CHECK (a in (1, 2)) NOT ENFORCED",
        "REFERENCES s.p (id) MATCH FULL ON DELETE SET NULL ON UPDATE NO ACTION",
        "ENGINE_ATTRIBUTE='{}' SECONDARY_ENGINE_ATTRIBUTE '{\"a\": 1}'",
        "REF_SYSTEM_ID=0 COLUMN_FORMAT DEFAULT WITHOUT SYSTEM VERSIONING INVISIBLE",
    ],
)
def test_a_constraint_ends_where_the_next_begins(constraint: str) -> None:
    found = parse_definition(tokens_of(f"a int {constraint} COMMENT 'x' NOT NULL"), mariadb=True)

    assert (found.column.comment, found.column.nullable) == ("x", False)
    assert found.column.default_value is None


@pytest.mark.parametrize(
    "constraint",
    ["NEW", "DEFAULT", "DEFAULT 1 NEW", "DEFAULT (1", "DEFAULT ,", "CONSTRAINT c", "AS 1"],
)
def test_a_constraint_that_is_not_known_is_no_definition(constraint: str) -> None:
    with pytest.raises(SchemaError, match="is not understood"):
        parse_definition(tokens_of(f"a int NOT NULL {constraint}"), mariadb=False)


def test_serial_as_a_default_is_a_key_that_counts() -> None:
    found = parse_definition(tokens_of("a bigint SERIAL DEFAULT VALUE"), mariadb=False)
    assert (found.column.extra, found.column.nullable) == ("auto_increment", False)
    assert found.unique
