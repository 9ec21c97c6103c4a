"""Cuts tables into ranges of their key, with borders the server itself samples.

All comparing is the server's, in the column's own type and collation. A small table is cut by one
pass over its key's index. Of a larger one pages at equal distances are read (``ctid``), and their
keys, sorted, tell where a chunk ends. That holds where keys lie in the order of the pages, and
where they lie anywhere; it does not where each page holds neighbours and the pages are shuffled.
Which of them it is shows in the sample, and the last is cut by a pass over the index, too.

A table without a key is one chunk. Ranges of its pages (``ctid``) would not do with a view per
chunk: an UPDATE can move a row from a page not yet read to one that was read before. No chunk holds
that row then, and its change in the log lacks large values that it left as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.connection import OWN_PATH
from airflow_provider_deltaforge.sources.postgres.tables import (
    CapturedTable,
    KeyColumn,
    literal,
    quote,
)
from airflow_provider_deltaforge.sources.shared.table_chunks import (
    Border,
    TableRange,
    check_key,
    enclosed,
)

_PILOT_BLOCKS = 400
_PILOT_ROWS = 1_000
_ROWS_OF_CHUNK = 160
_BLOCKS_OF_CHUNK = 4
# Rows of a page follow each other in the key; of so many runs a chunk's size is within a third.
_RUNS_OF_CHUNK = 32

_SIZE = """
SELECT max(pg_relation_size(leaf.oid)) / current_setting('block_size')::int
  FROM (SELECT oid FROM pg_class WHERE oid = %s AND relkind = 'r' UNION ALL
        SELECT relid FROM pg_partition_tree(%s) WHERE isleaf) leaf
"""


def plan_table(
    connection: Any,
    db: str,
    facts: CapturedTable,
    chunk_rows: int,
    where: str | None = None,
    *,
    sampled_blocks: int = 2_000,
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one; a border's values are texts.

    Args:
        connection: prepared by ``prepare_session``.
        db: name of the database.
        facts: the table.
        chunk_rows: rows from one border to the next.
        where: SQL condition that the chunk's rows must fulfil as well.
        sampled_blocks: pages of the table from which on it is sampled.
    """
    table = TableRange(db, facts.schema, facts.table, _cut_by(facts), where)
    if not facts.key:
        yield from table.chunks((), facts.rows_estimate)
        return
    with connection.transaction():
        if where:
            connection.execute(OWN_PATH)
        borders = _sampled(connection, facts, chunk_rows, where, sampled_blocks)
        if borders is None:
            borders = connection.execute(_borders_sql(facts, chunk_rows, where)).fetchall()
    yield from table.chunks(borders, chunk_rows)


def borders_within(
    connection: Any, facts: CapturedTable, bounds: Mapping[str, Any], rows: int
) -> Sequence[Border]:
    """Return the key of every ``rows``-th row of a chunk, which may be the end of the chunk.

    Args:
        connection: prepared by ``prepare_session``.
        facts: the table, with a key.
        bounds: of the chunk.
        rows: from one border to the next.
    """
    condition = " AND ".join(range_conditions(facts.key, bounds))
    with connection.transaction():
        found = connection.execute(_borders_sql(facts, rows, condition or None)).fetchall()
    return [[*border] for border in found]


def select_rows(facts: CapturedTable, chunk: TableChunk, columns: str) -> str:
    """Return the SELECT of a chunk's rows, in key order where there is a key."""
    conditions = range_conditions(facts.key, chunk.bounds)
    if where := chunk.bounds.get("where"):
        conditions.append(enclosed(where))
    sql = f"SELECT {columns} FROM {facts.from_clause}"
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if facts.key and chunk.bounds.get("columns"):
        sql += f" ORDER BY {_names(facts.key)}"
    return sql


def range_conditions(key: Sequence[KeyColumn], bounds: Mapping[str, Any]) -> list[str]:
    """Return the SQL conditions of a chunk's range; none for a whole table."""
    found = []
    if "after" in bounds:
        found.append(_compared(key, bounds["after"], ">"))
    if "upto" in bounds:
        found.append(_compared(key, bounds["upto"], "<="))
    return found


def _compared(key: Sequence[KeyColumn], border: Border, operator: str) -> str:
    """Return the condition that a row's key is ``>`` or ``<=`` a border."""
    if all(column.operators is None for column in key):
        return f"({_names(key)}) {operator} ({_values(key, border)})"
    # A comparison of rows takes one operator's name for all columns, but theirs have schemas.
    name, value = quote(key[0].name), _values(key[:1], border[:1])
    within, equal, from_on, beyond = key[0].operators or ("<=", "=", ">=", ">")
    if len(key) == 1:
        return f"{name} {beyond if operator == '>' else within} {value}"
    after = _compared(key[1:], border[1:], ">")
    above = f"({name} {beyond} {value} OR ({name} {equal} {value} AND {after}))"
    if operator == ">":
        return f"({name} {from_on} {value} AND {above})"
    return f"({name} {within} {value} AND NOT {above})"


def check_bounds(facts: CapturedTable, chunk: TableChunk) -> None:
    """Refuse a chunk whose borders do not lie in the key's order any more.

    Raises:
        SchemaError: the key, a type or a collation changed since the chunk was planned.
    """
    if chunk.bounds.get("columns"):
        check_key(facts.full_name, chunk.bounds, _cut_by(facts))


def _cut_by(facts: CapturedTable) -> Mapping[str, Sequence[str]]:
    """Return names of a key's columns, and the order that their values have."""
    return {"columns": [c.name for c in facts.key], "order": [c.order for c in facts.key]}


