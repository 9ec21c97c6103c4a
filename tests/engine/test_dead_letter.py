"""Dead letters, whatever is in the event: what is stored can be read."""

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.dead_letters.dead_letter import DeadLetterWriter
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessedBatch
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter
from tests.engine.in_process import InProcess

IMAGES = [
    b'{"id":1}',
    b'{"text":"\\ud800"}',
    b'{"json":' + b"[" * 300 + b"]" * 300 + b"}",
    b'{"numeric":' + b"9" * 5000 + b"}",
    b'{"text":"\xff"}',
    b'{"cut":',
]


def letters(images, max_event_bytes=1 << 20, why="why"):
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "op": "c",
                "db": "shop",
                "table": "orders",
                "after": image,
                "ts_ms": 1,
                "tx": 0,
                "row": row,
                "tx_end": True,
                "event_id": b"%016d" % row,
            }
            for row, image in enumerate(images)
        ],
        schema=CHANGE_SCHEMA,
    )
    writer = DeadLetterWriter(InProcess().context().origin, max_event_bytes)
    refused = [Rejection(row, "refused", why) for row in range(len(images))]
    told = writer.of_sink("out", refused, ProcessedBatch(rows))
    return [DeadLetter.from_stored(one.text, "letter") for one in told]


def test_an_event_that_nobody_could_read_again_is_kept_without_its_images():
    told = letters(IMAGES)
    assert [one.payload_truncated for one in told] == [False, *[True] * 5]
    assert told[0].event["after"] == {"id": 1}
    assert {one.event["after"] for one in told[1:]} == {"<left out: it cannot be read as JSON>"}
    assert {one.event["source"]["table"] for one in told} == {"orders"}


@pytest.mark.parametrize("depth", [190, 195, 196, 197, 198, 199, 200, 201])
def test_what_is_kept_whole_can_be_read_at_any_depth(depth):
    (told,) = letters([b'{"json":' + b"[" * depth + b"]" * depth + b"}"])
    assert told.payload_truncated == isinstance(told.event["after"], str)


def test_a_long_reason_is_kept_by_its_ends_and_a_secret_in_its_middle_is_not():
    secret = "mysql://u:" + "planted" * 1000 + "@h/d"
    (told,) = letters([b"{}"], why=f"the subject {'x' * 900} of {secret} {'x' * 5000} is too long")
    reason = told.meta.error_message
    assert len(reason) < 2100
    assert reason.startswith("the subject xxx")
    assert reason.endswith("xxx is too long")
    assert "planted" not in reason
