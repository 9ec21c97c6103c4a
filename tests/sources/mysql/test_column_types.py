"""A column type is one row of one table; everything else follows from it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_deltaforge.encodings.avro.column_types import Modes, type_of
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql import column_types
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import captured_plan
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import LogColumn, TableMap
from airflow_provider_deltaforge.sources.mysql.column_types import BY_NAME, TYPES
from airflow_provider_deltaforge.sources.mysql.ddl.column_definitions import parse_definition
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import tokens_of
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import shape_of
from tests.sources.mysql import type_matrix

PACKAGE = Path(column_types.__file__).parent
MANY = 3
"""So many names of types in one literal are a list of types."""

SHAPES = {"point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"}
SAME_AS = {"geomcollection": "geometry"} | dict.fromkeys(SHAPES, "geometry")
"""Types without golden values of their own: the servers store them alike."""
COPIED_ONLY = {"xmltype"}
STREAMED = sorted({row.name for row in TYPES if row.codes})
ARGUMENTS = {"varchar": "(9)", "varbinary": "(9)", "enum": "('a')", "set": "('a')"}


@pytest.mark.parametrize("name", sorted({row.name for row in TYPES} - COPIED_ONLY))
def test_every_type_has_golden_values(name):
    wanted = SAME_AS.get(name, name)
    columns = [
        re.split(r"[ (]", part.strip())[1]
        for table in type_matrix.TABLES
        if table.expected
        for part in re.sub(r"'[^']*'", "''", table.columns).split(",")
        if part.strip().count(" ")
    ]
    assert wanted in columns


@pytest.mark.parametrize("name", STREAMED)
def test_a_row_is_all_that_statement_log_and_snapshot_need(name):
    definition = f"c {name}{ARGUMENTS.get(name, '')}"
    column = parse_definition(tokens_of(definition, mariadb=False), mariadb=False).column
    assert column.data_type == name
    schema = TableSchema("db", None, "t", (column,))
    assert len(shape_of(schema).kinds) == 1
    for row in (row for row in TYPES if row.name == name):
        for code in row.codes:
            if row.kind not in column_types.OLD_KINDS:
                described = LogColumn(code, 1, collation=63 if row.name in STREAMED else None)
                plan = captured_plan(TableMap("db", "t", (described,)), {}, schema)
                assert plan.schema is not None


def test_every_type_has_an_avro_type():
    for name in {row.name for row in TYPES}:
        type_of(Column("c", name, name, numeric_precision=9, labels=("a",)), "mysql", Modes())


def test_names_and_forms_are_unique():
    forms = [(row.name, code) for row in TYPES for code in row.codes]
    assert len(forms) == len(set(forms))
    synonyms = [synonym for row in TYPES for synonym in row.synonyms]
    assert len(synonyms) == len(set(synonyms))
    assert not set(synonyms) & {row.name for row in TYPES}


@pytest.mark.parametrize(
    "module", sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
)
def test_no_other_module_lists_types(module):
    if module == "column_types.py":
        return
    tree = ast.parse((PACKAGE / module).read_text())
    lists = [found for node in ast.walk(tree) if len(found := set(_names(node))) >= MANY]
    assert lists == []


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names of types in a literal collection, or in the words of a text."""
    if isinstance(node, (ast.Set, ast.List, ast.Tuple)):
        texts = [n.value for n in node.elts if isinstance(n, ast.Constant)]
    elif isinstance(node, ast.Dict):
        texts = [n.value for n in (*node.keys, *node.values) if isinstance(n, ast.Constant)]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        texts = node.value.split() if node.value.islower() else []
        texts = texts if all(text in BY_NAME for text in texts) else []
    else:
        texts = []
    yield from (text for text in texts if isinstance(text, str) and text in BY_NAME)
