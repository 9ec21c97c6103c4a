"""What statements make of tables, held against what the servers' own catalogs say afterwards."""

import orjson
import pytest

from airflow_provider_deltaforge.sources.mysql.catalog import load_table
from airflow_provider_deltaforge.sources.mysql.column_types import TEXT_TYPES, TYPES
from airflow_provider_deltaforge.sources.mysql.ddl.schema_evolution import evolve
from airflow_provider_deltaforge.sources.mysql.ddl.statements import understand
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import rows, source_of

NAME = "evolving"
SYNONYMS = {
    synonym: f"{synonym}(9)" if row.name == "varchar" else synonym
    for row in TYPES
    for synonym in row.synonyms
}

BOTH = [
    "CREATE TABLE t (id int unsigned NOT NULL AUTO_INCREMENT, name varchar(20) NOT NULL "
    "DEFAULT 'x', kind enum('a','it''s','with,comma') CHARACTER SET latin1, price DECIMAL(10,2), "
    "`od``d` smallint, PRIMARY KEY (id), KEY k (name)) DEFAULT CHARSET=utf8mb4",
    "ALTER TABLE t ADD COLUMN (a tinyint(1), b varchar(300) NOT NULL)",
    "ALTER TABLE t ADD c bigint unsigned FIRST, ADD COLUMN d datetime(3) NULL AFTER `od``d`",
    "ALTER TABLE t DROP a, ADD a bigint, RENAME COLUMN c TO cc",
    "ALTER TABLE t CHANGE b b2 mediumtext CHARACTER SET latin1 COMMENT 'it''s, (b)' AFTER id",
    "ALTER TABLE t MODIFY COLUMN price double precision NOT NULL DEFAULT 0 FIRST",
    "ALTER TABLE t MODIFY a int /* comment, with ( */ unsigned -- end, of line",
    "/*!50100 ALTER TABLE `t` ADD INDEX i (d), ADD UNIQUE KEY u (cc) */",
    "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, ENGINE=InnoDB",
    "CREATE INDEX by_name ON t (name)",
    "CREATE TABLE synonyms (id int PRIMARY KEY, "
    f"{', '.join(f'c_{name} {written}' for name, written in SYNONYMS.items())})",
    "ALTER TABLE t ALTER COLUMN name SET DEFAULT 'y', ALTER a DROP DEFAULT",
    "ALTER TABLE t DROP PRIMARY KEY, MODIFY id int, ADD PRIMARY KEY (cc, id)",
    "ALTER TABLE t RENAME COLUMN cc TO a, RENAME COLUMN a TO cc",
    "ALTER TABLE t CHANGE a id int NOT NULL FIRST, CHANGE id a bigint NOT NULL, "
    "ADD n1 int AFTER cc, ADD n2 int AFTER n1, MODIFY name varchar(30) AFTER n2, ADD n3 int",
    "CREATE TABLE u LIKE t",
    "ALTER TABLE u RENAME TO v",
    "RENAME TABLE t TO t_old, v TO t",
    "ALTER TABLE t RENAME AS t2",
    "ALTER TABLE t2 RENAME t",
    "CREATE TABLE `we ird`.`ta.ble` (`a b` int PRIMARY KEY, c char(3) ASCII, d NATIONAL "
    "VARCHAR(5), e bool, f serial, g CHAR VARYING(4), h long varchar, i char(4) byte, "
    "CHECK (e > 0))",
    "ALTER TABLE `we ird`.`ta.ble` ADD s set('x','y z') NOT NULL DEFAULT 'x' AFTER `a b`",
    "CREATE TABLE shapes (id bigint NOT NULL, g geometry NOT NULL, p point, j json, bits bit(5), "
    "y year, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL, ts timestamp(3) NOT NULL DEFAULT "
    "CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3), f float, n numeric(5), bin binary(16), "
    "vb varbinary(9), bl blob, tt tinytext, t time(2), CONSTRAINT pk PRIMARY KEY USING BTREE (id))",
    "ALTER TABLE shapes ADD CONSTRAINT c CHECK (id > 0), ADD COLUMN e enum('ä','b') FIRST",
    "ALTER TABLE shapes DROP COLUMN twice, DROP COLUMN p, ALGORITHM=COPY",
    "CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) "
    "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE parts TRUNCATE PARTITION p0",
    "CREATE TABLE plain (id int PRIMARY KEY, v int)",
    "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE plain",
    "ALTER TABLE parts DROP PARTITION p0",
    "CREATE TABLE selected (extra int) SELECT 1 AS one, 'x' AS word",
    "DROP TABLE IF EXISTS plain, never, shapes",
    "ALTER DATABASE evolving CHARACTER SET latin1",
    "ALTER TABLE parts ADD w varchar(10), ADD x varchar(10) COLLATE utf8mb4_bin",
    "TRUNCATE TABLE parts",
    "DROP TABLE parts",
    "CREATE TABLE bytes (id int PRIMARY KEY, t tinytext CHARACTER SET binary, "
    "l longtext BYTE, e text CHARACTER SET binary, c char(3) CHARACTER SET binary)",
    "CREATE TABLE words (period int, vector int, id int PRIMARY KEY)",
    "ALTER TABLE words ALTER vector SET DEFAULT 1, DROP COLUMN period",
    "ALTER TABLE words ADD COLUMN period date FIRST, DROP COLUMN vector",
    "ALTER TABLE words ADD vector int NOT NULL AFTER period, DROP PRIMARY KEY",
    "CREATE TABLE blanks (id int PRIMARY KEY, e enum('new ',' old  ','t\t','') NOT NULL DEFAULT "
    "'new', s set('a ','b') CHARACTER SET ucs2)",
    "ALTER TABLE blanks ADD f enum('z ') NOT NULL COLLATE utf8mb4_bin FIRST, MODIFY s set('c ')",
    "CREATE TABLE converted (id int PRIMARY KEY, a text, b text, c tinytext CHARACTER SET latin1, "
    "d varchar(9)) CHARACTER SET latin1",
    "ALTER TABLE converted ADD e text CHARACTER SET utf8mb4, CONVERT TO CHARACTER SET latin1, "
    "ADD f varchar(5) COLLATE utf8mb4_bin FIRST",
    "ALTER TABLE converted CONVERT TO CHARACTER SET utf8mb4, ADD g enum('ä') CHARACTER SET latin1, "
    "MODIFY d varchar(9) CHARACTER SET latin1 AFTER b, RENAME COLUMN c TO c2",
]
MYSQL = [
    # MariaDB does not log what did nothing.
    "CREATE TABLE IF NOT EXISTS t (other int)",
    "CREATE TABLE m (id int PRIMARY KEY, v vector(3), p point SRID 4326, h int INVISIBLE)",
    "ALTER TABLE m ADD g int AS (id + 1) STORED, ALGORITHM=COPY, LOCK=SHARED",
    "ALTER TABLE words DROP period, ADD period int, DROP vector",
    # As MySQL logs what it made with sql_generate_invisible_primary_key.
    "CREATE TABLE g (my_row_id bigint unsigned NOT NULL AUTO_INCREMENT /*!80023 INVISIBLE */, "
    "a varchar(5), b int, PRIMARY KEY (my_row_id))",
    "ALTER TABLE g ADD n bigint unsigned NOT NULL FIRST",
    "ALTER TABLE g MODIFY b bigint FIRST, ADD c int FIRST, ADD d int AFTER b, ADD e int FIRST",
    "ALTER TABLE g ADD f int FIRST, ALTER COLUMN my_row_id SET VISIBLE",
    "ALTER TABLE g ADD h int FIRST, ALTER COLUMN a SET INVISIBLE",
    "CREATE TABLE g2 (my_row_id bigint unsigned NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY, "
    "b int)",
    "ALTER TABLE g2 ADD n int FIRST, DROP my_row_id",
    "CREATE TABLE g3 (my_row_id bigint NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY, b int)",
    "ALTER TABLE g3 ADD n int FIRST",
]
MARIADB = [
    "CREATE OR REPLACE TABLE m (id int PRIMARY KEY, u uuid, i inet6, c varchar(9) COMPRESSED)",
    "ALTER TABLE IF EXISTS m NOWAIT ADD COLUMN IF NOT EXISTS id int, ADD COLUMN x int",
    "ALTER TABLE m DROP COLUMN IF EXISTS nothing, MODIFY COLUMN IF EXISTS nothing int",
    "ALTER TABLE m CHANGE IF EXISTS x y bigint, RENAME COLUMN i TO j",
    "CREATE OR REPLACE TABLE m (only int)",
    "/*M!100100 ALTER TABLE m ADD z int */",
    "ALTER TABLE m ADD p int AS (only + 1) PERSISTENT",
    "ALTER TABLE converted MODIFY a text CHARACTER SET latin1 AFTER b, CHANGE e e2 tinytext, "
    "CONVERT TO CHARACTER SET utf8mb4",
    "ALTER TABLE converted MODIFY b tinytext CHARACTER SET latin1, CONVERT TO CHARSET utf8mb4",
    "CREATE TABLE g (my_row_id bigint unsigned NOT NULL AUTO_INCREMENT INVISIBLE PRIMARY KEY, "
    "b int INVISIBLE, v int)",
    "ALTER TABLE g ADD n int FIRST, MODIFY b int",
]
UNKNOWN = {
    # The columns of a SELECT and of an unknown existing table are nobody's to guess.
    "CREATE TABLE t (a int) SELECT * FROM u",
    "CREATE TABLE t AS SELECT 1",
    "ALTER TABLE t FROB a",
    "ALTER TABLE t ADD a sometype",
    "ALTER TABLE t ADD a int FROBNICATED",
    "ALTER TABLE t ADD a int BYTE",
    "ALTER TABLE t ADD a varchar",
    "ALTER TABLE t DROP nothing",
    "ALTER TABLE t CONVERT TO CHARACTER SET DEFAULT",
    "CREATE TABLE t (a int",
}


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    server = request.getfixturevalue(f"{request.param}_server")
    server.is_mariadb = request.param == "mariadb"
    sql.execute(
        server,
        *(f"DROP DATABASE IF EXISTS `{name}`" for name in (NAME, "we ird")),
        f"CREATE DATABASE {NAME} CHARACTER SET utf8mb4",
        "CREATE DATABASE `we ird` CHARACTER SET utf8mb4",
    )
    return server


