"""Columns as statements define them: ``price decimal(10,2) unsigned not null after name``.

Types, their modifiers and the constraints behind them are closed lists. Of an expression only its
end counts: no expression decides how rows are read. What is not in the lists is no definition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column
from airflow_provider_deltaforge.sources.mysql import column_types as t
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import (
    NUMBER,
    SIGN,
    TEXT,
    WORD,
    Token,
    written,
)

FIRST = ""
"""The place before all columns; every other place is the name of the column before."""

_KNOWN = {row.name_in(mariadb=each) for row in t.TYPES if row.codes for each in (False, True)}
_NATIONAL = {"nchar", "nvarchar", "national"}
_FLAGS = (
    "VISIBLE", "STORED", "VIRTUAL", "PERSISTENT", "UNIQUE KEY", "UNIQUE",
    "GENERATED ALWAYS", "AS ROW START", "AS ROW END", "ENFORCED", "NOT ENFORCED",
    "WITH SYSTEM VERSIONING", "WITHOUT SYSTEM VERSIONING",
)  # fmt: skip
_SETTINGS = (
    "STORAGE", "COLUMN_FORMAT", "SRID", "REF_SYSTEM_ID", "MATCH", "ENGINE_ATTRIBUTE",
    "SECONDARY_ENGINE_ATTRIBUTE",
)  # fmt: skip
_INVISIBLE = "INVISIBLE"
_ACTIONS = ("CASCADE", "RESTRICT", "NO ACTION", "SET NULL", "SET DEFAULT")


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
    column, primary = _constrained(column, words, mariadb=mariadb)
    column = _without_trailing_blanks(column)
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

    def accept_any(self, phrases: Sequence[str]) -> bool:
        """Take the words of one of these phrases if they come next."""
        return any(self.accept(*phrase.split()) for phrase in phrases)

    def group(self) -> bool:
        """Take what stands in parentheses, and those in it, if they come next."""
        if not self.accept("("):
            return False
        while not self.accept(")"):
            if not self.group():
                self.take()
        return True

    def expression(self) -> list[Token]:
        """Take and return an expression: operands with signs between them."""
        start = self._at
        self._operand()
        while self._next_is(SIGN) and self.left()[0].raw not in "(),":
            self.take()
            self._operand()
        return self._tokens[start : self._at]

    def _operand(self) -> None:
        self.accept_any(("-", "+", "NEXT VALUE FOR"))
        has_unit = self.accept("INTERVAL")
        if not self.group():
            first = self.take()
            if first.kind == SIGN:
                raise _unknown(self._tokens)
            while first.kind != TEXT and self.accept("."):
                self.take()
            self.group()  # Of a call.
            while first.kind in (WORD, TEXT) and self._next_is(TEXT):
                self.take()  # Behind its character set or type, as in b'1', or behind another text.
        if has_unit:
            self.take()

    def _next_is(self, kind: str) -> bool:
        return self._at < len(self._tokens) and self._tokens[self._at].kind == kind


def _type(name: str, words: _DefinitionTokens, *, mariadb: bool) -> Column:  # noqa: C901 - one type after another
    first = words.take()
    if first.kind != WORD:
        raise _unknown([first])
    word = first.text.lower()
    charset = "utf8mb3" if word in _NATIONAL else None
    if word == "national":
        word = words.take().text.lower()
    data_type = t.BY_NAME[word].name_in(mariadb=mariadb) if word in t.BY_NAME else word
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


def _without_trailing_blanks(column: Column) -> Column:
    """Return a column with its labels as the servers keep them; blanks of bytes stay."""
    labels = tuple(label.rstrip(" ") for label in column.labels)
    if column.charset == "binary" or labels == column.labels:
        return column
    shown = f"{column.data_type}({_listed(labels)})"
    return replace(column, labels=labels, column_type=shown)


def _listed(labels: Sequence[str]) -> str:
    return ",".join("'" + label.replace("'", "''") + "'" for label in labels)


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
        shown = _listed(column.labels)
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
    text = f"{column.data_type}({shown})" if shown else column.data_type
    text += " unsigned" * column.unsigned + " zerofill" * zerofill
    return replace(column, column_type=text, **changes)


def _constrained(  # noqa: C901 - one constraint after another
    column: Column, words: _DefinitionTokens, *, mariadb: bool
) -> tuple[Column, bool]:
    """Apply the constraints; return the column, and whether it is the primary key."""
    primary, visible = False, True
    while words.left():
        if words.accept("NOT", "NULL"):
            column = replace(column, nullable=False)
        elif words.accept("NULL"):
            column = replace(column, nullable=True)
        elif words.accept_any(("PRIMARY KEY", "KEY")):
            primary = True
            column = replace(column, nullable=False)
        elif words.accept("COMMENT"):
            column = replace(column, comment=words.take().text or None)
        elif words.accept("DEFAULT"):
            column = replace(column, default_value=_default(words.expression(), mariadb=mariadb))
        elif words.accept_any(("AUTO_INCREMENT", "SERIAL DEFAULT VALUE")):
            column = replace(column, extra="auto_increment", nullable=False)
        elif words.accept("INVISIBLE"):
            visible = False
        elif words.accept("COLLATE"):
            column = _collated(column, words.take().text.lower())
        elif not _accept_other(words):
            raise _unknown(words.left())
    return with_visibility(column, visible=visible, mariadb=mariadb), primary


def is_invisible(column: Column) -> bool:
    """Return whether ``SELECT *`` leaves a column out."""
    return _INVISIBLE in (column.extra or "")


def with_visibility(column: Column, *, visible: bool, mariadb: bool) -> Column:
    """Return a column that ``SELECT *`` shows, or not, in the words of the catalog."""
    if visible is not is_invisible(column):
        return column
    if visible:
        extra = (column.extra or "").replace(_INVISIBLE, "").strip(" ,")
    else:
        separator = ", " if mariadb else " "
        extra = separator.join(filter(None, [column.extra, _INVISIBLE]))
    return replace(column, extra=extra or None)


def _default(expression: list[Token], *, mariadb: bool) -> str | None:
    """Return the default as the catalog prints it; None for all but a text or a number."""
    first, *more = expression
    if not more and first.kind == TEXT:
        return f"'{first.text}'" if mariadb else first.text
    is_number = first.kind == NUMBER or first.text.isdigit()
    return first.text if is_number and not more else None


def _collated(column: Column, collation: str) -> Column:
    if column.data_type not in t.TEXT_TYPES:
        return column
    charset = collation.partition("_")[0]
    charset = "utf8mb3" if charset == "utf8" else charset
    return replace(column, collation=collation, charset=column.charset or charset)


def _accept_other(words: _DefinitionTokens) -> bool:
    """Take a constraint that says nothing of the column, if one comes next."""
    if words.accept_any(("ON UPDATE", "ON DELETE")):
        if not words.accept_any(_ACTIONS):
            words.expression()
    elif words.accept_any(_SETTINGS):
        words.accept("=")
        words.take()
    elif words.accept("CONSTRAINT"):
        if not words.accept("CHECK"):
            words.take()
            return words.accept("CHECK") and words.group()
        return words.group()
    elif words.accept("REFERENCES"):
        words.expression()
    elif not words.accept_any(_FLAGS):
        return words.accept_any(("AS", "CHECK")) and words.group()
    return True
