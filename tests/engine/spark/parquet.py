"""What a reader of a Parquet stream sink sees: the files of its commit log, and no others."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

_LOG = re.compile(r"(\d+)(\.compact)?")


def batches(output: Path) -> list[int]:
    """Return the numbers of the committed micro-batches."""
    return sorted(number for number, _, _ in _logs(output))


def rows(output: Path) -> list[dict[str, Any]]:
    """Return all rows, in the order they were committed."""
    logs = sorted(_logs(output))
    compacts = [number for number, compact, _ in logs if compact]
    # A compacted log repeats everything before it.
    since = max(compacts, default=-1)
    found: list[dict[str, Any]] = []
    for number, compact, path in logs:
        if number > since or (compact and number == since):
            for line in path.read_text().splitlines()[1:]:
                file = Path(unquote(urlparse(json.loads(line)["path"]).path))
                found += pq.ParquetFile(file).read().to_pylist()
    return found


def _logs(output: Path) -> list[tuple[int, bool, Path]]:
    found = []
    for path in (output / "_spark_metadata").glob("*"):
        match = _LOG.fullmatch(path.name)
        if match:
            found.append((int(match[1]), bool(match[2]), path))
    return found
