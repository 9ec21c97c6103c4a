"""``python -m tests.sources.mysql.charset_tables``: ask a real server what its characters mean.

Writes ``sources/mysql/charset_tables.xz``: for each character set that is not Unicode itself, the
code point of every byte sequence a column can hold. MySQL and MariaDB agree on all of them, which
``test_charsets`` holds against both.
"""

import itertools
import json
import lzma
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_deltaforge.sources.mysql import charsets as c
from tests.servers import mysql, sql
from tests.servers.process import Server

UNICODE = ("binary", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32")
THREE_BYTES = ("ujis", "eucjpms")

_AT_ONCE = 16_384
_FOUR_BYTES = 39_420


def charset_names(server: Server) -> list[str]:
    """Return the server's character sets, but for those that are Unicode."""
    rows = sql.execute(server, "SHOW CHARACTER SET")
    return sorted(str(row[0]) for row in rows if row[0] not in UNICODE)


def stored(server: Server, charset: str, texts: Sequence[bytes]) -> list[tuple[bytes, str]]:
    """Return what a column keeps of each text, and how the server reads it."""
    connection = sql.connect(server)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', sql_log_bin = 0")
        cursor.execute("CREATE DATABASE IF NOT EXISTS charsets")
        cursor.execute("DROP TABLE IF EXISTS charsets.t")
        kept = f"varchar(8) CHARACTER SET {charset}"
        cursor.execute(f"CREATE TABLE charsets.t (id int PRIMARY KEY, c {kept})")
        for first in range(0, len(texts), _AT_ONCE):
            part = enumerate(texts[first : first + _AT_ONCE], first)
            values = ",".join(f"({i},X'{text.hex()}')" for i, text in part)
            cursor.execute(f"INSERT IGNORE INTO charsets.t VALUES {values}")
        read = "SELECT HEX(c), HEX(CONVERT(c USING utf8mb4)) FROM charsets.t ORDER BY id"
        cursor.execute(read)
        rows = cursor.fetchall()
    connection.close()
    return [(bytes.fromhex(kept), bytes.fromhex(text).decode()) for kept, text in rows]


def sequences(charset: str, *, wide: bool) -> Iterator[bytes]:
    """Yield what may be one character: in the order of the table's places.

    Args:
        charset: its name.
        wide: it has characters of more than one byte.
    """
    yield from (bytes([byte]) for byte in range(256))
    if wide:
        yield from map(bytes, itertools.product(range(256), repeat=2))
    if charset in THREE_BYTES:
        yield from (b"\x8f" + bytes(pair) for pair in itertools.product(range(256), repeat=2))
    if charset == "gb18030":
        yield from map(four_bytes, range(_FOUR_BYTES))


def four_bytes(index: int) -> bytes:
    """Return the bytes of GB 18030 with a place in the order of its four-byte characters."""
    index, last = divmod(index, 10)
    index, third = divmod(index, 126)
    first, second = divmod(index, 10)
    return bytes((0x81 + first, 0x30 + second, 0x81 + third, 0x30 + last))


def table(server: Server, charset: str) -> Any:
    """Return a character set's table, as ``charsets.table_of`` describes it."""
    rows = sql.execute(server, f"SHOW CHARACTER SET LIKE '{charset}'")
    wide = int(rows[0][3]) > 1  # Bytes of its longest character.
    inputs = list(sequences(charset, wide=wide))
    asked = [text for text in inputs if len(text) != 2 or text[0] >= 0x80]
    answers = dict(zip(asked, stored(server, charset, asked), strict=True))
    singles = {text for text, (kept, _) in answers.items() if len(text) == 1 and kept == text}
    found = np.full(len(inputs), c.NOT_A_CHARACTER, np.uint32)
    for place, text in enumerate(inputs):
        kept, read = answers.get(text, (b"", ""))
        # Two characters where one is looked for: the bytes are read one by one.
        apart = len(text) > 1 and text[:1] in singles
        if kept == text and len(read) == 1 and not apart:
            found[place] = ord(read)
        elif len(text) == 1 and not wide:
            found[place] = ord("?")
    return found


def main() -> None:
    """Write the tables of a fresh server."""
    with tempfile.TemporaryDirectory(prefix="deltaforge-charsets-") as directory:
        server = mysql.start(Path(directory))
        try:
            tables = {name: table(server, name) for name in charset_names(server)}
        finally:
            server.stop()
    write(tables)


def packed(tables: dict[str, Any]) -> bytes:
    """Return the file of some tables: a line of lengths, then differences, which pack well."""
    head = json.dumps({name: len(found) for name, found in tables.items()}).encode() + b"\n"
    joined = np.concatenate(list(tables.values())).astype("<u4")
    return lzma.compress(head + np.diff(joined, prepend=np.uint32(0)).tobytes(), preset=9)


def write(tables: dict[str, Any]) -> None:
    """Write the package's file."""
    c.TABLES_FILE.write_bytes(packed(tables))


if __name__ == "__main__":
    main()