def test_every_statement_gives_what_the_catalog_says(server):
    mariadb = server.is_mariadb
    source = source_of(server, NAME, tables=[f"{NAME}.*", "we ird.*"])
    start = source.head()
    statements = [*BOTH, *(MARIADB if mariadb else MYSQL)]
    catalog = []
    with sql.connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"USE {NAME}")
        for statement in statements:
            cursor.execute(statement)
            cursor.execute("COMMIT")
            catalog.append(everything(connection))
    logged = [orjson.loads(row["ddl"]) for row in rows(source, start) if row["ddl"]]
    logged = [record for record in logged if "DATABASE" not in record["sql"]]
    statements = [text for text in statements if "DATABASE" not in text]
    catalog = [
        c
        for c, text in zip(catalog, [*BOTH, *(MARIADB if mariadb else MYSQL)], strict=True)
        if "DATABASE" not in text
    ]
    verbs = [understand(text["sql"]).verb for text in logged]
    assert verbs == [understand(text).verb for text in statements], [t["sql"] for t in logged]

    known, wrong, unknown = {}, [], []
    for record, expected in zip(logged, catalog, strict=True):
        statement = understand(record["sql"], mariadb=mariadb)
        changed = evolve(statement, record["database"], known.get, mariadb=mariadb)
        known.update(changed)
        for key in known.keys() | expected.keys():
            ours, theirs = known.get(key), expected.get(key)
            if ours is None and theirs is not None:
                unknown.append((record["sql"], key))
                known[key] = theirs
            elif shape(ours, theirs) != shape(theirs):
                wrong.append((record["sql"], shape(ours, theirs), shape(theirs)))
                known[key] = theirs
    assert wrong == [], "\n".join(map(str, wrong))
    assert unknown == []


