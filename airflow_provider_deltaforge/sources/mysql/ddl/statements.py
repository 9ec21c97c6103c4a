"""What a statement in the log does to tables."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from airflow_provider_deltaforge.sources.mysql.ddl.lexer import (
    PLAIN_MODE,
    QUOTED,
    SIGN,
    WORD,
    SqlMode,
    Token,
    tokens_of,
)

DDL, TRUNCATE, DML, CONTROL, OTHER = "ddl", "truncate", "dml", "control", "other"

CREATE, DROP, RENAME, ALTER, EXCHANGE, INDEX = (
    "create", "drop", "rename", "alter", "exchange", "index",
)  # fmt: skip

_VERBS = {"CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"}
_DML = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"}
_CONTROL = {"SAVEPOINT", "ROLLBACK", "XA", "RELEASE", "COMMIT", "BEGIN", "START"}
_NOISE = {
    "OR", "REPLACE", "ONLINE", "OFFLINE", "IGNORE", "UNIQUE", "FULLTEXT", "SPATIAL", "IF", "NOT",
    "EXISTS", "WAIT", "NOWAIT", "UNDO", "EXTENDED", "VECTOR",
}  # fmt: skip
_PARTITION_LOSES = {"DROP", "TRUNCATE"}

Name = tuple[str | None, str]
"""(database, or None for the one the statement ran in; table)."""

Key = tuple[str, str]
"""Database and table."""


@dataclass(frozen=True)
class Act:
    """One thing a statement does to one table.

    Attributes:
        what: ``create``, ``drop``, ``rename``, ``alter``, ``exchange`` or ``index``.
        table: which one, by the name it had before.
        other: the new name, or the table a partition is exchanged with.
        body: of a creation or alteration, what follows the name; of a change of UNIQUE indexes,
            the clause that would alter the table so.
        gains: rows came in without an event in the log.
        loses: rows went out without an event in the log.
        tolerant: a table that is there already, or not there, is left alone.
    """

    what: str
    table: Name
    other: Name | None = None
    body: tuple[Token, ...] = ()
    gains: bool = False
    loses: bool = False
    tolerant: bool = False


@dataclass(frozen=True)
class Statement:
    """A statement's kind and the tables it names, as (database or None, table)."""

    kind: str
    verb: str = ""
    tables: tuple[Name, ...] = ()
    databases: tuple[str, ...] = ()
    acts: tuple[Act, ...] = ()

    @property
    def drops_database(self) -> bool:
        """Whether whole databases go; to create or alter one changes no table in it."""
        return bool(self.databases) and self.verb == "DROP"


def understand(  # noqa: PLR0911 - one per kind
    sql: str, *, mariadb: bool = True, mode: SqlMode = PLAIN_MODE
) -> Statement:
    """Return what a QUERY event's statement does.

    Args:
        sql: the statement.
        mariadb: which server logged it.
        mode: of its session.
    """
    words = _StatementTokens(tokens_of(sql, mariadb=mariadb, mode=mode))
    words.pass_settings()
    verb = words.take_upper()
    if verb in _DML:
        return Statement(DML, verb)
    if verb in _CONTROL:
        return Statement(CONTROL, f"{verb} {words.upper()}".strip())
    if verb not in _VERBS:
        return Statement(OTHER, verb)
    noise = words.pass_noise()
    if verb == "TRUNCATE":
        words.accept("TABLE")
        return Statement(TRUNCATE, verb, tuple(words.names()[:1]))
    if words.accept("TABLE") or words.accept("TABLES"):
        noise |= words.pass_noise()
        acts = tuple(_ACTS[verb](words, noise)) if verb in _ACTS else ()
        return Statement(DDL, verb, _tables(acts), acts=acts)
    if words.accept("DATABASE") or words.accept("SCHEMA"):
        words.pass_noise()
        named = words.peek()
        return Statement(DDL, verb, databases=(named.text,) if named and named.is_name else ())
    if words.accept("INDEX"):
        body = words.index_change(verb, unique="UNIQUE" in noise)
        acts = tuple(Act(INDEX, name, body=body) for name in words.names()[:1])
        return Statement(DDL, verb, _tables(acts), acts=acts)
    return Statement(OTHER, verb)


def lowered(statement: Statement) -> Statement:
    """Return a statement with its databases and tables in small letters."""

    def lower(name: Name) -> Name:
        return name[0] and name[0].lower(), name[1].lower()

    acts = []
    for act in statement.acts:
        body = act.body
        if act.what == CREATE and [t.upper for t in body if t.raw != "("][:1] == ["LIKE"]:
            body = tuple(replace(token, text=token.text.lower()) for token in body)
        other = lower(act.other) if act.other is not None else None
        acts.append(replace(act, table=lower(act.table), other=other, body=body))
    return replace(
        statement,
        tables=tuple(dict.fromkeys(map(lower, statement.tables))),
        databases=tuple(name.lower() for name in statement.databases),
        acts=tuple(acts),
    )