def _borders_sql(facts: CapturedTable, chunk_rows: int, where: str | None) -> str:
    """Return the query for every ``chunk_rows``-th key: one pass over the key's index."""
    places = range(1, len(facts.key) + 1)
    columns = ", ".join(f"{quote(c.name)} AS k{i}" for i, c in zip(places, facts.key, strict=True))
    condition = f" WHERE {enclosed(where)}" if where else ""
    sampled = ", ".join(f"format('%s', k{i})" for i in places)
    return (
        f"SELECT {sampled} FROM ("
        f"SELECT {columns}, row_number() OVER (ORDER BY {_names(facts.key)}) AS place "
        f"FROM {facts.from_clause}{condition}) keys WHERE place % {max(1, chunk_rows)} = 0 "
        "ORDER BY place"
    )


class _Sample(NamedTuple):
    """Which of a table's pages are read.

    Attributes:
        of: pages of the table, or of its largest partition.
        blocks: how many of them are read.
        lines: line pointers that a page may have.
        step: each of so many is looked at, of the next page beginning with the next.
    """

    of: int
    blocks: int
    lines: int = 291  # More do not fit a page of 8 KiB.
    step: int = 1

    def sql(self, facts: CapturedTable, where: str | None) -> str:
        """Return the query for the keys on these pages, named k1, k2 …, and which page it is.

        Partitions are read at the same places, and need no privilege of their own.
        """
        columns = ", ".join(f"{quote(c.name)} AS k{i}" for i, c in enumerate(facts.key, 1))
        condition = f" AND {enclosed(where)}" if where else ""
        return (
            f"SELECT {columns}, (ctid::text::point)[1]::int AS line, "
            "(tableoid::bigint << 32) + (ctid::text::point)[0]::bigint AS block "
            f"FROM {facts.from_clause} WHERE ctid = ANY(ARRAY("
            f"SELECT format('(%s,%s)', i::bigint * {self.of} / {self.blocks}, line)::tid "
            f"FROM generate_series(0, {self.blocks - 1}) i, "
            f"generate_series(1 + i % {self.step}, {self.lines}, {self.step}) line)){condition}"
        )


def _sampled(
    connection: Any, facts: CapturedTable, chunk_rows: int, where: str | None, least: int
) -> Sequence[Border] | None:
    """Return borders drawn from a sample of the pages; None where a pass over the key is better."""
    of = connection.execute(_SIZE, (facts.oid, facts.oid)).fetchone()[0] or 0
    if of < least:
        return None
    pilot = _Sample(of, min(of, _PILOT_BLOCKS))
    seen, lines = connection.execute(
        f"SELECT count(*), max(line) FROM ({pilot.sql(facts, where)}) pilot"
    ).fetchone()
    if seen < _PILOT_ROWS:
        return None
    chunks = -(-seen * of // (pilot.blocks * chunk_rows))
    # Of each chunk some rows, and some pages, too: a page's rows may all be neighbours.
    blocks = max(_BLOCKS_OF_CHUNK, -(-_ROWS_OF_CHUNK * pilot.blocks // seen)) * chunks
    if blocks > of // 2:
        return None
    step = max(1, seen * blocks // (pilot.blocks * _ROWS_OF_CHUNK * chunks))
    sample = _Sample(of, blocks, lines, step)
    rows = connection.execute(_sampled_sql(facts, sample, chunks, where)).fetchall()
    # Most rows of a chunk's sample lie on many pages, or on pages that follow each other.
    doubtful = sum(runs < _RUNS_OF_CHUNK and steps < 0.8 * (runs - 1) for *_, runs, steps in rows)
    return None if doubtful > len(rows) // 50 else [row[:-2] for row in rows]


def _sampled_sql(facts: CapturedTable, sample: _Sample, chunks: int, where: str | None) -> str:
    """Return the query for the borders in a sample.

    Behind each are the number of runs of rows from one page in its chunk, and how many of these
    begin on a page next to the former one's.
    """
    places = range(1, len(facts.key) + 1)
    keys = ", ".join(f"k{i}" for i in places)
    shown = ", ".join(f"format('%s', k{i})" for i in places)
    near = 2 * -(-sample.of // sample.blocks)
    return (
        f"WITH sample AS MATERIALIZED ({sample.sql(facts, where)}), "
        "placed AS (SELECT *, row_number() OVER sorted AS place, count(*) OVER () AS of, "
        "lag(block, 1, block) OVER sorted AS before FROM sample "
        f"WINDOW sorted AS (ORDER BY {keys})), "
        f"cut AS (SELECT *, place * {chunks} / of > (place - 1) * {chunks} / of AS ends, "
        "count(*) FILTER (WHERE block <> before) OVER chunk AS runs, "
        f"count(*) FILTER (WHERE block <> before AND abs(block - before) <= {near}) OVER chunk "
        f"AS steps FROM placed WINDOW chunk AS (PARTITION BY (place - 1) * {chunks} / of)) "
        f"SELECT {shown}, runs, steps FROM cut WHERE ends AND place < of ORDER BY place"
    )


def _names(key: Sequence[KeyColumn]) -> str:
    return ", ".join(quote(column.name) for column in key)


def _values(key: Sequence[KeyColumn], border: Border) -> str:
    # A literal without a type takes its column's, and with it the column's collation.
    return ", ".join(
        literal(text) + (f"::{column.cast}" if column.cast else "")
        for column, text in zip(key, border, strict=True)
    )
