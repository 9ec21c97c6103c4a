"""A log whose server crashed inside a transaction goes on in its next file."""

import struct

import numpy as np

from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.segmenter import BinlogSegmenter
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import Recorder
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition

BEGIN = struct.pack("<IIBHH", 0, 0, 0, 0, 0) + b"\0BEGIN"
FORMAT = bytes(100)


def _packet(kind, body, end):
    event = struct.pack("<IBIIIH", 1000, kind, 1, 19 + len(body), end, 0) + body
    return (len(event) + 1).to_bytes(3, "little") + b"\1\0" + event


def _rotate(file):
    return _packet(f.ROTATE, struct.pack("<Q", 4) + file, 0)


def test_the_transaction_after_the_crash_arrives_with_a_position_in_its_own_file():
    received = b"".join(
        [
            _rotate(b"binlog.000001"),
            _packet(f.QUERY, BEGIN, 200),
            _rotate(b"binlog.000002"),
            _packet(f.FORMAT, FORMAT, 123),
            _packet(f.QUERY, BEGIN, 223),
            _packet(f.XID, bytes(8), 300),
        ]
    )
    info = MySqlServer(False, "uuid", gtids=False, checksum=False)
    segmenter = BinlogSegmenter(info, LogPosition("binlog.000001", 4, None, "uuid"), Recorder())
    raw = np.frombuffer(received, np.uint8).copy()
    segmenter.feed(raw, 0, len(raw))
    segmenter.cut()
    assert [len(segment.positions.transactions) for segment in segmenter.ready] == [1]
    end = segmenter.ready[0].end
    assert (end["file"], end["pos"]) == ("binlog.000002", 300)
    assert segmenter.position.file == "binlog.000002"