def everything(connection):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
            f" WHERE TABLE_SCHEMA IN ('{NAME}', 'we ird')"
        )
        return {key: load_table(connection, *key) for key in cursor.fetchall()}


def shape(schema, other=None):
    """What decides how rows are read.

    A character set that a statement leaves to the table's default is not known; that of ``other``
    stands for it.
    """
    if schema is None:
        return None
    there = {c.name: c.charset for c in other.columns} if other is not None else {}
    columns = [
        (
            c.name,
            c.data_type,
            c.column_type,
            c.nullable,
            c.unsigned,
            there.get(c.name) if c.charset is None and c.data_type in TEXT_TYPES else c.charset,
            c.labels,
            "INVISIBLE" in (c.extra or ""),
        )
        for c in schema.columns
    ]
    return schema.db, schema.table, columns, schema.primary_key


@pytest.mark.parametrize("statement", sorted(UNKNOWN))
def test_what_is_not_understood_is_unknown(statement):
    first = understand("CREATE TABLE t (id int PRIMARY KEY, b varchar(3))")
    known = evolve(first, "d", lambda _: None, mariadb=True)
    assert evolve(understand(statement), "d", known.get, mariadb=True) == {("d", "t"): None}


@pytest.mark.parametrize("charset", ["CHARACTER SET binary", "NOT NULL COLLATE binary"])
def test_labels_of_bytes_keep_trailing_blanks(mysql_server: Server, charset: str) -> None:
    text = f"CREATE TABLE t (id int PRIMARY KEY, e enum('a ','b') {charset})"
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    sql.execute(mysql_server, text, database=NAME)
    evolved = evolve(understand(text), NAME, lambda _: None, mariadb=False)[(NAME, "t")]
    with sql.connect(mysql_server) as connection:
        known = load_table(connection, NAME, "t")
    assert evolved is not None
    assert known is not None
    assert evolved.columns[1].labels == known.columns[1].labels == ("a ", "b")
    assert evolved.columns[1].column_type == known.columns[1].column_type


def test_a_text_that_is_converted_and_changed_is_unknown_on_mysql() -> None:
    first = understand("CREATE TABLE t (id int PRIMARY KEY, b varchar(3) CHARACTER SET latin1)")
    known = evolve(first, "d", lambda _: None, mariadb=False)
    statement = understand("ALTER TABLE t MODIFY b mediumtext, CONVERT TO CHARACTER SET utf8mb4")
    assert evolve(statement, "d", known.get, mariadb=False) == {("d", "t"): None}
