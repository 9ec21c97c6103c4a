"""Character sets of the server as tables from bytes to Unicode, for the kernels.

The tables are the server's own: ``python -m tests.sources.mysql.charset_tables`` asks one. What it
shows as a question mark is one here.
"""

import json
import lzma
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import SchemaError

UTF8, ONE_BYTE, TWO_BYTES, UTF16, UTF16_LITTLE, UTF32, UJIS, GB18030 = range(8)
ASCII_AS_IS = 0x80
"""Beside a method: bytes below 0x80 are the ASCII characters."""
NOT_A_CHARACTER = 0xFFFFFFFF
"""In a table: no character begins with these bytes; the first one alone is a question mark."""
UNREADABLE = 0x3F
"""What the server shows for bytes that are no character."""
HALF = 0xFFFD
"""Stands for half of a surrogate pair, which no text can hold."""

TABLES_FILE = Path(__file__).with_name("charset_tables.xz")

_DIRECT = {
    "utf8mb4": UTF8,
    "utf8mb3": UTF8,
    "utf8": UTF8,
    "ucs2": UTF16,
    "utf16": UTF16,
    "utf16le": UTF16_LITTLE,
    "utf32": UTF32,
}
_METHODS = {"ujis": UJIS, "eucjpms": UJIS, "gb18030": GB18030}
_BELOW_128 = np.arange(128)

BYTES_MAX = {
    "utf8mb4": 4, "utf8mb3": 3, "utf8": 3, "utf16": 4, "utf16le": 4, "utf32": 4, "ucs2": 2,
    "gb18030": 4, "gbk": 2, "gb2312": 2, "big5": 2, "sjis": 2, "cp932": 2, "euckr": 2, "ujis": 3,
    "eucjpms": 3,
}  # fmt: skip
"""Bytes of the longest character; one in all others."""

PAIRS = 256
"""Where a table's pairs of bytes begin."""
THIRD = PAIRS + 65_536
"""Where the characters of three or four bytes begin."""
FOUR_BYTES_END = 39_420
"""How many four-byte characters of GB 18030 have a place in the table."""
FOUR_BYTES_ASTRAL = 189_000
"""The place of U+10000 among them; they follow one by one."""


def method_of(charset: str) -> int:
    """Return how the kernels read a charset: the method, perhaps with ``ASCII_AS_IS``.

    Raises:
        SchemaError: there is no table for that charset.
    """
    if charset in _DIRECT:
        return _DIRECT[charset]
    table = _tables().get(charset)
    if table is None:
        raise SchemaError(
            f"character set {charset!r} cannot be decoded; convert the column to utf8mb4 or leave "
            "its table out of 'tables'"
        )
    method = _METHODS.get(charset, ONE_BYTE if len(table) == PAIRS else TWO_BYTES)
    return method | (ASCII_AS_IS if (table[:128] == _BELOW_128).all() else 0)


def table_of(charset: str) -> Any:
    """Return the uint32 table a charset's method needs; empty if none.

    ``ONE_BYTE``: 256 code points. ``TWO_BYTES``: 256 for single bytes, ``NOT_A_CHARACTER`` for
    lead bytes, then 65,536 by byte pair. ``UJIS``: the same, then 65,536 behind the byte 0x8F.
    ``GB18030``: as ``TWO_BYTES``, then 39,420 by the linear index of four bytes.
    """
    return _tables().get(charset, _NO_TABLE)


_NO_TABLE = np.zeros(0, np.uint32)


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Any]:
    head, _, packed = lzma.decompress(TABLES_FILE.read_bytes()).partition(b"\n")
    lengths: dict[str, int] = json.loads(head)
    joined = np.cumsum(np.frombuffer(packed, "<u4"), dtype=np.uint32)
    ends = np.cumsum(list(lengths.values()))
    return dict(zip(lengths, np.split(joined, ends[:-1]), strict=True))


def decode_text(data: bytes, charset: str) -> str:
    """Decode a short text of the server, such as an enum label, as the kernels do."""
    if charset in ("utf8mb4", "utf8mb3", "utf8", "binary"):
        return data.decode("utf-8", "replace")
    method = method_of(charset) & ~ASCII_AS_IS
    table = table_of(charset)
    points, at = [], 0
    # What is too short at the end of wide characters is none.
    unit = {UTF16: 2, UTF16_LITTLE: 2, UTF32: 4}.get(method, 1)
    while at + unit <= len(data):
        if method == ONE_BYTE:
            point, size = int(table[data[at]]), 1
        elif method in (UTF16, UTF16_LITTLE):
            point, size = _utf16(data, at, "little" if method == UTF16_LITTLE else "big")
        elif method == UTF32:
            code = int.from_bytes(data[at : at + 4], "big")
            point, size = (HALF if _is_none(code) else code), 4
        else:
            point, size = _several(table, data, at, method)
        points.append(chr(point))
        at += size
    return "".join(points)


def _is_none(code: int) -> bool:
    return 0xD800 <= code < 0xE000 or code > 0x10FFFF


def _utf16(data: bytes, at: int, order: Any) -> tuple[int, int]:
    high = int.from_bytes(data[at : at + 2], order)
    low = int.from_bytes(data[at + 2 : at + 4], order)
    if 0xD800 <= high < 0xDC00 <= low < 0xE000:
        return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00), 4
    return (HALF if _is_none(high) else high), 2


def _several(table: Any, data: bytes, at: int, method: int) -> tuple[int, int]:
    """Return (code point, bytes taken) of a character with a table of byte pairs."""
    lead, trail = data[at], (data[at + 1] if at + 1 < len(data) else 0)
    point, size = int(table[lead]), 1
    if point == NOT_A_CHARACTER and at + 1 < len(data):
        point, size = int(table[PAIRS + (lead << 8 | trail)]), 2
        if method == UJIS and lead == 0x8F and at + 2 < len(data):
            point, size = int(table[THIRD + (trail << 8 | data[at + 2])]), 3
        elif method == GB18030 and 0x30 <= trail <= 0x39 and at + 3 < len(data):
            point, size = _four_bytes(table, data[at : at + 4]), 4
    return (UNREADABLE, 1) if point == NOT_A_CHARACTER else (point, size)


def _four_bytes(table: Any, data: bytes) -> int:
    index = ((data[0] - 0x81) * 10 + data[1] - 0x30) * 1260 + (data[2] - 0x81) * 10
    index += data[3] - 0x30
    if 0 <= index < FOUR_BYTES_END:
        return int(table[THIRD + index])
    if FOUR_BYTES_ASTRAL <= index < FOUR_BYTES_ASTRAL + 0x100000:
        return index - FOUR_BYTES_ASTRAL + 0x10000
    return UNREADABLE
