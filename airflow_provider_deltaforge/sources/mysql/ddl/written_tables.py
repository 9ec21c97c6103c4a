"""What a statement that was logged instead of rows writes, as far as its text shows.

No statement may be judged by a guess: what is not understood counts as written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.sources.mysql.ddl.lexer import WORD, Token
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Name

_HARMLESS = {
    "GRANT", "REVOKE", "FLUSH", "OPTIMIZE", "REPAIR", "CHECK", "CHECKSUM", "INSTALL", "UNINSTALL",
    "KILL", "USE", "LOCK", "UNLOCK", "SHOW", "CREATE", "ALTER", "DROP", "RENAME", "ANALYZE",
    "RESET", "PURGE", "SHUTDOWN",
}  # fmt: skip
"""They leave the rows of tables alone, or never stand in a log in place of rows."""

_VERBS = {"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "SELECT"}
_MODIFIERS = {"LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "IGNORE", "INTO"}
"""No table is called so without quotes."""
_REFERENCE_ENDS = {"SET", "WHERE", "ORDER", "LIMIT", "RETURNING"}
# Words in front of parentheses that one of the servers does not know as such.
_NO_CALLS = {"AGAINST", "JSON_TABLE"}


@dataclass(frozen=True)
class Writes:
    """What a statement may write.

    Attributes:
        verb: what it does.
        tables: the tables it names as those to be written.
        temporary: temporary tables that it makes or drops, by its verb.
        calls: what precedes parentheses, as (database or None, name as written): it
            may be a stored function, which may write anything.
        names: every name that could be a table's, if the statement was not understood.
    """

    verb: str
    tables: tuple[Name, ...] = ()
    calls: tuple[tuple[str | None, str], ...] = ()
    names: tuple[Name, ...] = ()
    temporary: tuple[Name, ...] = ()


def writes_of(tokens: Sequence[Token]) -> Writes:
    """Return what a statement that is no schema change may write."""
    start = _main_verb(tokens)
    verb = tokens[start].upper if start < len(tokens) else ""
    if verb in ("CREATE", "DROP") and any(token.upper == "TEMPORARY" for token in tokens[:4]):
        return _temporary(verb, tokens)
    if verb in _HARMLESS:
        return Writes(verb)
    statement = list(tokens[start:])
    found = _written(verb, statement)
    calls = _calls(tokens, {id(token) for token in found[1]} if found else set())
    if found is None:
        return Writes(verb, calls=calls, names=mentioned(tokens))
    return Writes(verb, tables=tuple(dict.fromkeys(found[0])), calls=calls)


def _temporary(verb: str, tokens: Sequence[Token]) -> Writes:
    """Return which temporary tables come or go, and what the query that fills one may call."""
    at = _find(tokens, 0, {"TABLE", "TABLES"}) + 1
    while _upper(tokens, at) in ("IF", "NOT", "EXISTS"):
        at += 1
    listed = _references(tokens, at) if verb == "DROP" else _references(tokens[at : at + 3], 0)
    query = [place for place, token in enumerate(tokens) if token.upper == "SELECT"]
    calls = _calls(tokens[query[0] :], set()) if query else ()
    return Writes(verb, calls=calls, temporary=tuple(dict.fromkeys(name for name, _, _ in listed)))


def mentioned(tokens: Sequence[Token]) -> tuple[Name, ...]:
    """Return every name in a statement that could be a table's, qualified or not."""
    found: list[Name] = []
    for at, token in enumerate(tokens):
        if not token.is_name or token.raw.isdigit():
            continue
        found.append((None, token.text))
        if _raw(tokens, at + 1) == "." and at + 2 < len(tokens) and tokens[at + 2].is_name:
            found.append((token.text, tokens[at + 2].text))
    return tuple(dict.fromkeys(found))


def _main_verb(tokens: Sequence[Token]) -> int:
    """Return where the statement's own verb is, behind WITH … and SET STATEMENT … FOR."""
    at = 0
    if _upper(tokens, 0) == "SET" and _upper(tokens, 1) == "STATEMENT":
        at = _find(tokens, 2, {"FOR"}) + 1
    if _upper(tokens, at) == "ANALYZE" and _upper(tokens, at + 1) not in (
        "TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG",
    ):  # fmt: skip
        at = _find(tokens, at + 1, _VERBS | {"WITH"})
    if _upper(tokens, at) == "WITH":
        at = _find(tokens, at + 1, _VERBS)
    return at


def _written(verb: str, tokens: list[Token]) -> tuple[list[Name], list[Token]] | None:
    """Return the tables that are written and the tokens of their names; None: not understood."""
    at = 1
    while _upper(tokens, at) in _MODIFIERS or (verb == "DELETE" and _upper(tokens, at) == "QUICK"):
        at += 1
    if verb in ("INSERT", "REPLACE"):
        return _one_name(tokens, at)
    if verb == "LOAD":
        at = _find(tokens, at, {"INTO"})
        return _one_name(tokens, at + 2) if _upper(tokens, at + 1) == "TABLE" else None
    if verb == "UPDATE":
        return _names_of(_references(tokens, at))
    if verb == "DELETE":
        return _deleted(tokens, at)
    return ([], []) if verb in ("SELECT", "DO", "SET", "VALUES") else None


