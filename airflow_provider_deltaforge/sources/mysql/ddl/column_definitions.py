"""Columns as statements define them: ``price decimal(10,2) unsigned not null after name``.

The type and its modifiers are a closed list and read here, because they decide how rows are
decoded; the constraints behind it go through sqlglot. What neither knows is no definition.
"""

from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column
from airflow_provider_deltaforge.sources.mysql import column_types as t
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import NUMBER, TEXT, WORD, Token, written

FIRST = ""
"""The place before all columns; every other place is the name of the column before."""

_KNOWN = {row.name for row in t.TYPES if row.codes}
_NATIONAL = {"nchar", "nvarchar", "national"}
_SKIPPED = {
    "STORAGE": 1, "COLUMN_FORMAT": 1, "SRID": 1, "PERSISTENT": 0, "INVISIBLE": 0, "VISIBLE": 0,
    "REF_SYSTEM_ID": 1, "STORED": 0, "VIRTUAL": 0,
}  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """A column as a statement defines it.

    Attributes:
        column: its ordinal position counts nothing here.
        primary: it says itself that it is the primary key.
        unique: it says itself that its values are unique.
        place: ``FIRST``, the column before, or None: at the end, or where it was.
    """

    column: Column
    primary: bool = False
    unique: bool = False
    place: str | None = None


def parse_definition(tokens: list[Token], *, mariadb: bool) -> Definition:
    """Read a column's name, type, constraints and place.

    Raises:
        SchemaError: a part of it is not understood.
    """
    tokens, place = _place(tokens)
    if len(tokens) < 2 or not tokens[0].is_name:
        raise _unknown(tokens)
    words = _DefinitionTokens(tokens[1:])
    column = _type(tokens[0].text, words, mariadb=mariadb)
    unique = any(token.upper in ("UNIQUE", "SERIAL") for token in tokens[1:])
    column, primary = _constrained(column, words.left(), mariadb=mariadb)
    return Definition(column, primary, unique, place)


def _place(tokens: list[Token]) -> tuple[list[Token], str | None]:
    if tokens and tokens[-1].upper == "FIRST":
        return tokens[:-1], FIRST
    if len(tokens) > 2 and tokens[-2].upper == "AFTER":
        return tokens[:-2], tokens[-1].text
    return tokens, None


def _unknown(tokens: list[Token]) -> SchemaError:
    return SchemaError(f"the column definition {written(tokens)[:200]!r} is not understood")


