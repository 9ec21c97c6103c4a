"""``python -m benchmarks.decode``: what decoding costs alone, on log and rows of a real MySQL.

Three shapes of log (64 rows a transaction, one row a transaction, a mix of changes) and the
snapshot's rows, each captured once and then decoded over and over; figures are rows per second of
CPU time, the best of several rounds. ``--keep FILE`` keeps the captured log, and uses it when it
is there, so that two versions of the code can be given the same bytes.
"""

import argparse
import json
import pickle
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.sources.mysql.binlog import decoder
from airflow_provider_deltaforge.sources.mysql.catalog import captured_tables
from airflow_provider_deltaforge.sources.mysql.snapshot import text_rows_kernel
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from benchmarks import workload
from tests.servers import mysql
from tests.servers.process import Server
from tests.servers.sql import connect, execute

_ROUNDS = 7


def main() -> None:
    """Capture if need be, decode, print the figures as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decode", description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if asked.keep and asked.keep.exists():
        captured = pickle.loads(asked.keep.read_bytes())
    else:
        with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
            server = mysql.start_for_load(Path(place) / "mysql")
            try:
                captured = _capture(server, asked.events)
            finally:
                server.stop()
        if asked.keep:
            asked.keep.write_bytes(pickle.dumps(captured))
    schema, packets = captured.pop("snapshot")
    figures = {name: _decode_rate(segments) for name, segments in captured.items()}
    figures["snapshot"] = _render_rate(text_rows_kernel.shape_of(schema), packets)
    print(json.dumps(figures, indent=2))


def _capture(server: Server, events: int) -> dict[str, Any]:
    workload.prepare(server)
    source = MySqlSource(**workload.source_settings(server))
    captured: dict[str, Any] = {}
    for name in ("inserts", "single", "mixed"):
        start = source.head()
        if name == "single":
            _write_singly(server, events // 8)
        else:
            workload.load(server, events, name)
        captured[name] = _read(source, start)
    captured["snapshot"] = _select(server, source)
    return captured


def _write_singly(server: Server, count: int) -> None:
    """Write one row per transaction, on a table whose procedure the server runs by itself."""
    execute(
        server,
        f"""CREATE PROCEDURE single(many INT)
        BEGIN
          DECLARE done INT DEFAULT 0;
          WHILE done < many DO
            INSERT INTO {workload.TABLE} (customer, sku, amount, note, created, quantity)
              SELECT customer, sku, amount, note, NOW(3), quantity FROM seed LIMIT 1;
            COMMIT;
            SET done = done + 1;
          END WHILE;
        END""",
        "SET SESSION sql_log_bin = 1",
        f"CALL single({count})",
        database=workload.DATABASE,
    )


def _read(source: MySqlSource, start: Any) -> list[Any]:
    end = source.head()
    reader = source.open(start)
    segments: list[Any] = []
    try:
        while not segments or source.compare(segments[-1].end, end) < 0:
            segment = reader.read(1.0)
            if segment is not None:
                segments.append(segment)
    finally:
        reader.close()
    return segments


def _select(server: Server, source: MySqlSource) -> tuple[Any, bytes]:
    """Return the table's description and the packets of its rows, as the server sends them."""
    with connect(server, workload.DATABASE) as connection, connection.cursor() as cursor:
        schema = captured_tables(connection, source.matcher)[0]
        shape = text_rows_kernel.shape_of(schema)
        cursor.execute(f"SELECT {shape.select} FROM {workload.TABLE} LIMIT 30000")
        rows = cursor.fetchall()
    return schema, b"".join(_packet(row) for row in rows)


def _packet(row: tuple[Any, ...]) -> bytes:
    """Write one row the way the text protocol has it; all its values are short."""
    parts = [str(value).encode() for value in row]
    body = b"".join(bytes([len(part)]) + part for part in parts)
    return len(body).to_bytes(3, "little") + b"\0" + body


def _decode_rate(segments: list[Any]) -> dict[str, float]:
    key = id_key("bench")
    rows = sum(
        decoder.decode_segment(segment, key, mariadb=False).rows.num_rows for segment in segments
    )
    whole = _best(
        lambda: [decoder.decode_segment(segment, key, mariadb=False) for segment in segments]
    )
    kernel = _best(lambda: [decoder._decode_rows(segment) for segment in segments])  # noqa: SLF001
    size = sum(segment.nbytes for segment in segments)
    return {
        "rows": rows,
        "rows_per_cpu_s": round(rows / whole),
        "kernel_rows_per_cpu_s": round(rows / kernel),
        "log_mb_per_cpu_s": round(size / whole / 1e6),
    }


def _render_rate(shape: Any, packets: bytes) -> dict[str, float]:
    import numpy as np

    data = np.frombuffer(bytearray(packets), np.uint8)
    starts, stops = (np.empty(40_000, np.int64) for _ in range(2))

    def render() -> int:
        n, _, _ = text_rows_kernel.frame_rows(data, 0, len(data), starts, stops, 0)
        room = text_rows_kernel.rows_bound(shape, n, len(data))
        rows, keys = np.empty(room, np.uint8), np.empty(room, np.uint8)
        row_ends, key_ends = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
        text_rows_kernel.render_rows(
            data, starts[:n], stops[:n], shape.kinds, shape.names, shape.name_ends, shape.key,
            rows, row_ends, keys, key_ends,
        )  # fmt: skip
        return n

    n = render()
    return {"rows": n, "rows_per_cpu_s": round(n / _best(render))}


def _best(work: Callable[[], Any]) -> float:
    """Return the CPU seconds of the fastest of several rounds."""
    spent = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


if __name__ == "__main__":
    main()
