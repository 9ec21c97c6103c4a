"""What the statements of the log do to tables."""

import pytest

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
