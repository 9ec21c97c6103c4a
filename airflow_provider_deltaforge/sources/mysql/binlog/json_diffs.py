"""Applies what MySQL logs of a changed JSON document with ``binlog_row_value_options``.

Documents are in MySQL's binary form: taken apart, changed, and put together again. Scalars stay the
bytes they are, so nothing changes that no difference names.
"""

import json
import re
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError

_REPLACE, _INSERT, _REMOVE = range(3)
_OBJECT, _ARRAY, _LITERAL, _INT16, _UINT16, _INT32, _UINT32 = 1, 3, 4, 5, 6, 7, 8
_TEXT, _OPAQUE = 12, 15
_INLINE = {_LITERAL: 1, _INT16: 2, _UINT16: 2, _INT32: 4, _UINT32: 4}
_SCALARS = {**_INLINE, 9: 8, 10: 8, 11: 8}
_LEG = re.compile(r'\.("(?:[^"\\]|\\.)*"|[^.\[]+)|\[(\d+)\]')

Scalar = tuple[int, bytes]
Path = list[bytes | int]


def applied(document: bytes, diffs: bytes) -> bytes:
    """Return a binary document with a vector of differences applied, in its large form.

    Raises:
        SchemaError: the differences do not fit the document.
    """
    try:
        tree = _parsed(document[0], document, 1)
        at = 0
        while at < len(diffs):
            operation = diffs[at]
            length, at = _length(diffs, at + 1)
            path = _path(diffs[at : at + length].decode())
            at += length
            value = None
            if operation != _REMOVE:
                length, at = _length(diffs, at)
                value = _parsed(diffs[at], diffs[: at + length], at + 1)
                at += length
            tree = _changed(tree, operation, path, value)
        kind, body = _written(tree)
        return bytes([kind]) + body
    except (IndexError, KeyError, ValueError, TypeError) as error:
        raise SchemaError(
            "a JSON difference of the log does not fit the document that it changes"
        ) from error


def _path(text: str) -> Path:
    """Return the steps of ``$.name[3]``."""
    legs: Path = []
    at = 1
    while at < len(text):
        leg = _LEG.match(text, at)
        if leg is None:
            raise ValueError(text)
        at = leg.end()
        name, index = leg.groups()
        if index is not None:
            legs.append(int(index))
        else:
            legs.append((json.loads(name) if name[0] == '"' else name).encode())
    return legs


def _changed(tree: Any, operation: int, path: Path, value: Any) -> Any:
    if not path:
        if operation != _REPLACE:
            raise ValueError(operation)
        return value
    inside = tree
    for leg in path[:-1]:
        inside = _step(inside, leg)
    last: Any = path[-1]
    there = not isinstance(inside, dict) or last in inside
    if operation == _INSERT and isinstance(inside, list):
        inside.insert(int(last), value)
    elif there is (operation == _INSERT):
        raise KeyError(last)
    elif operation == _REMOVE:
        del inside[last]
    else:
        inside[last] = value
    return tree


def _step(inside: Any, leg: Any) -> Any:
    if not isinstance(inside, (dict, list)):
        raise TypeError(leg)
    return inside[leg]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return (length in the form of the client protocol, offset behind it)."""
    first = data[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def _groups(data: bytes, at: int) -> tuple[int, int]:
    """Return (length in groups of seven bits, offset behind it)."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _parsed(kind: int, data: bytes, at: int) -> Any:
    """Return a value as a dict, a list or (type, bytes)."""
    if kind in _SCALARS:
        return kind, data[at : at + _SCALARS[kind]]
    if kind == _TEXT:
        length, begin = _groups(data, at)
        return kind, data[at : begin + length]
    if kind == _OPAQUE:
        length, begin = _groups(data, at + 1)
        return kind, data[at : begin + length]
    if kind > _ARRAY:
        raise ValueError(kind)
    width = 4 if kind & 1 else 2
    count = int.from_bytes(data[at : at + width], "little")
    is_object = kind < 2
    entry = at + 2 * width
    values = entry + (count * (width + 2) if is_object else 0)
    found = []
    for i in range(count):
        place = values + i * (width + 1)
        inner = data[place]
        inline = _INLINE.get(inner, 9) <= width
        offset = int.from_bytes(data[place + 1 : place + 1 + width], "little")
        found.append(_parsed(inner, data, place + 1 if inline else at + offset))
    if not is_object:
        return found
    names = []
    for i in range(count):
        place = entry + i * (width + 2)
        begin = at + int.from_bytes(data[place : place + width], "little")
        length = int.from_bytes(data[place + width : place + width + 2], "little")
        names.append(data[begin : begin + length])
    return dict(zip(names, found, strict=True))


def _written(value: Any) -> tuple[int, bytes]:
    """Return (type, bytes) of a value, objects and arrays in their large form."""
    if isinstance(value, tuple):
        return value
    names: list[bytes] = []
    inside = value
    if isinstance(value, dict):
        # As the server sorts them.
        names = sorted(value, key=lambda name: (len(name), name))
        inside = [value[name] for name in names]
    begin = 8 + 6 * len(names) + 5 * len(inside)
    keys = b"".join(names)
    entries, at = b"", begin
    for name in names:
        entries += at.to_bytes(4, "little") + len(name).to_bytes(2, "little")
        at += len(name)
    bodies: list[bytes] = []
    for one in inside:
        kind, body = _written(one)
        if kind in _INLINE:
            entries += bytes([kind]) + body.ljust(4, b"\0")
        else:
            entries += bytes([kind]) + at.to_bytes(4, "little")
            bodies.append(body)
            at += len(body)
    head = len(inside).to_bytes(4, "little") + at.to_bytes(4, "little")
    kind = _OBJECT if isinstance(value, dict) else _ARRAY
    return kind, head + entries + keys + b"".join(bodies)
