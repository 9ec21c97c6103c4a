"""Compressed events: MySQL's transaction payloads, MariaDB's compressed queries and rows."""

import zlib

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import (
    HEADER,
    MARIADB_QUERY_COMPRESSED,
)

_ROWS_V1, _ROWS_V2 = range(166, 169), range(169, 172)
_ZSTD, _PLAIN = 0, 255
_SIZE_MAX = 1 << 30


def payload_events(event: bytes) -> list[bytes]:
    """Return the events inside a transaction payload event, without checksums.

    Raises:
        FatalError: an unknown compression, or a damaged payload.
    """
    import zstandard

    at, fields = HEADER, {}
    while at < len(event):
        kind, at = _number(event, at)
        if kind == 0:
            break
        length, at = _number(event, at)
        fields[kind] = _number(event, at)[0]
        at += length
    body = event[at:]
    if fields.get(2, _PLAIN) == _ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
        body = reader.read(fields.get(3, _SIZE_MAX))
    elif fields.get(2) != _PLAIN:
        raise FatalError(
            f"a transaction payload has compression {fields.get(2)}, which is unknown; set "
            "binlog_transaction_compression=OFF and snapshot the tables again"
        )
    events = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at + 9 : at + 13], "little")
        if size < HEADER:
            raise FatalError("a transaction payload is damaged; snapshot the tables again")
        events.append(body[at : at + size])
        at += size
    return events


def mariadb_event(event: bytes) -> bytes:
    """Return a compressed MariaDB event as the plain one it stands for."""
    kind = event[4]
    if kind == MARIADB_QUERY_COMPRESSED:
        status = int.from_bytes(event[HEADER + 11 : HEADER + 13], "little")
        at = HEADER + 13 + status + event[HEADER + 8] + 1
        plain = 2
    else:
        at = HEADER + 8
        if kind in _ROWS_V2:
            at += int.from_bytes(event[at : at + 2], "little")
        columns, at = _number(event, at)
        bitmaps = 2 if kind in (_ROWS_V1[1], _ROWS_V2[1]) else 1
        at += bitmaps * ((columns + 7) // 8)
        plain = 23 + kind - _ROWS_V1[0] if kind in _ROWS_V1 else 30 + kind - _ROWS_V2[0]
    head = event[at]
    if head & 0x70:
        raise FatalError(
            "a compressed event uses an unknown method; set log_bin_compress=OFF and snapshot "
            "the tables again"
        )
    body = zlib.decompress(event[at + 1 + (head & 7) :])
    return event[:4] + bytes([plain]) + event[5:at] + body


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return (length-encoded integer, offset behind it)."""
    first = data[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
