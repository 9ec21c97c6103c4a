"""Text of every character set is the same in the snapshot, in the stream and for the server."""

import json
import random

import numpy as np
import pytest

from airflow_provider_deltaforge.sources.mysql import charsets as c
from airflow_provider_deltaforge.sources.mysql.binlog.value_kernel import put_text
from tests.servers import mysql, sql
from tests.sources.mysql import charset_tables
from tests.sources.mysql.reading import copied, events, fresh_database, source_of, streamed

IN_A_ROW = 400
UNICODE = {
    # U+0000, all of the plane but the halves, pairs of them, halves alone.
    "ucs2": ["0041D83DDE00", "D83D", "DE00", "D83D0041", "DE00D83D", "D83DD83DDE00", "FFFEFFFF"],
    "utf16": ["0041D83DDE00DBFFDFFF", "D7FFE000FFFF"],
    "utf16le": ["41003DD800DEFFDBFFDF", "FFD700E0FFFF"],
    "utf32": ["000000410001F6000010FFFF", "0000D7FF0000E000"],
    "utf8mb3": ["41C3A4EFBFBF"],
    "utf8mb4": ["41C3A4EFBFBFF48FBFBF"],
}
HALVES = {"ucs2": UNICODE["ucs2"], "utf32": ["0000D83D0000DE00", "0000DE00"]}


def characters(charset):
    """Return every character that a column of the character set can hold, as bytes."""
    table = c.table_of(charset)
    wide = len(table) > c.PAIRS
    found = [
        text
        for place, text in enumerate(charset_tables.sequences(charset, wide=wide))
        if table[place] != c.NOT_A_CHARACTER
    ]
    if charset == "gb18030":
        beyond = [c.FOUR_BYTES_END, 100_000, c.FOUR_BYTES_ASTRAL - 1, c.FOUR_BYTES_ASTRAL]
        beyond += [c.FOUR_BYTES_ASTRAL + 0xFFFFF, c.FOUR_BYTES_ASTRAL + 0x100000, 1_587_599]
        beyond += random.Random(5).sample(range(c.FOUR_BYTES_ASTRAL, 1_237_576), 2000)
        found += map(charset_tables.four_bytes, beyond)
    return found


def rows_of(charset, server):
    """Return the texts to write, many characters each."""
    if charset in UNICODE:
        return [bytes.fromhex(text) for text in UNICODE[charset]]
    known = characters(charset)
    if charset == "ascii" and server.name == "mysql":
        known = known[:128]  # MariaDB keeps the others, too.
    return [b"".join(known[at : at + IN_A_ROW]) for at in range(0, len(known), IN_A_ROW)]


def written(server, name):
    """Write every character; return (rows written, snapshot, stream, the server's own text)."""
    here = [row[0] for row in sql.execute(server, "SHOW CHARACTER SET") if row[0] != "binary"]
    fresh_database(server, name, *(f"CREATE TABLE {s} (id int, v text) CHARSET {s}" for s in here))
    source = source_of(server, name)
    position = source.head()
    count = 0
    connection = sql.connect(server, name)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        for charset in here:
            texts = [text.hex() for text in rows_of(charset, server)]
            values = ",".join(f"({i},X'{text}')" for i, text in enumerate(texts))
            cursor.execute(f"INSERT IGNORE INTO {charset} VALUES {values}")
            count += len(texts)
            cursor.execute(f"SELECT HEX(v) FROM {charset} ORDER BY id")
            assert [row[0].lower() for row in cursor.fetchall()] == texts, charset
    snapshot = texts_of(events(copied(source)))
    stream = texts_of(streamed(source, position, lambda f: len(f) >= count))
    shown = {}
    with connection.cursor() as cursor:
        for charset in here:
            cursor.execute(f"SELECT id, HEX(CONVERT(v USING utf8mb4)) FROM {charset}")
            shown |= {(charset, i): bytes.fromhex(text or "") for i, text in cursor.fetchall()}
    connection.close()
    return snapshot, stream, shown


def texts_of(found):
    rows = [(event["table"], json.loads(event["after"])) for event in found]
    return {(table, row["id"]): row["v"] for table, row in rows}


def test_every_character_is_the_servers_everywhere(server):
    snapshot, stream, shown = written(server, "letters")
    assert len(snapshot) == len(shown) > 300
    for place, text in snapshot.items():
        assert stream[place] == text, place
        if place[0] != "ucs2":
            assert shown[place].decode() == text, place