def _tables(acts: tuple[Act, ...]) -> tuple[Name, ...]:
    """Return every table that acts name, each once, in the order of naming."""
    found = [name for act in acts for name in (act.table, act.other) if name is not None]
    return tuple(dict.fromkeys(found))


def copied_table(act: Act) -> Name | None:
    """Return which table a creation is LIKE; None if it is not."""
    if act.what != CREATE:
        return None
    body = act.body
    while [token.raw for token in body[:1]] == ["("] and body[1:2] and body[1].upper == "LIKE":
        body = body[1:-1]
    return _StatementTokens(body[1:]).name() if body and body[0].upper == "LIKE" else None


class _StatementTokens:
    """A statement's tokens, taken from the front."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self, ahead: int = 0) -> Token | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def upper(self) -> str:
        token = self.peek()
        return token.upper if token is not None else ""

    def take_upper(self) -> str:
        found = self.upper()
        self._at += 1
        return found

    def accept(self, *words: str) -> bool:
        """Take these words if they come next."""
        coming = [self.peek(ahead) for ahead in range(len(words))]
        if [token.upper if token else "" for token in coming] != list(words):
            return False
        self._at += len(words)
        return True

    def pass_settings(self) -> None:
        """Pass over SET STATEMENT … FOR, which sets variables for the statement behind it."""
        if not self.accept("SET", "STATEMENT"):
            return
        depth = 0
        while (token := self.peek()) is not None and (depth or token.upper != "FOR"):
            depth += (token.raw == "(") - (token.raw == ")")
            self._at += 1
        self._at += 1

    def pass_noise(self) -> set[str]:
        """Pass over words without a meaning here; return them."""
        passed: set[str] = set()
        while (word := self.upper()) in _NOISE or (word.isdigit() and passed & {"WAIT"}):
            passed.add(word)
            self._at += 1
        return passed

    def index_change(self, verb: str, *, unique: bool) -> tuple[Token, ...]:
        """Pass over everything up to and with ON; return the clause of ALTER TABLE for it.

        None for an index that cannot be a key.
        """
        begin = self._at
        while self.peek() is not None and self.take_upper() != "ON":
            pass
        if verb == "CREATE":
            return (_word("ADD"), _word("UNIQUE")) if unique else ()
        named = [token for token in self._tokens[begin : self._at - 1] if token.is_name]
        return (_word("DROP"), _word("INDEX"), *named[-1:])

    def name(self) -> Name | None:
        """Take a table's name, qualified or not."""
        first, dot, second = self.peek(), self.peek(1), self.peek(2)
        if first is None or not first.is_name:
            return None
        if dot is not None and dot.raw == "." and second is not None and second.is_name:
            self._at += 3
            return first.text, second.text
        self._at += 1
        return None, first.text

    def names(self) -> list[Name]:
        """Take names with commas between them."""
        found = []
        while (name := self.name()) is not None:
            found.append(name)
            if not self.accept(","):
                break
        return found

    def left(self) -> tuple[Token, ...]:
        return tuple(token for token in self._tokens[self._at :] if token.raw != ";")


def _create(words: _StatementTokens, noise: set[str]) -> list[Act]:
    name = words.name()
    if name is None:
        return []
    body = words.left()
    # In row format the server logs the columns, and the rows as rows.
    return [Act(CREATE, name, body=body, gains=_selects(body), tolerant="EXISTS" in noise)]


def _selects(body: Sequence[Token]) -> bool:
    """Return whether a table is created with the rows of a query."""
    depth = 0
    for token in body:
        depth += (token.raw == "(") - (token.raw == ")")
        if token.upper == "SELECT" or (depth == 0 and token.upper in ("VALUES", "TABLE")):
            return True
    return False


def _drop(words: _StatementTokens, noise: set[str]) -> list[Act]:
    return [Act(DROP, name, tolerant="EXISTS" in noise) for name in words.names()]


def _rename(words: _StatementTokens, noise: set[str]) -> list[Act]:
    del noise
    acts = []
    while (old := words.name()) is not None:
        words.pass_noise()
        new = words.name() if words.accept("TO") else None
        if new is None:
            break
        acts.append(Act(RENAME, old, new))
        if not words.accept(","):
            break
    return acts


def _alter(words: _StatementTokens, noise: set[str]) -> list[Act]:
    name = words.name()
    if name is None:
        return []
    words.pass_noise()  # MariaDB: WAIT n and NOWAIT stand behind the name.
    body = words.left()
    acts = [Act(ALTER, name, body=body, tolerant="EXISTS" in noise)]
    for clause in clauses(body):
        upper = [token.upper for token in clause]
        if upper[:1] == ["RENAME"] and upper[1:2] not in (["COLUMN"], ["INDEX"], ["KEY"]):
            new = _StatementTokens(clause[2 if upper[1] in ("TO", "AS", "=") else 1 :]).name()
            if new is not None:
                acts.append(Act(RENAME, name, new))
        else:
            acts += _unlogged(name, clause, upper)
            if "IGNORE" in noise and {"UNIQUE", "PRIMARY"} & {*upper}:
                acts.append(Act(INDEX, name, loses=True))  # MariaDB: all but one row of each key.
    return acts


