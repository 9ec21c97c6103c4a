"""Character sets of the server as tables from bytes to Unicode, for the kernels."""

from functools import lru_cache
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import SchemaError

UTF8, ONE_BYTE, TWO_BYTES, UTF16, UTF16_LITTLE, UTF32, UJIS, GB18030 = range(8)
NOT_A_CHARACTER = 0xFFFFFFFF

_DIRECT = {
    "utf8mb4": UTF8,
    "utf8mb3": UTF8,
    "utf8": UTF8,
    "ascii": UTF8,
    "ucs2": UTF16,
    "utf16": UTF16,
    "utf16le": UTF16_LITTLE,
    "utf32": UTF32,
}
_CODECS = {
    "latin1": (ONE_BYTE, "cp1252"),
    "latin2": (ONE_BYTE, "iso8859_2"),
    "latin5": (ONE_BYTE, "iso8859_9"),
    "latin7": (ONE_BYTE, "iso8859_13"),
    "cp1250": (ONE_BYTE, "cp1250"),
    "cp1251": (ONE_BYTE, "cp1251"),
    "cp1256": (ONE_BYTE, "cp1256"),
    "cp1257": (ONE_BYTE, "cp1257"),
    "cp850": (ONE_BYTE, "cp850"),
    "cp852": (ONE_BYTE, "cp852"),
    "cp866": (ONE_BYTE, "cp866"),
    "koi8r": (ONE_BYTE, "koi8_r"),
    "koi8u": (ONE_BYTE, "koi8_u"),
    "greek": (ONE_BYTE, "iso8859_7"),
    "hebrew": (ONE_BYTE, "iso8859_8"),
    "tis620": (ONE_BYTE, "tis_620"),
    "macroman": (ONE_BYTE, "mac_roman"),
    "macce": (ONE_BYTE, "mac_latin2"),
    "sjis": (TWO_BYTES, "shift_jis"),
    "cp932": (TWO_BYTES, "cp932"),
    "gbk": (TWO_BYTES, "gbk"),
    "gb2312": (TWO_BYTES, "gb2312"),
    "big5": (TWO_BYTES, "big5"),
    "euckr": (TWO_BYTES, "euc_kr"),
    "ujis": (UJIS, "euc_jp"),
    "eucjpms": (UJIS, "euc_jp"),
    "gb18030": (GB18030, "gb18030"),
}
# Where the server's tables differ from Python's codecs: bytes to code point.
_UNDEFINED = 0xFFFD
_DIFFERENT = {
    "cp866": {0xFC: 0x207F, 0xFD: 0xB2},
    "koi8u": {0x95: 0x2022},
    "greek": {0xA1: 0x2BD, 0xA2: 0x2BC},
    "hebrew": {0xAF: 0x203E},
    "tis620": dict.fromkeys((0xA0, *range(0xDB, 0xDF), *range(0xFC, 0x100)), _UNDEFINED),
    "sjis": {0x815F: 0x5C},
    "ujis": {0xA1C0: 0x5C},
    "eucjpms": {
        0xA1C1: 0xFF5E, 0xA1C2: 0x2225, 0xA1DD: 0xFF0D, 0xA1F1: 0xFFE0, 0xA1F2: 0xFFE1,
        0xA2CC: 0xFFE2,
    },
    "big5": dict.fromkeys(
        (0xA15A, 0xA1C3, 0xA1C5, 0xA1FE, 0xA240, 0xA2CC, 0xA2CE), _UNDEFINED
    ),
    "gb18030": {0xA8BC: 0x1E3F},
}  # fmt: skip
_PYTHON = {"utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ucs2": "utf-16-be"}
_PYTHON |= {"utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}


def method_of(charset: str) -> int:
    """Return how the kernels read a charset.

    Raises:
        SchemaError: nobody taught us that charset.
    """
    if charset in _DIRECT:
        return _DIRECT[charset]
    if charset in _CODECS:
        return _CODECS[charset][0]
    raise SchemaError(
        f"character set {charset!r} cannot be decoded; convert the column to utf8mb4 or leave "
        "its table out of 'tables'"
    )


def decode_text(data: bytes, charset: str) -> str:
    """Decode a short text of the server, such as an enum label."""
    if charset in _PYTHON:
        return data.decode(_PYTHON[charset], "replace")
    if charset == "binary":
        return data.decode("utf-8", "replace")
    table = table_of(charset)
    if table.size == 256:
        return "".join(chr(code) for code in table[np.frombuffer(data, np.uint8)].tolist())
    return data.decode(_CODECS[charset][1], "replace")


@lru_cache(maxsize=32)
def table_of(charset: str) -> Any:
    """Return the uint32 table a charset's method needs; empty if none.

    ``ONE_BYTE``: 256 code points. ``TWO_BYTES``: 256 for single bytes, ``NOT_A_CHARACTER`` for
    lead bytes, then 65,536 by byte pair. ``UJIS``: the same, then 65,536 behind the byte 0x8F.
    ``GB18030``: as ``TWO_BYTES``, then 39,420 by the linear index of four bytes.
    """
    if charset in _DIRECT:
        return np.zeros(0, np.uint32)
    table = _table(charset)
    for code, point in _DIFFERENT.get(charset, {}).items():
        table[code if code < 256 else 256 + code] = point
    return table


def _table(charset: str) -> Any:
    method, codec = _CODECS[charset]
    singles = [_code_of(bytes([byte]), codec) for byte in range(256)]
    if method == ONE_BYTE:
        # The server maps the holes of cp1252 to the control characters of the same number.
        return np.array(
            [byte if code == NOT_A_CHARACTER else code for byte, code in enumerate(singles)],
            np.uint32,
        )
    parts = [singles, _pairs(b"", codec)]
    if method == UJIS:
        parts.append(_pairs(b"\x8f", codec))
    if method == GB18030:
        parts.append(_four_bytes())
    return np.concatenate([np.array(part, np.uint32) for part in parts])


def _pairs(prefix: bytes, codec: str) -> Any:
    codes = np.full(65536, 0xFFFD, np.uint32)
    for lead in range(0x81, 0xFF):
        for trail in range(0x30, 0xFF):
            code = _code_of(prefix + bytes([lead, trail]), codec)
            if code != NOT_A_CHARACTER:
                codes[lead << 8 | trail] = code
    return codes


def _four_bytes() -> Any:
    codes = np.full(39420, 0xFFFD, np.uint32)
    for code in range(0x80, 0x10000):
        if 0xD800 <= code < 0xE000:
            continue
        data = chr(code).encode("gb18030")
        if len(data) == 4:
            a, b, c, d = data
            codes[((a - 0x81) * 10 + b - 0x30) * 1260 + (c - 0x81) * 10 + d - 0x30] = code
    return codes


def _code_of(data: bytes, codec: str) -> int:
    try:
        text = data.decode(codec)
    except UnicodeDecodeError:
        return NOT_A_CHARACTER
    return ord(text) if len(text) == 1 else NOT_A_CHARACTER
