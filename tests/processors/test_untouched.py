"""What nobody touches comes out byte by byte, whatever a database holds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.processors.data_contract.settings import DataContract
from airflow_provider_deltaforge.processors.python.processor import Python
from airflow_provider_deltaforge.processors.sql import Sql
from airflow_provider_deltaforge.testing.changes import change, change_rows

_AS_GIVEN = "tests.processors.python_samples:as_given"
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
_IMAGES = st.builds(
    lambda image, indent, ascii_only: json.dumps(
        image, indent=indent, ensure_ascii=ascii_only
    ).encode(),
    st.dictionaries(st.sampled_from(["id", "v", "w", "é"]), _VALUES, max_size=4),
    st.sampled_from([None, 1]),
    st.booleans(),
)
_CHANGES = st.builds(
    lambda images, more: change(before=images[0], after=images[1], key=images[2], **more),
    st.tuples(*[st.none() | _IMAGES] * 3),
    st.fixed_dictionaries(
        {
            "op": st.sampled_from(["c", "u", "d", "r", "t"]),
            "schema": st.none() | _TEXT,
            "table": _TEXT,
            "tags": st.none() | st.lists(_TEXT, max_size=2),
            "routing": st.none()
            | st.fixed_dictionaries(
                {
                    "topic": st.none() | _TEXT,
                    "key": st.none() | _TEXT,
                    "headers": st.none() | st.dictionaries(_TEXT, _TEXT, max_size=2),
                    "raw_payload": st.just(False),
                }
            ),
            "tx_id": st.none() | _TEXT,
            "ddl": st.none() | st.just(b'{"sql":"x"}'),
            "synthetic": st.none() | _TEXT,
        }
    ),
)


@pytest.fixture(scope="module")
def workers():
    rule = {"table": "%", "columns": {"v": {"type": "string", "regex": "x"}}, "schema": {}}
    opened = [
        Sql(query="select * from events").open(),
        Python(function=_AS_GIVEN).open(),
        Python(function=_AS_GIVEN, mode="events").open(),
        Python(function=_AS_GIVEN, mode="rows", columns={"v": "json", "id": "json"}).open(),
        DataContract.model_validate({"tables": [rule], "on_violation": "count"}).open(),
    ]
    yield opened
    for worker in opened:
        worker.close()


@given(st.lists(_CHANGES, min_size=1, max_size=6), st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_what_nobody_touches_keeps_its_bytes(workers, changes, skipped):
    for at, event in enumerate(changes):
        event.update(event_id=bytes([at]) * 16, row=at)
        event["routing"] = event["routing"] and {
            **event["routing"],
            "headers": event["routing"]["headers"] and [*event["routing"]["headers"].items()],
        }
    rows = change_rows(changes).slice(min(skipped, len(changes) - 1))

    for worker in workers:
        done = worker.process(rows)

        assert done.rows.to_pylist() == rows.to_pylist()
        assert len(done.rejections) == 0
        assert done.made is None