def _unlogged(name: Name, clause: list[Token], upper: list[str]) -> list[Act]:
    """Return what moves rows in or out without an event for each of them."""
    behind = clause[upper.index("TABLE") + 1 :] if "TABLE" in upper else []
    other = _StatementTokens(behind).name()
    if upper[:2] == ["EXCHANGE", "PARTITION"] and other is not None:
        pairs = ((name, other), (other, name))
        return [Act(EXCHANGE, table, partner, gains=True, loses=True) for table, partner in pairs]
    if upper[:2] == ["CONVERT", "PARTITION"] and other is not None:
        like = (Token(WORD, "LIKE", "LIKE", spaced=True), *_written(name))
        return [Act(INDEX, name, loses=True), Act(CREATE, other, body=like, gains=True)]
    if upper[:2] == ["CONVERT", "TABLE"] and other is not None:
        return [Act(DROP, other), Act(INDEX, name, gains=True)]
    if upper[1:2] == ["PARTITION"] and upper[0] in _PARTITION_LOSES:
        return [Act(INDEX, name, loses=True)]
    # Names of partitions may follow, behind commas that end this clause.
    if upper[1:2] in (["TABLESPACE"], ["PARTITION"]) and upper[0] in ("DISCARD", "IMPORT"):
        return [Act(INDEX, name, gains=upper[0] == "IMPORT", loses=upper[0] == "DISCARD")]
    return []


def _word(text: str) -> Token:
    return Token(WORD, text, text, spaced=True)


def _written(name: Name) -> list[Token]:
    db, table = name
    last = Token(QUOTED, table, table, spaced=True)
    if db is None:
        return [last]
    return [Token(QUOTED, db, db, spaced=True), Token(SIGN, ".", ".", spaced=False), last]


_ACTS: dict[str, Callable[[_StatementTokens, set[str]], list[Act]]] = {
    "CREATE": _create,
    "DROP": _drop,
    "RENAME": _rename,
    "ALTER": _alter,
}


def clauses(tokens: Sequence[Token]) -> list[list[Token]]:
    """Split at the commas that stand in no parentheses."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token.raw == "(") - (token.raw == ")")
        if token.raw == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return [clause for clause in found if clause]


@dataclass(frozen=True)
class UnloggedRows:
    """What a statement did to captured tables without row events.

    Attributes:
        copies: captured tables that hold rows which never came through the log.
        lost: captured tables that lost rows without an event.
        renamed: captured tables that took another captured name and are not copied for it, by
            their former names.
    """

    copies: tuple[Key, ...] = ()
    lost: tuple[Key, ...] = ()
    renamed: Mapping[Key, Key] = field(default_factory=dict)


def unlogged_rows(
    statement: Statement, db: str, captures: Callable[[str, str], bool]
) -> UnloggedRows:
    """Return what a statement did to captured tables without row events.

    A table renamed into the captured names is copied, with two exceptions. What gh-ost and pt-osc
    swap in holds the rows of the table that leaves, so its consumers have them already. And a
    captured table that takes a name which was free before the statement has its rows delivered,
    under its former name.

    Args:
        statement: what ``understand`` returned.
        db: the database it ran in.
        captures: whether rows of a table are delivered.
    """

    def key(name: Name) -> Key:
        return name[0] or db, name[1]

    renames = _net([(key(act.table), key(act.other)) for act in _renames(statement) if act.other])
    swapped = {
        old: new
        for old, new in renames.items()
        if new in renames and _is_tools_swap(old[1], new[1], renames[new][1])
    }
    copies = [
        new
        for old, new in renames.items()
        if old not in swapped and not (captures(*old) and new not in renames)
    ]
    copies += [key(act.table) for act in statement.acts if act.gains]
    lost = [key(act.table) for act in statement.acts if act.loses]
    return UnloggedRows(
        tuple(dict.fromkeys(name for name in copies if captures(*name))),
        tuple(dict.fromkeys(name for name in lost if captures(*name))),
        {
            old: new
            for old, new in renames.items()
            if captures(*old)
            and captures(*new)
            and new not in copies
            and old not in {*swapped, *swapped.values()}
        },
    )


def _net(steps: Sequence[tuple[Key, Key]]) -> dict[Key, Key]:
    """Return which name each table has in the end, by its former name.

    A name that a table only passed through on its way, as in a swap, is none of them.
    """
    former: dict[Key, Key] = {}
    for old, new in steps:
        former[new] = former.pop(old, old)
    return {was: now for now, was in former.items() if now != was}


def _renames(statement: Statement) -> list[Act]:
    return [act for act in statement.acts if act.what == RENAME]


def _is_tools_swap(ghost: str, table: str, old: str) -> bool:
    """Return whether gh-ost or pt-online-schema-change gave these names."""
    name = re.escape(table)
    return bool(
        re.fullmatch(rf"_+{name}_(gho|new)", ghost)
        and re.fullmatch(rf"_+{name}_(\d+_)?(del|old)", old)
    )
