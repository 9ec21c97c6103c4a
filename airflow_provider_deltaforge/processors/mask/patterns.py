"""Patterns of columns: their parts, which dots part, and upper and lower case alike."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeAlias

import numpy as np

ANY = -1
"""Stands for any text in a part."""

Part: TypeAlias = "tuple[int, ...]"
"""Code points, folded, and ``ANY``."""

_CASED_END = 0x1E944
"""Behind the last letter that has another case."""
_PIECE = re.compile(r"\\[.*\\]|.", re.DOTALL)


@cache
def folds() -> Any:
    """Return int32 per code point: the one that stands for it in upper and in lower case."""
    table = np.arange(_CASED_END, dtype=np.int32)
    for code in range(_CASED_END):
        letter = chr(code)
        # One for one: what folds into several, such as the German sharp s, stays.
        folded = next(
            (form for form in (letter.casefold(), letter.lower()) if len(form) == 1), letter
        )
        table[code] = ord(folded)
    table.setflags(write=False)
    return table


def folded(text: str) -> str:
    """Return text in which upper and lower case are alike."""
    table = folds()
    return "".join(
        chr(table[ord(letter)]) if ord(letter) < _CASED_END else letter for letter in text
    )


def parts_of(pattern: str) -> tuple[Part, ...]:
    r"""Return the parts of a pattern; ``\.``, ``\*`` and ``\\`` stand for these characters.

    In front of anything else a backslash is itself.
    """
    parts: list[list[int]] = [[]]
    for piece in _PIECE.findall(pattern):
        if piece == ".":
            parts.append([])
        else:
            parts[-1].append(ANY if piece == "*" else ord(folded(piece[-1])))
    return tuple(map(tuple, parts))


def fits_column(pattern: str, qualifiers: Iterable[str], table: str, column: str) -> bool:
    """Return whether the first three parts of a pattern name a column.

    Args:
        pattern: the pattern; what leads into a JSON column is not looked at.
        qualifiers: what the first part may name: database and schema.
        table: its table.
        column: its name.
    """
    first, *others = map(regex_of, parts_of(pattern)[:3])
    return any(first.fullmatch(folded(qualifier)) for qualifier in qualifiers) and all(
        part.fullmatch(folded(name)) for part, name in zip(others, (table, column), strict=True)
    )


def regex_of(part: Part) -> "re.Pattern[str]":
    """Return what matches folded names that a part means."""
    pieces = (".*" if code == ANY else re.escape(chr(code)) for code in part)
    return re.compile("".join(pieces), re.DOTALL)