class _DefinitionTokens:
    """Tokens that are taken from the front."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def accept(self, *words: str) -> bool:
        """Take these words if they come next."""
        found = [token.upper for token in self._tokens[self._at : self._at + len(words)]]
        if found != list(words):
            return False
        self._at += len(words)
        return True

    def take(self) -> Token:
        if self._at == len(self._tokens):
            raise _unknown(self._tokens)
        self._at += 1
        return self._tokens[self._at - 1]

    def arguments(self) -> list[Token]:
        """Take a list in parentheses, if one comes next; return what is in it without commas."""
        if not self.accept("("):
            return []
        found = []
        while not self.accept(")"):
            token = self.take()
            if token.raw != ",":
                found.append(token)
        return found

    def left(self) -> list[Token]:
        return self._tokens[self._at :]


def _type(name: str, words: _DefinitionTokens, *, mariadb: bool) -> Column:  # noqa: C901 - one type after another
    first = words.take()
    if first.kind != WORD:
        raise _unknown([first])
    word = first.text.lower()
    charset = "utf8mb3" if word in _NATIONAL else None
    if word == "national":
        word = words.take().text.lower()
    data_type = t.BY_NAME[word].name if word in t.BY_NAME else word
    if data_type in ("char", "varchar") and words.accept("VARYING"):
        data_type = "varchar"
    if word == "long":
        if words.accept("VARBINARY"):
            data_type = "mediumblob"
        else:
            _ = words.accept("VARCHAR") or words.accept("VARCHARACTER")
    if data_type == "double":
        words.accept("PRECISION")
    if word == "serial":
        shown = "bigint(20) unsigned" if mariadb else "bigint unsigned"
        return Column(name, "bigint", shown, nullable=False, unsigned=True)
    arguments = words.arguments()
    if data_type not in _KNOWN or (data_type == "varchar" and not arguments):
        raise _unknown([first])
    if word in ("bool", "boolean"):
        arguments = [Token(WORD, "1", "1", spaced=False)]
    if data_type == "json" and mariadb:
        data_type, charset = "longtext", "utf8mb4"
    return _modified(name, data_type, arguments, charset, words, mariadb=mariadb)


def _modified(  # noqa: C901 - one modifier after another
    name: str,
    data_type: str,
    arguments: list[Token],
    charset: str | None,
    words: _DefinitionTokens,
    *,
    mariadb: bool,
) -> Column:
    """Take what is between type and constraints."""
    unsigned = zerofill = compressed = False
    collation = None
    while True:
        if words.accept("UNSIGNED"):
            unsigned = True
        elif words.accept("ZEROFILL"):
            unsigned = zerofill = True
        elif data_type in t.BYTES_TYPES and words.accept("BYTE"):
            data_type = t.BYTES_TYPES[data_type]
        elif words.accept("ASCII"):
            charset = "latin1"
        elif words.accept("UNICODE"):
            charset = "ucs2"
        elif (
            words.accept("CHARACTER", "SET")
            or words.accept("CHAR", "SET")
            or words.accept("CHARSET")
        ):
            words.accept("=")
            charset = words.take().text.lower()
        elif words.accept("COLLATE"):
            collation = words.take().text.lower()
        elif words.accept("COMPRESSED"):
            compressed = True
            if words.accept("="):
                words.take()
        elif not (words.accept("SIGNED") or words.accept("BINARY")):
            break
    charset = charset or (collation.partition("_")[0] if collation else None)
    charset = "utf8mb3" if charset == "utf8" else charset
    if charset == "binary" and data_type in t.BYTES_TYPES:
        data_type, charset, collation = t.BYTES_TYPES[data_type], None, None
    column = Column(
        name,
        data_type,
        data_type,
        unsigned=unsigned,
        charset=charset if data_type in t.TEXT_TYPES else None,
        collation=collation if data_type in t.TEXT_TYPES else None,
        labels=tuple(a.text for a in arguments) if data_type in ("enum", "set") else (),
    )
    column = _sized(column, arguments, zerofill=zerofill, mariadb=mariadb)
    shown = column.column_type + " /*M!100301 COMPRESSED*/" * compressed
    return replace(column, column_type=shown)


def _sized(column: Column, arguments: list[Token], *, zerofill: bool, mariadb: bool) -> Column:
    """Fill in the full type as the catalog prints it, and the numbers in it."""
    row = t.BY_NAME[column.data_type]
    kind = row.kind
    numbers = [int(a.text) for a in arguments if a.kind in (WORD, NUMBER) and a.text.isdigit()]
    changes: dict[str, Any] = {}
    shown = ",".join(map(str, numbers))
    if kind in (k.ENUM, k.SET):
        if not column.labels or any(a.kind != TEXT for a in arguments):
            raise _unknown(arguments)
        shown = ",".join("'" + label.replace("'", "''") + "'" for label in column.labels)
    elif kind == k.INT:
        tiny = row.size == 1 and numbers == [1] and not column.unsigned
        width = numbers[0] if numbers else row.width - (column.unsigned and row.size < 8)
        shown = str(width) if mariadb or zerofill or tiny else ""
    elif kind == k.DECIMAL:
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        changes = {"numeric_precision": precision, "numeric_scale": scale}
        shown = f"{precision},{scale}"
    elif kind == k.BIT or (t.STRING in row.codes and not row.size):
        shown = shown or "1"
    elif kind in (k.TIME, k.DATETIME, k.TIMESTAMP):
        changes = {"datetime_precision": numbers[0] if numbers else 0}
        shown = "" if shown == "0" else shown
    elif kind == k.YEAR:
        shown = "4" if mariadb else ""
    elif row.length:
        shown = ""
    if kind == k.TEXT and not row.length:
        changes = {"char_max_length": int(shown)}
    text = f"{row.name}({shown})" if shown else row.name
    text += " unsigned" * column.unsigned + " zerofill" * zerofill
    return replace(column, column_type=text, **changes)


def _constrained(column: Column, left: list[Token], *, mariadb: bool) -> tuple[Column, bool]:
    """Apply the constraints, which sqlglot reads behind a stand-in for the type."""
    import sqlglot
    from sqlglot import exp

    words = _plain(left)
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t (c INT {written(words)})", read="mysql")
    except sqlglot.errors.SqlglotError:
        raise _unknown(left) from None
    found = tree.this.expressions if isinstance(tree.this, exp.Schema) else []
    if len(found) != 1 or not isinstance(found[0], exp.ColumnDef):
        raise _unknown(left)
    primary = False
    for constraint in found[0].args.get("constraints") or ():
        kind = getattr(constraint, "kind", constraint)
        if isinstance(kind, exp.PrimaryKeyColumnConstraint):
            primary = True
            column = replace(column, nullable=False)
        elif isinstance(kind, exp.NotNullColumnConstraint):
            column = replace(column, nullable=bool(kind.args.get("allow_null")))
        elif isinstance(kind, exp.CommentColumnConstraint):
            column = replace(column, comment=kind.this.name or None)
        elif isinstance(kind, exp.DefaultColumnConstraint) and isinstance(kind.this, exp.Literal):
            text = kind.this.name
            quoted = mariadb and kind.this.is_string
            column = replace(column, default_value=f"'{text}'" if quoted else text)
        elif isinstance(kind, exp.AutoIncrementColumnConstraint):
            column = replace(column, extra="auto_increment", nullable=False)
        elif isinstance(kind, exp.CollateColumnConstraint) and column.data_type in t.TEXT_TYPES:
            collation = kind.this.name.lower()
            charset = collation.partition("_")[0]
            charset = "utf8mb3" if charset == "utf8" else charset
            column = replace(column, collation=collation, charset=column.charset or charset)
    return column, primary


def _plain(tokens: list[Token]) -> list[Token]:
    """Leave out words that sqlglot does not know; no such word decides how rows are read."""
    kept: list[Token] = []
    at, depth = 0, 0
    while at < len(tokens):
        word = tokens[at].upper
        depth += (word == "(") - (word == ")")
        versioning = [token.upper for token in tokens[at : at + 3]]  # MariaDB's WITH or WITHOUT.
        if depth == 0 and word in _SKIPPED:
            at += 1 + _SKIPPED[word]
        elif depth == 0 and versioning[1:] == ["SYSTEM", "VERSIONING"]:
            at += 3
        else:
            kept.append(tokens[at])
            at += 1
    return kept
