"""What a statement in the log does to tables."""

import re
from dataclasses import dataclass, field

DDL, TRUNCATE, DML, CONTROL, OTHER = "ddl", "truncate", "dml", "control", "other"

_VERBS = {"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"}
_DML = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"}
_CONTROL = {"SAVEPOINT", "ROLLBACK", "XA", "RELEASE", "COMMIT", "BEGIN", "START"}
_NOISE = {
    "OR", "REPLACE", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL", "IF", "NOT",
    "EXISTS", "WAIT", "NOWAIT", "UNDO", "EXTENDED", "VECTOR",
}  # fmt: skip

# Tried in this order at every place: texts and comments first, so that nothing in them counts.
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | /\*.*?\*/ | --(?=\s)[^\n]* | \#[^\n]*
    | `(?P<quoted>(?:[^`]|``)+)` | (?P<word>[\w$]+) | (?P<sign>[.,;()])""",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class Statement:
    """A statement's kind and the tables it names, as (database or None, table)."""

    kind: str
    verb: str = ""
    tables: tuple[tuple[str | None, str], ...] = ()
    databases: tuple[str, ...] = field(default_factory=tuple)


def understand(sql: str) -> Statement:  # noqa: PLR0911 - one per kind
    """Return what a QUERY event's statement does; comments and quoting are understood."""
    words = _words(sql)
    verb = words[0].upper() if words else ""
    if verb in _DML:
        return Statement(DML, verb)
    if verb in _CONTROL:
        return Statement(CONTROL, " ".join(word.upper() for word in words[:2]))
    if verb not in _VERBS:
        return Statement(OTHER, verb)
    at = 1
    while at < len(words) and words[at].upper() in _NOISE:
        at += 1
    what = words[at].upper() if at < len(words) else ""
    if verb == "TRUNCATE":
        tables, _ = _name(words, at + 1 if what == "TABLE" else at)
        return Statement(TRUNCATE, verb, tuple(tables))
    if what in ("TABLE", "TABLES"):
        return Statement(DDL, verb, tuple(_tables(words, _past_noise(words, at + 1), verb)))
    if what in ("DATABASE", "SCHEMA"):
        after = _past_noise(words, at + 1)
        return Statement(DDL, verb, databases=tuple(words[after : after + 1]))
    if what == "INDEX":
        on = next((i for i, word in enumerate(words) if word.upper() == "ON"), len(words))
        return Statement(DDL, verb, tuple(_name(words, on + 1)[0]))
    return Statement(OTHER, verb)


def _past_noise(words: list[str], at: int) -> int:
    while at < len(words) and (words[at].upper() in _NOISE or words[at].isdigit()):
        at += 1
    return at


def _tables(words: list[str], at: int, verb: str) -> list[tuple[str | None, str]]:
    """Return the tables named from ``at`` on; renames name both ends."""
    tables, at = _name(words, at)
    if verb == "RENAME":
        while at < len(words) and words[at].upper() in ("TO", ","):
            more, at = _name(words, at + 1)
            tables += more
    elif verb == "DROP":
        while at < len(words) and words[at] == ",":
            more, at = _name(words, at + 1)
            tables += more
    elif verb == "ALTER":
        for i in range(at, len(words) - 1):
            after = words[i + 1].upper()
            if words[i].upper() == "RENAME" and after not in ("COLUMN", "INDEX", "KEY"):
                tables += _name(words, i + 2 if after in ("TO", "AS") else i + 1)[0]
    return tables


def _name(words: list[str], at: int) -> tuple[list[tuple[str | None, str]], int]:
    """Return the (qualified) name at ``at`` as a list of one, and the offset behind it."""
    if at >= len(words) or words[at] in (",", ";", "("):
        return [], at
    if at + 2 < len(words) and words[at + 1] == ".":
        return [(words[at], words[at + 2])], at + 3
    return [(None, words[at])], at + 1


def _words(sql: str) -> list[str]:
    """Return a statement's words and signs, names without their quotes; texts are left out."""
    # Version comments hold statements: /*!40000 ALTER … */ and MariaDB's /*M!100100 … */.
    plain = re.sub(r"/\*M?!\d*(.*?)\*/", r" \1 ", sql, flags=re.DOTALL)
    words = []
    for token in _TOKEN.finditer(plain):
        if token["quoted"] is not None:
            words.append(token["quoted"].replace("``", "`"))
        elif token["word"] or token["sign"]:
            words.append(token["word"] or token["sign"])
    return words
