"""A table while a statement changes it, clause by clause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.charsets import BYTES_MAX
from airflow_provider_deltaforge.sources.mysql.column_types import TEXT_LENGTHS, TEXT_TYPES
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.column_definitions import (
    FIRST,
    Definition,
    is_invisible,
    parse_definition,
    with_visibility,
)
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import Token

_KEYS = {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"}
_NEUTRAL = {
    "ENGINE", "AUTO_INCREMENT", "COMMENT", "ROW_FORMAT", "ALGORITHM", "LOCK", "FORCE", "ENABLE",
    "DISABLE", "KEY_BLOCK_SIZE", "CHECKSUM", "AVG_ROW_LENGTH", "MIN_ROWS", "MAX_ROWS", "PACK_KEYS",
    "STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES", "COMPRESSION", "ENCRYPTION",
    "DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "PARTITION", "REMOVE", "COALESCE", "REORGANIZE",
    "REBUILD", "OPTIMIZE", "ANALYZE", "REPAIR", "CHECK", "EXCHANGE", "TRUNCATE", "DISCARD",
    "IMPORT", "WITHOUT", "WITH", "ORDER", "TABLESPACE", "UNION", "DELAY_KEY_WRITE", "ENCRYPTED",
    "PAGE_COMPRESSED", "PAGE_CHECKSUM", "TRANSACTIONAL", "NOWAIT", "WAIT", "ENCRYPTION_KEY_ID",
}  # fmt: skip


def parenthesised(tokens: Sequence[Token]) -> tuple[list[Token], list[Token]]:
    """Return what is in the parentheses that begin here, and what follows them."""
    depth = 0
    for at, token in enumerate(tokens):
        depth += (token.raw == "(") - (token.raw == ")")
        if depth == 0:
            return list(tokens[1:at]), list(tokens[at + 1 :])
    return [], []


@dataclass(eq=False)
class _ColumnPlace:
    """A column.

    Attributes:
        column: how it is now.
        before: the name it had before the statement, by which clauses call it.
        defined: the statement itself says its type.
    """

    column: Column
    before: str = ""
    defined: bool = True


class ChangingTable:
    """A schema under change. Every method raises SchemaError for what it does not understand.

    As the servers do it: all clauses mean the table as it was before the statement, what stays in
    its place is changed first, what gets a new place comes next, and keys come last.
    """

    def __init__(self, schema: TableSchema, *, mariadb: bool) -> None:
        self._schema = schema
        self._columns = [
            _ColumnPlace(column, column.name.lower(), defined=False) for column in schema.columns
        ]
        self._key = [self._former(name) for name in schema.primary_key]
        self._mariadb = mariadb
        self._placed: list[tuple[_ColumnPlace, str | None]] = []
        self._keyed_by: list[str] | None = None
        self._implicit = schema.implicit_key
        self._unique = schema.unique_indexes
        self._unsettled = False
        self._charset: tuple[str, str | None] | None = None
        generated = not mariadb and _has_generated_key(schema)
        self._generated_key = self._columns[0] if generated else None

    def schema(self) -> TableSchema:
        """Return the table behind the statement."""
        for place, where in self._placed:
            self._insert(place, where)
        self._placed = []
        if self._charset is not None:
            self._convert_columns(*self._charset)
        if self._keyed_by is not None:
            self._key = [self._present(name) for name in self._keyed_by]
            self._implicit = False
        elif self._unsettled and (self._implicit or not self._key):
            raise SchemaError("which UNIQUE index is the key now is the server's to say")
        columns = tuple(
            replace(
                place.column,
                ordinal_position=ordinal,
                nullable=place.column.nullable and (self._implicit or place not in self._key),
            )
            for ordinal, place in enumerate(self._columns, 1)
        )
        key = tuple(place.column.name for place in self._key)
        return replace(
            self._schema,
            columns=columns,
            primary_key=key,
            implicit_key=self._implicit,
            unique_indexes=self._unique,
        )

    def is_key(self, clause: list[Token]) -> bool:
        """Return whether an element of CREATE TABLE's list is a key or constraint, not a column."""
        upper = [token.upper for token in clause]
        return upper[0] in ("PRIMARY", "CONSTRAINT") or _opens_key(upper)

    def define(self, clause: list[Token]) -> None:
        """Take one element of CREATE TABLE's list: a column or a key."""
        if not self._keyed(clause):
            definition = parse_definition(clause, mariadb=self._mariadb)
            self._insert(_ColumnPlace(definition.column), definition.place)
            self._take_key(definition)

    def default_charset(self, options: Sequence[Token]) -> None:
        """Give texts without a character set that of the table, if the options name one."""
        words = [token.upper or token.text for token in options]
        charset = collation = None
        for at, word in enumerate(words):
            value = next((w.lower() for w in words[at + 1 : at + 4] if w not in ("=", "SET")), None)
            if word == "CHARSET" or words[at : at + 2] == ["CHARACTER", "SET"]:
                charset = value
            elif word == "COLLATE":
                collation = value
        charset = charset or (collation.partition("_")[0] if collation else None)
        charset = "utf8mb3" if charset == "utf8" else charset
        bare = [place for place in self._columns if _is_bare(place.column)]
        if charset == "binary" and bare:
            raise SchemaError("a table of bytes")
        for place in bare:
            place.column = replace(place.column, charset=charset, collation=collation)

    def alter(self, clause: list[Token]) -> None:  # noqa: C901 - one kind after another
        """Apply one clause of ALTER TABLE."""
        upper = [token.upper for token in clause]
        verb, rest = upper[0], _past(clause[1:], "COLUMN")
        if upper[1:] == ["SYSTEM", "VERSIONING"] and verb in ("ADD", "DROP"):
            self._keep_history(keep=verb == "ADD")
        elif verb == "ADD":
            self._alter_add(clause[1:], rest)
        elif verb == "DROP":
            self._alter_drop(upper, rest)
        elif verb == "CHANGE":
            rest, tolerant = _tolerant(rest)
            if not tolerant or self._has(rest[0].text):
                self._put(rest[0].text, parse_definition(rest[1:], mariadb=self._mariadb))
        elif verb == "MODIFY":
            rest, tolerant = _tolerant(rest)
            if not tolerant or self._has(rest[0].text):
                self._put(rest[0].text, parse_definition(rest, mariadb=self._mariadb))
        elif verb == "RENAME" and upper[1:2] == ["COLUMN"]:
            rest, tolerant = _tolerant(rest)
            if not tolerant or self._has(rest[0].text):
                self._rename(rest[0].text, rest[2].text)
        elif verb == "CONVERT" and upper[1:3] in (["TO", "CHARACTER"], ["TO", "CHARSET"]):
            self._charset = _charset_named(clause[3:])
        elif verb == "ALTER":
            self._alter_default(upper, rest)
        elif verb not in ("RENAME", *_NEUTRAL):
            raise SchemaError(f"ALTER TABLE … {verb} is not understood")

    def _keep_history(self, *, keep: bool) -> None:
        """Begin or end system versioning, whose columns no catalog lists."""
        if keep is self._schema.system_versioned:
            raise SchemaError("versions of rows are kept in columns with names")
        self._schema = replace(self._schema, system_versioned=keep)

    def _alter_add(self, clause: list[Token], rest: list[Token]) -> None:
        if clause[0].upper != "COLUMN" and self._keyed(clause):
            return
        if clause[0].upper in ("PARTITION", "SYSTEM"):
            raise SchemaError("versions of rows are not understood")
        rest, tolerant = _tolerant(rest)
        if rest[0].raw == "(":
            inside, _ = parenthesised(rest)
            definitions = statements.clauses(inside)
        else:
            definitions = [rest]
        for tokens in definitions:
            if self._keyed(tokens):
                continue
            definition = parse_definition(tokens, mariadb=self._mariadb)
            if not (tolerant and self._has(definition.column.name)):
                self._placed.append((_ColumnPlace(definition.column), definition.place))
                self._take_key(definition)

    def _alter_drop(self, upper: list[str], rest: list[Token]) -> None:
        what = upper[1]
        self._unsettled |= self._unique
        if upper[1:3] == ["PRIMARY", "KEY"]:
            self._key = []
        elif what in (*_KEYS, "CONSTRAINT"):
            if rest[-1].text.upper() == "PRIMARY" and not self._implicit:
                self._key = []
        elif what in ("PARTITION", "SYSTEM") or _opens_key(upper[1:]):
            raise SchemaError("versions of rows are not understood")
        else:
            rest, tolerant = _tolerant(rest)
            name = rest[0].text
            if tolerant and not self._has(name):
                return
            gone = self._former(name)
            self._columns.remove(gone)
            self._key = [place for place in self._key if place is not gone]

    def _alter_default(self, upper: list[str], rest: list[Token]) -> None:
        if upper[1] in (*_KEYS, "CONSTRAINT"):
            return
        place = self._former(rest[0].text)
        words = [token.upper for token in rest[1:3]]
        if words == ["SET", "DEFAULT"]:
            value = "".join(token.raw if self._mariadb else token.text for token in rest[3:])
            place.column = replace(place.column, default_value=value)
        elif words == ["DROP", "DEFAULT"]:
            place.column = replace(place.column, default_value=None)
        elif words in (["SET", "VISIBLE"], ["SET", "INVISIBLE"]):
            place.column = with_visibility(
                place.column, visible=words[1] == "VISIBLE", mariadb=self._mariadb
            )
        elif words[0] != "SET":
            raise SchemaError("an unknown way to alter a column")

    def _keyed(self, clause: list[Token]) -> bool:
        """Return whether a clause is about a key or constraint; record a primary key."""
        upper = [token.upper for token in clause]
        if upper[0] == "CONSTRAINT":
            start = next((at for at in (1, 2) if upper[at] in ("PRIMARY", *_KEYS)), 0)
            return bool(start) and self._keyed(clause[start:])
        if upper[:2] == ["PRIMARY", "KEY"]:
            opening = next(at for at, word in enumerate(upper) if word == "(")
            inside, _ = parenthesised(clause[opening:])
            self._keyed_by = [part[0].text for part in statements.clauses(inside)]
            return True
        if upper[0] == "UNIQUE":
            self._unique = self._unsettled = True
        return _opens_key(upper)

    def _insert(self, place: _ColumnPlace, where: str | None) -> None:
        at = len(self._columns)
        if where is not None:
            at = self._first() if where == FIRST else self._columns.index(self._present(where)) + 1
        self._columns.insert(at, place)

    def _first(self) -> int:
        """Return where FIRST is: a key that MySQL generated stays in front of all columns."""
        return int(self._generated_key is not None and self._columns[0] is self._generated_key)

    def _take_key(self, definition: Definition) -> None:
        if definition.primary:
            self._keyed_by = [definition.column.name]
        if definition.unique:
            self._unique = self._unsettled = True

    def _put(self, old: str, definition: Definition) -> None:
        """Put another definition in a column's place, or move it elsewhere."""
        place = self._former(old)
        self._unsettled |= self._unique  # A UNIQUE index may have become a key, or none.
        place.column, place.defined = definition.column, True
        self._take_key(definition)
        if definition.place is not None:
            self._columns.remove(place)
            self._placed.append((place, definition.place))

    def _rename(self, old: str, new: str) -> None:
        place = self._former(old)
        place.column = replace(place.column, name=new)

    def _convert_columns(self, charset: str, collation: str | None) -> None:
        """Convert every text, whatever the statement says of it, but for texts of bytes."""
        for place in self._columns:
            column = place.column
            if place.before and place.defined and column.data_type in TEXT_LENGTHS:
                self._require_type_as_written()
            if column.data_type in TEXT_TYPES and column.charset != "binary":
                grown = column if place.defined else _grown(column, charset)
                place.column = replace(grown, charset=charset, collation=collation)

    def _require_type_as_written(self) -> None:
        """MySQL gives a text with a new definition a type of its own by what it was before."""
        if not self._mariadb:
            raise SchemaError("the type of a text that is converted and changed is not known")

    def _has(self, name: str) -> bool:
        return any(place.before == name.lower() for place in self._columns)

    def _former(self, name: str) -> _ColumnPlace:
        """Return the column that had a name before the statement."""
        for place in self._columns:
            if place.before == name.lower():
                return place
        raise SchemaError(f"there is no column {name}")

    def _present(self, name: str) -> _ColumnPlace:
        """Return the column that has a name now."""
        for place in self._columns:
            if place.column.name.lower() == name.lower():
                return place
        raise SchemaError(f"there is no column {name}")