def test_halves_of_pairs_are_the_same_everywhere(server):
    """The servers let some columns hold them; they are no text, and so they are U+FFFD."""
    chosen = HALVES if server.name == "mariadb" else {"ucs2": HALVES["ucs2"]}
    made = [f"CREATE TABLE {s} (id int, v varchar(9)) CHARSET {s}" for s in chosen]
    fresh_database(server, "halves", *made)
    source = source_of(server, "halves")
    position = source.head()
    for charset, texts in chosen.items():
        for i, text in enumerate(texts):
            sql.execute(server, f"INSERT INTO halves.{charset} VALUES ({i}, X'{text}')")
    count = sum(map(len, chosen.values()))
    snapshot = texts_of(events(copied(source)))
    assert snapshot == texts_of(streamed(source, position, lambda f: len(f) >= count))
    decoded = [snapshot["ucs2", i] for i in range(7)]
    pair = "\U0001f600"
    bad = "\ufffd"
    assert decoded == [
        "A" + pair, bad, bad, bad + "A", bad + bad, bad + pair, "\ufffe\uffff",
    ]  # fmt: skip


def test_kernel_and_python_decode_alike():
    """On bytes of any kind: what no column should hold does not break anything either."""
    draw = random.Random(11)
    out = np.empty(4096, np.uint8)
    names = ["latin1", "swe7", "ujis", "eucjpms", "gb18030", "big5", "euckr", "sjis", "tis620"]
    for charset in [*names, "ucs2", "utf16", "utf16le", "utf32", "ascii", "geostd8"]:
        table = c.table_of(charset)
        method = c.method_of(charset)
        for _ in range(300):
            length = draw.randrange(24)
            high = draw.choice([128, 256])
            text = bytes(draw.randrange(1, high) for _ in range(length))
            if draw.random() < 0.3:
                text = bytes(draw.choice(b"\x81\x30\x84\x31\x8f\xa1\xd8\xdc\x3d\x00") for _ in text)
            source = np.frombuffer(bytes(8) + text + bytes(8), np.uint8)
            end = put_text(out, 0, source, 8, 8 + len(text), method, table)
            found = json.loads(out[:end].tobytes())
            assert found == c.decode_text(text, charset), (charset, text.hex())


def test_labels_beyond_the_first_plane_without_full_metadata(tmp_path_factory):
    """The log has no labels then, and the catalog shows question marks."""
    server = mysql.start(tmp_path_factory.mktemp("minimal"), row_metadata="MINIMAL")
    try:
        labels_are_whole(server)
    finally:
        server.discard()


def labels_are_whole(server):
    fresh_database(
        server,
        "labels",
        "CREATE TABLE t (id int PRIMARY KEY, "
        "e enum('a','😀','?','é🎉','x') CHARSET utf8mb4 NOT NULL, "
        "s set('😀','?','b😀') CHARSET utf8mb4, "
        "g enum('汉') CHARSET gbk, k enum('가') CHARSET euckr)",
    )
    source = source_of(server, "labels")
    position = source.head()
    sql.execute(
        server,
        "INSERT INTO t VALUES (1, 2, 7, 1, 1), (2, 4, 4, 1, 1), (3, 3, 2, 1, 1), (4, 1, 1, 1, 1)",
        database="labels",
    )
    expected = [
        {"id": 1, "e": "😀", "s": "😀,?,b😀", "g": "汉", "k": "가"},
        {"id": 2, "e": "é🎉", "s": "b😀", "g": "汉", "k": "가"},
        {"id": 3, "e": "?", "s": "?", "g": "汉", "k": "가"},
        {"id": 4, "e": "a", "s": "😀", "g": "汉", "k": "가"},
    ]
    stream = streamed(source, position, lambda f: len(f) >= 4)
    assert [json.loads(event["after"]) for event in stream] == expected
    assert [json.loads(event["after"]) for event in events(copied(source))] == expected
    (schema,) = source.describe()
    assert schema.columns[1].labels == ("a", "😀", "?", "é🎉", "x")


def test_labels_are_whole_with_full_metadata(server):
    labels_are_whole(server)


@pytest.mark.parametrize("size", [0, 1, 56, 57, 58, 114, 115, 300])
def test_bytes_in_json_have_the_servers_line_breaks(mysql_server, size):
    fresh_database(mysql_server, "opaque", "CREATE TABLE t (id int PRIMARY KEY, j json)")
    source = source_of(mysql_server, "opaque")
    position = source.head()
    value = f"JSON_OBJECT('b', CAST(REPEAT('x', {size}) AS BINARY))"
    sql.execute(mysql_server, f"INSERT INTO opaque.t VALUES (1, {value})")
    (streamed_row,) = streamed(source, position, lambda f: f)
    (copied_row,) = events(copied(source))
    assert streamed_row["after"] == copied_row["after"]


@pytest.mark.long
def test_the_file_is_what_a_server_says(server):
    for charset in charset_tables.charset_names(server):
        found = charset_tables.table(server, charset)
        assert (found == c.table_of(charset)).all(), charset
