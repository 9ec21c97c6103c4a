"""GTID events with a tag (MySQL 8.3 and later), which the server writes in a format of its own."""

from dataclasses import dataclass
from uuid import UUID

from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import HEADER


@dataclass(frozen=True)
class TaggedGtid:
    """A transaction's name: ``origin`` is ``uuid:tag``; its commit time in ms, None if absent."""

    origin: str
    number: int
    time_ms: int | None


def parse_tagged_gtid(event: bytes) -> TaggedGtid:
    """Read a GTID_TAGGED_LOG_EVENT: numbered fields of variable-length integers."""
    at = HEADER
    _, at = _unsigned(event, at)  # version
    _, at = _unsigned(event, at)  # size
    _, at = _unsigned(event, at)  # last field that may not be ignored
    uuid, tag, number = b"", "", 0
    times: dict[int, int] = {}
    while at < len(event):
        field, at = _unsigned(event, at)
        if field == 1:
            parts = []
            for _ in range(16):
                part, at = _unsigned(event, at)
                parts.append(part)
            uuid = bytes(parts)
        elif field == 3:
            length, at = _unsigned(event, at)
            tag = event[at : at + length].decode()
            at += length
        elif field == 2:
            number, at = _signed(event, at)
        elif field in (4, 5):
            _, at = _signed(event, at)
        else:
            times[field], at = _unsigned(event, at)
    micros = times.get(7, times.get(6))
    origin = f"{UUID(bytes=uuid)}:{tag}" if tag else str(UUID(bytes=uuid))
    return TaggedGtid(origin, number, micros // 1000 if micros is not None else None)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return (integer, offset behind it); the first byte's trailing ones count further bytes."""
    first = data[at]
    more = 0
    while more < 8 and first >> more & 1:
        more += 1
    if more == 8:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    value = int.from_bytes(data[at : at + 1 + more], "little") >> (more + 1)
    return value, at + 1 + more


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """The same for a signed integer, whose lowest bit is the sign."""
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at