def _opens_key(upper: list[str]) -> bool:
    """Return whether a key or constraint begins; PERIOD and VECTOR are names of columns too."""
    behind = {"PERIOD": (["FOR"],), "VECTOR": (["INDEX"], ["KEY"])}.get(upper[0])
    return upper[0] in _KEYS if behind is None else upper[1:2] in behind


def _has_generated_key(schema: TableSchema) -> bool:
    """Return whether MySQL sees a key that it generated (sql_generate_invisible_primary_key).

    It knows one by its looks.
    """
    column = next(iter(schema.columns), None)
    return (
        column is not None
        and schema.primary_key == (column.name,)
        and not schema.implicit_key
        and column.name.lower() == "my_row_id"
        and (column.data_type, column.unsigned) == ("bigint", True)
        and "auto_increment" in (column.extra or "")
        and is_invisible(column)
    )


def _is_bare(column: Column) -> bool:
    return column.data_type in TEXT_TYPES and column.charset is None


def _charset_named(tokens: list[Token]) -> tuple[str, str | None]:
    """Return the character set and collation that CONVERT TO names."""
    words = [token.text.lower() for token in tokens if token.text.upper() != "SET"]
    charset = words[0] if words else "default"
    if charset in ("default", "binary"):
        raise SchemaError("the statement does not name the character set")
    collation = words[2] if len(words) > 2 and words[1] == "collate" else None
    return "utf8mb3" if charset == "utf8" else charset, collation


def _grown(column: Column, charset: str) -> Column:
    """Return a text of the type that the server gives it so that all fits in a character set."""
    kind = column.data_type
    if kind not in TEXT_LENGTHS or column.charset is None:
        return column
    growth = BYTES_MAX.get(charset, 1) / BYTES_MAX.get(column.charset, 1)
    room = TEXT_LENGTHS[kind] * growth
    kind = next((name for name, size in TEXT_LENGTHS.items() if size >= room), "longtext")
    return replace(column, data_type=kind, column_type=kind)


def _past(tokens: list[Token], word: str) -> list[Token]:
    return tokens[1:] if tokens and tokens[0].upper == word else tokens


def _tolerant(tokens: list[Token]) -> tuple[list[Token], bool]:
    """Return the tokens after IF [NOT] EXISTS, and whether it was there."""
    upper = [token.upper for token in tokens[:3]]
    if upper[:2] == ["IF", "EXISTS"]:
        return tokens[2:], True
    if upper == ["IF", "NOT", "EXISTS"]:
        return tokens[3:], True
    return tokens, False
