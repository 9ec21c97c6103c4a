"""Names of tables as one text: what records, counters and people know a table by.

Parts that hold a dot stand in double quotes, as in SQL: ``"a.b".c`` and ``a."b.c"`` are two tables.
All other names are written plainly, ``shop.orders``.
"""

import re
from collections.abc import Collection, Iterable, Sequence

from airflow_provider_deltaforge.errors import SpecError

_QUOTED = r'"((?:[^"]|"")+)"'
_PLAIN = r'([^".][^.]*)'
_PART = re.compile(rf"(?:{_QUOTED}|{_PLAIN})(\.|$)", re.DOTALL)


def qualified_name(*parts: str) -> str:
    """Return the name that only these parts have; no two lists of as many parts share one."""
    if not any("." in part for part in parts):
        return ".".join(parts)
    # Behind a dot, a quote at the beginning of a plain part would read as that of a quoted one.
    return ".".join(
        '"' + part.replace('"', '""') + '"' if "." in part or part.startswith('"') else part
        for part in parts
    )


def split_names(names: Sequence[str] | str) -> tuple[str, ...]:
    """Return names that are given as a list, or as a text with commas between them."""
    parts = names.split(",") if isinstance(names, str) else names
    return tuple(part.strip() for part in parts if part.strip())


def named_or_all(key: str, names: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the names of an argument that means everything where it is left out.

    Args:
        key: the argument, for the error.
        names: a list, or a text with commas between; None: left out.

    Raises:
        SpecError: it is there without a name, as where a variable was never set.
    """
    found = split_names(names or ())
    if names is not None and not found:
        raise SpecError(f"{key}: is empty; leave it out for everything")
    return found


def quoted_parts(text: str) -> list[tuple[str, bool]] | None:
    """Return the parts of a name of which some are quoted, each with whether it is.

    None for a name without quoted parts: where such a one is cut is for who reads it to decide.
    """
    parts: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        quoted, plain, dot = found.groups()
        parts.append((plain, False) if quoted is None else (quoted.replace('""', '"'), True))
        at = found.end()
        if dot and at == len(text):
            return None
    return parts if any(is_quoted for _, is_quoted in parts) else None


def unquoted(name: str) -> str:
    """Return a name as people may write it, and as records of an early release have it."""
    parts = quoted_parts(name)
    return name if parts is None else ".".join(part for part, _ in parts)


def short_names(table: str) -> set[str]:
    """Return the other names of a table: without quotes, and without its qualifier."""
    parts = quoted_parts(table)
    bare = parts[-1][0] if parts is not None else table.rpartition(".")[2]
    return {unquoted(table), bare}


def is_named(table: str, names: Iterable[str]) -> bool:
    """Return whether a person calls a table so: by its full name, or by another of its names."""
    return not {table, *short_names(table)}.isdisjoint(names)


def is_among(names: Collection[str], qualifier: str, table: str) -> bool:
    """Return whether a table is one of those with these names.

    Records of an early release hold names with dots unquoted, and mean every table they fit.
    """
    return qualified_name(qualifier, table) in names or f"{qualifier}.{table}" in names