def _deleted(tokens: list[Token], at: int) -> tuple[list[Name], list[Token]] | None:
    """Return the tables of ``DELETE FROM t``, ``DELETE a, b FROM …``, ``DELETE FROM a USING …``."""
    begin = at
    origin = _find(tokens, at, {"FROM"})
    if origin == begin:
        using = _find(tokens, at, {"USING"})
        listed = _references(tokens[:using], at + 1)
        named = _references(tokens, using + 1) if using < len(tokens) else listed
    else:
        listed = _references(tokens[:origin], begin)
        named = _references(tokens, origin + 1)
    if not listed or not named:
        return None
    aliases = {alias: (name, token) for name, token, alias in named}
    written = [
        aliases.get(table, (name, token)) if name[0] is None else (name, token)
        for name, token, _ in listed
        for table in (name[1],)
    ]
    return [name for name, _ in written], [token for _, token in written]


def _references(tokens: Sequence[Token], at: int) -> list[tuple[Name, Token, str]]:
    """Return the tables of a list or join as (name, its last token, alias); subqueries are none."""
    found: list[tuple[Name, Token, str]] = []
    expects = True
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        if token.raw == "(":
            depth += 1
            inside = _upper(tokens, at + 1)
            if inside in ("SELECT", "WITH", "VALUES", "TABLE") or not expects:
                at = _behind_parentheses(tokens, at)
                depth -= 1
                expects = False
                continue
        elif token.raw == ")":
            depth -= 1
        elif token.upper in _REFERENCE_ENDS and depth == 0:
            break
        elif token.raw == "," or token.upper in ("JOIN", "STRAIGHT_JOIN"):
            expects = True
        elif token.is_name and expects:
            name, last = _name_at(tokens, at)
            alias = (
                tokens[last + 2] if _upper(tokens, last + 1) == "AS" else _token(tokens, last + 1)
            )
            is_alias = alias is not None and alias.is_name
            found.append((name, tokens[last], alias.text if alias and is_alias else name[1]))
            at, expects = last, False
        at += 1
    return found


def _names_of(
    references: list[tuple[Name, Token, str]],
) -> tuple[list[Name], list[Token]] | None:
    if not references:
        return None
    return [name for name, _, _ in references], [token for _, token, _ in references]


def _one_name(tokens: Sequence[Token], at: int) -> tuple[list[Name], list[Token]] | None:
    token = _token(tokens, at)
    if token is None or not token.is_name:
        return None
    name, last = _name_at(tokens, at)
    return [name], [tokens[last]]


def _name_at(tokens: Sequence[Token], at: int) -> tuple[Name, int]:
    """Return the name that begins here, and the place of its last token."""
    following = _token(tokens, at + 2)
    if _raw(tokens, at + 1) == "." and following is not None and following.is_name:
        return (tokens[at].text, following.text), at + 2
    return (None, tokens[at].text), at


def _calls(tokens: Sequence[Token], targets: set[int]) -> tuple[tuple[str | None, str], ...]:
    """Return what precedes parentheses, but for names of tables and subqueries."""
    own = _common_tables(tokens)
    found: list[tuple[str | None, str]] = []
    for at, token in enumerate(tokens[:-1]):
        if not token.is_name or _raw(tokens, at + 1) != "(" or id(token) in targets:
            continue
        if _raw(tokens, at - 1) == "." and at >= 2:
            found.append((tokens[at - 2].text, token.raw))
        elif (
            token.upper not in _NO_CALLS
            and token.text not in own
            and _upper(tokens, at - 1) != "AS"
        ):
            found.append((None, token.raw))
    return tuple(dict.fromkeys(found))


def _common_tables(tokens: Sequence[Token]) -> set[str]:
    """Return the names that WITH gives to queries."""
    if "WITH" not in {token.upper for token in tokens}:
        return set()
    return {
        token.text
        for at, token in enumerate(tokens)
        if token.is_name and _upper(tokens, at - 1) in ("WITH", "RECURSIVE", ",")
    }


def _find(tokens: Sequence[Token], at: int, words: set[str]) -> int:
    """Return where one of these words comes next outside parentheses; the end if nowhere."""
    depth = 0
    while at < len(tokens):
        token = tokens[at]
        depth += (token.raw == "(") - (token.raw == ")")
        if depth == 0 and token.kind == WORD and token.upper in words:
            return at
        at += 1
    return at


def _behind_parentheses(tokens: Sequence[Token], at: int) -> int:
    depth = 0
    while at < len(tokens):
        depth += (tokens[at].raw == "(") - (tokens[at].raw == ")")
        at += 1
        if depth == 0:
            break
    return at


def _token(tokens: Sequence[Token], at: int) -> Token | None:
    return tokens[at] if 0 <= at < len(tokens) else None


def _upper(tokens: Sequence[Token], at: int) -> str:
    token = _token(tokens, at)
    return token.upper if token is not None else ""


def _raw(tokens: Sequence[Token], at: int) -> str:
    token = _token(tokens, at)
    return token.raw if token is not None else ""
