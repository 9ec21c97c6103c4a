"""Splits a MySQL or MariaDB statement into tokens, with regard to comments and quoting."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORD, QUOTED, TEXT, NUMBER, SIGN = "word", "quoted", "text", "number", "sign"

# Tried in this order at every place: texts and comments first, so that nothing in them counts.
_PATTERN = r"""(?P<version>/\*M?!\d*) | (?P<close>\*/)
    | (?P<comment>/\*.*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*)
    | (?P<text>TEXTS)
    | `(?P<quoted>(?:[^`]|``)+)`
    | (?P<number>\d+\.\d+(?:[eE][-+]?\d+)?|(?<![\w$`"])\.\d+)
    | (?P<word>[\w$\u0080-\uffff]+) | (?P<sign>[^\s\w])"""


def _token_pattern(texts: str) -> "re.Pattern[str]":
    return re.compile(_PATTERN.replace("TEXTS", texts), re.DOTALL | re.VERBOSE)


_ESCAPING = _token_pattern(r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*\"""")
_PLAIN = _token_pattern(r"""'(?:[^']|'')*' | "(?:[^"]|"")*\"""")
# The wildcards of LIKE keep their backslash.
_ESCAPES = {
    "0": "\0", "n": "\n", "r": "\r", "Z": "\x1a", "t": "\t", "b": "\b", "%": "\\%", "_": "\\_",
}  # fmt: skip
_ESCAPE = re.compile(r"\\(.)|''", re.DOTALL)
_DOUBLE_ESCAPE = re.compile(r'\\(.)|""', re.DOTALL)


@dataclass(frozen=True, slots=True)
class SqlMode:
    """What a session's ``sql_mode`` says about quotes.

    Attributes:
        ansi_quotes: double quotes enclose names, not texts.
        backslashes: a backslash in a text escapes what follows.
    """

    ansi_quotes: bool = False
    backslashes: bool = True

    @classmethod
    def of(cls, names: str) -> "SqlMode":
        """Return the mode of the names that a catalog lists, with commas between them."""
        listed = names.upper().split(",")
        return cls("ANSI_QUOTES" in listed, "NO_BACKSLASH_ESCAPES" not in listed)


PLAIN_MODE = SqlMode()


@dataclass(frozen=True, slots=True)
class Token:
    """One word, name, text, number or sign.

    Attributes:
        kind: ``word``, ``quoted``, ``text``, ``number`` or ``sign``.
        text: what it says, without quotes.
        raw: as written.
        spaced: something lies between it and the token before.
    """

    kind: str
    text: str
    raw: str
    spaced: bool

    @property
    def upper(self) -> str:
        """The word in capitals; a quoted name or a text is never a keyword."""
        return self.text.upper() if self.kind in (WORD, SIGN) else ""

    @property
    def is_name(self) -> bool:
        """Whether it can name a table or column."""
        return self.kind in (WORD, QUOTED)


def tokens_of(sql: str, *, mariadb: bool = True, mode: SqlMode = PLAIN_MODE) -> list[Token]:
    """Return a statement's tokens.

    What stands in version comments counts: a server that does not execute one takes away its
    exclamation mark before it logs the statement. MariaDB's own (``/*M!``) are comments to MySQL.

    Args:
        sql: the statement.
        mariadb: MariaDB logged it, not MySQL.
        mode: of its session.
    """
    return list(_tokens(sql, mariadb, mode))


def _tokens(sql: str, mariadb: bool, mode: SqlMode) -> Iterator[Token]:  # noqa: FBT001
    at, end = 0, 0
    pattern = _ESCAPING if mode.backslashes else _PLAIN
    while (found := pattern.search(sql, at)) is not None:
        at = found.end()
        if found["version"] is not None:
            if "M" in found["version"] and not mariadb:
                close = sql.find("*/", at)
                at = len(sql) if close < 0 else close + 2
            continue
        if found["close"] is not None or found["comment"] is not None:
            continue
        spaced, end = found.start() > end, found.end()
        yield _token(found, spaced, mode)


def _token(found: "re.Match[str]", spaced: bool, mode: SqlMode) -> Token:  # noqa: FBT001
    raw = found[0]
    if found["quoted"] is not None:
        return Token(QUOTED, found["quoted"].replace("``", "`"), raw, spaced)
    if found["text"] is not None:
        if raw[0] == '"' and mode.ansi_quotes:
            name = raw[1:-1].replace('""', '"')
            return Token(QUOTED, name, "`" + name.replace("`", "``") + "`", spaced)
        return _text(raw, spaced, mode)
    kind = NUMBER if found["number"] is not None else WORD if found["word"] is not None else SIGN
    return Token(kind, raw, raw, spaced)


def _text(raw: str, spaced: bool, mode: SqlMode) -> Token:  # noqa: FBT001
    quote = raw[0]
    if not mode.backslashes:
        text = raw[1:-1].replace(2 * quote, quote)
        # As others read it, who know of no modes.
        raw = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
        return Token(TEXT, text, raw, spaced)
    escape = _ESCAPE if quote == "'" else _DOUBLE_ESCAPE
    return Token(TEXT, escape.sub(_unescaped, raw[1:-1]), raw, spaced)


def _unescaped(found: "re.Match[str]") -> str:
    letter = found[1]
    return found[0][0] if letter is None else _ESCAPES.get(letter, letter)


def written(tokens: list[Token]) -> str:
    """Return tokens as SQL again, without comments."""
    return "".join((" " if token.spaced else "") + token.raw for token in tokens).strip()
