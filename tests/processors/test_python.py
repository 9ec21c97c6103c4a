"""Functions of users: found, called with what they ask for, and held to what they return."""

import json

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.errors import EventError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.processors.python.processor import Python
from airflow_provider_deltaforge.processors.python.rows import as_json, typed
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.processors import python_samples
from tests.processors.rows import rows_of

SAMPLES = "tests.processors.python_samples"


def opened(function, mode="arrow", **settings):
    return Python(function=f"{SAMPLES}:{function}", mode=mode, **settings).open()


def images(rows):
    return [None if text is None else json.loads(text) for text in rows["after"].to_pylist()]


class TestFinding:
    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            ("nowhere_to_be_found.clean:run", "PYTHONPATH"),
            (f"{SAMPLES}:nothing", "has no 'nothing'"),
            (f"{SAMPLES}:NUMBER", "neither a function nor a class"),
            (f"{SAMPLES}:no_argument", "cannot be called with one argument"),
            (f"{SAMPLES}:WithoutProcess", "without a method 'process'"),
            (f"{SAMPLES}:Broken", "making tests.processors.python_samples:Broken failed: ValueErr"),
        ],
    )
    def test_what_cannot_be_called_is_refused_at_start(self, function, reason):
        with pytest.raises(SpecError) as caught:
            Python(function=function).open()
        assert reason in str(caught.value)
        assert "hunter2" not in str(caught.value)

    def test_a_module_that_fails_to_import_is_refused_with_its_place(self, tmp_path, monkeypatch):
        (tmp_path / "broken_by_its_author.py").write_text("import json\n1 / 0\n")
        (tmp_path / "lacking_something.py").write_text("import not_there_at_all\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(SpecError, match=r"ZeroDivisionError.*\(broken_by_its_author.py:2\)"):
            Python(function="broken_by_its_author:run").open()
        with pytest.raises(SpecError, match=r"'not_there_at_all'.*lacking_something imports it"):
            Python(function="lacking_something:run").open()

    def test_params_that_do_not_fit_are_refused_at_start(self):
        with pytest.raises(SpecError, match="'wrong'"):
            opened("only_paid", params={"wrong": 1})

    @pytest.mark.parametrize(
        "settings",
        [
            {"function": "module"},
            {"function": "a:b", "mode": "rows"},
            {"function": "a:b", "columns": {"id": "int64"}},
            {"function": "a:b", "mode": "rows", "columns": {"id": "integer"}},
            {"function": "a:b", "mode": "rows", "columns": {"id": "decimal128(99, 2)"}},
            {"function": "a:b", "tables": ["shop."]},
        ],
    )
    def test_settings_that_cannot_work_are_refused_in_the_document(self, settings):
        with pytest.raises(ValueError, match=r"function|columns|tables|type"):
            Python(**settings)


class TestArrow:
    def test_what_is_not_returned_is_dropped(self):
        rows = rows_of({"status": "paid"}, {"status": "new"}, None, {"status": "paid"})

        done = opened("only_paid").process(rows)

        assert done.rows.equals(rows.take(pa.array([0, 3])))
        assert (done.origins.to_pylist(), done.made) == ([0, 3], None)
        assert done.counts == {"dropped": 2}
        assert opened("only_paid", params={"status": "x"}).process(rows).rows.num_rows == 0

    def test_a_batch_returned_as_it_is_stays_as_it_is(self):
        rows = rows_of({"a": 1}, {"a": 2}).slice(1)
        done = opened("as_given").process(rows)
        assert done.rows.equals(rows)
        assert done.rows.schema == CHANGE_SCHEMA

    def test_an_id_that_comes_again_is_a_new_event(self):
        done = opened("twice").process(rows_of({"a": 1}, {"a": 2}))
        assert done.origins.to_pylist() == [0, 0, 1, 1]
        assert done.made.to_pylist() == [False, True, False, True]

    def test_plain_types_are_cast_and_what_is_the_sources_stays(self):
        rows = rows_of({"a": 1}, {"a": 2})

        done = opened("plain_types").process(rows)

        assert done.rows.take(pa.array([0, 2])).to_pylist() == rows.to_pylist()
        assert done.origins.to_pylist() == [0, 0, 1]
        assert done.made.to_pylist() == [False, True, False]
        assert done.rows["after"][1].as_py() == b'{"new":true}'
        assert done.rows["tx"].to_pylist() == [0, 0, 0]

    def test_types_of_other_libraries_are_cast(self):
        routing = {"topic": "t", "key": None, "headers": [("a", "b"), ("c", "d")]}
        rows = change_rows(
            [
                change(),
                change(tags=["x"], event_id=bytes(16), routing=routing),
                change(event_id=bytes([1]) * 16, routing={"key": "k", "headers": []}),
                change(event_id=bytes([2]) * 16, routing={"key": "k"}, before=b"{}"),
            ]
        )
        for part in (rows, rows.slice(1, 2)):
            done = opened("as_polars_returns_it").process(part)
            assert done.rows.to_pylist() == part.to_pylist()
            assert done.rows.schema == CHANGE_SCHEMA

    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            ("without_op", "must return one column 'op'"),
            ("one_more_column", "'total'"),
            ("numbers_for_ops", "returned 'op' as list"),
        ],
    )
    def test_other_columns_stop_the_pipeline_with_the_function_and_the_field(
        self, function, reason
    ):
        with pytest.raises(FatalError, match=f"python_samples:{function} .*{reason}"):
            opened(function).process(rows_of({}))

    def test_something_else_than_a_batch_stops_the_pipeline(self):
        with pytest.raises(FatalError, match=r"returned NoneType.*RecordBatch"):
            opened("returning", params={"value": None}).process(rows_of({}))

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("op", "x", "an op that is none of"),
            ("after", "{", "'after' that is not JSON"),
            ("table", None, "null for table"),
        ],
    )
    def test_values_no_sink_can_write_are_rejected(self, name, value, reason):
        worker = opened("set_column", params={"name": name, "value": value})
        [rejection] = worker.process(rows_of({})).rejections
        assert reason in rejection.reason

    def test_the_bad_rows_of_a_failing_batch_are_found_and_their_values_not_shown(self):
        rows = rows_of({"n": "1"}, {"n": "Top Secret"}, {"n": "3"}, {})

        done = opened("strict").process(rows)

        assert done.rows.equals(rows.take(pa.array([0, 2])))
        assert done.origins.to_pylist() == [0, 2]
        assert [one.event_row for one in done.rejections] == [1, 3]
        first, second = (one.reason for one in done.rejections)
        assert first.startswith("ValueError: invalid literal for int() with base ***: '***' (")
        assert "python_samples.py:" in first
        assert second.startswith("KeyError: 'n'")

    def test_parts_with_other_dictionaries_are_put_together(self):
        rows = rows_of({"n": 1}, {"n": "x"}, {"n": 2}, {"n": 1})
        done = opened("strict_and_named").process(rows)
        assert done.rows["op"].to_pylist() == ["u", "d", "u"]
        assert done.origins.to_pylist() == [0, 2, 3]

    def test_a_function_that_fails_for_most_rows_stops_the_batch(self):
        with pytest.raises(EventError, match="more than 20 of 30 events"):
            opened("strict").process(rows_of(*[{}] * 30))

    def test_leaving_is_an_error_like_any_other(self):
        [rejection] = opened("leaves").process(rows_of({})).rejections
        assert rejection.reason.startswith("SystemExit")

    def test_an_error_of_ours_says_what_to_do(self):
        with pytest.raises(RetryableError, match="away"):
            opened("away").process(rows_of({}))


class TestEvents:
    def test_each_event_goes_its_own_way(self):
        statuses = ["keep", "drop", "change", "split", "raise", "generate", "replace"]
        rows = rows_of(*({"status": status, "secret": "Hush 42"} for status in statuses))

        done = opened("by_status", "events").process(rows)

        assert done.origins.to_pylist() == [0, 2, 3, 3, 5, 5, 6]
        assert done.made.to_pylist() == [False, False, False, True, False, True, True]
        assert images(done.rows) == [
            {"status": "keep", "secret": "Hush 42"},
            {"status": "change", "secret": "Hush 42", "seen": ["c", "shop.orders"]},
            {"part": 1},
            {"part": 2},
            {"status": "generate", "secret": "Hush 42"},
            None,
            {"new": 1},
        ]
        assert done.rows["op"].to_pylist() == ["c", "c", "c", "c", "c", "d", "u"]
        assert done.rows["routing"][1].as_py() == {
            "topic": "t",
            "key": None,
            "headers": [("a", "b")],
            "raw_payload": None,
        }
        [rejection] = done.rejections
        assert (rejection.event_row, rejection.kind) == (4, "processor")
        assert rejection.reason.startswith("ValueError: cannot do *** *** (python_samples.py:")
        assert done.counts == {"dropped": 1}
        assert done.rows.schema == CHANGE_SCHEMA

    @pytest.mark.parametrize(
        "image",
        [
            b'{"n": 1.0, "big": 123456789012345678901234567890, "t": "\\u00e9" }',
            b'{"n":9007199254740993,"d":"12.50"}',
        ],
    )
    def test_an_event_returned_as_it_is_keeps_its_bytes(self, image):
        rows = change_rows([change(after=image, before=image, tags=["x"], ddl=b"{}")])
        assert opened("as_given", "events").process(rows).rows.equals(rows)

    def test_integers_beyond_64_bits_survive_a_change_beside_them(self):
        rows = change_rows(
            [change(after=b'{"status":"change","n":123456789012345678901234567890}')]
        )
        [text] = opened("by_status", "events").process(rows).rows["after"].to_pylist()
        assert b'"n":123456789012345678901234567890,' in text

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (5, "returned a int"),
            ({"afer": {}}, "the key 'afer'"),
            ({"op": "x"}, "op that is not one of"),
            ({"ts_ms": 1.5}, "ts_ms that is not an integer"),
            ({"after": {"a": object()}}, "after that is not JSON"),
            ({"tags": "a"}, "tags that is not a list"),
            ({"table": "shop.others"}, "cannot be changed; change source"),
            ({"transaction": {"id": "x"}}, "changed 'transaction'"),
            ({"source": {"db": None}}, "db that is not text"),
            ({"source": {"file": "x"}}, "source that is not"),
            ({"routing": {"topic": 1}}, "routing.topic that is not text"),
            ({"routing": {"headers": {"a": 1}}}, "routing.headers that is not"),
            ({"routing": {"raw": True}}, "routing that is not"),
        ],
    )
    def test_what_is_no_event_is_rejected_with_its_field(self, value, reason):
        [rejection] = (
            opened("returning", "events", params={"value": value}).process(rows_of({})).rejections
        )
        assert reason in rejection.reason

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("many", "nested too deep"),
            ("lots", "nested too deep"),
            ("x_itself", "nested too deep"),
            ("surrogate", "not JSON"),
            ("x_key", "not JSON"),
            ("x_op", "op that is not one of"),
            ("x_topic", "routing.topic that is not text"),
            ("x_header", "routing.headers that is not"),
            ("x_tags", "tags that is not"),
            ("x_db", "db that is not text"),
            ("x_ddl", "which cannot be changed"),
            ("x_routing", "routing that is not"),
        ],
    )
    def test_what_cannot_be_written_is_rejected_alone(self, kind, reason):
        batch = rows_of({"kind": "before"}, {"kind": kind}, {"kind": "behind"})
        done = opened("odd", "events").process(batch)
        assert [one["kind"] for one in images(done.rows)] == ["before", "behind"]
        [rejection] = done.rejections
        assert rejection.event_row == 1
        assert reason in rejection.reason

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("nan", b'["NaN","Infinity","-Infinity",null,{"a":["NaN"]}]'),
            ("nan and wide", b'["NaN",1180591620717411303424]'),
            ("300 deep", b"[" * 300 + b'"NaN"' + b"]" * 300),
            ("wide", b"1180591620717411303424"),
            ("small", b'["0.0000000100",null]'),
        ],
    )
    def test_numbers_without_a_form_in_json_are_strings_as_in_row_images(self, kind, text):
        done = opened("odd", "events").process(rows_of({"kind": kind}))
        wanted = b'{"kind":"%b","v":%b}' % (kind.encode(), text)
        assert done.rows["after"].to_pylist() == [wanted]

    def test_an_image_nested_too_deep_for_python_is_rejected_alone(self):
        deep = b'{"v":' + b"[" * 3000 + b"]" * 3000 + b"}"
        rows = change_rows([change(after=deep), change(event_id=bytes(16))])
        done = opened("as_given", "events").process(rows)
        assert done.rows.equals(rows.slice(1))
        assert "nested too deep" in done.rejections[0].reason

    def test_an_image_that_is_no_json_is_rejected(self):
        rows = change_rows([change(after=b"secret"), change(event_id=bytes(16))])
        done = opened("as_given", "events").process(rows)
        assert done.rows.equals(rows.slice(1))
        assert [one.reason for one in done.rejections] == ["after is no JSON"]

    def test_place_tags_and_key_can_be_set(self):
        changes = {
            "source": {"db": "other", "schema": "s", "table": "t"},
            "tags": ["a"],
            "key": {"id": 5},
            "ts_ms": 5,
            "before": {"x": None},
            "routing": None,
        }
        worker = opened("merged", "events", params={"changes": changes})
        [row] = worker.process(rows_of({}, routing={"topic": "t"})).rows.to_pylist()
        assert (row["db"], row["schema"], row["table"], row["ts_ms"]) == ("other", "s", "t", 5)
        assert (row["tags"], row["key"], row["before"]) == (["a"], b'{"id":5}', b'{"x":null}')
        assert row["routing"] is None

    def test_a_class_keeps_its_state_and_is_closed_once(self):
        worker = opened("Counting", "events", params={"start": 10})
        closed = python_samples.Counting.closed

        tags = [worker.process(rows_of({}, {})).rows["tags"].to_pylist() for _ in range(2)]
        worker.close()
        worker.close()

        assert tags == [[["number-11"], ["number-12"]], [["number-13"], ["number-14"]]]
        assert python_samples.Counting.closed == closed + 1


class TestTables:
    def test_events_of_other_tables_pass_and_keep_their_places(self):
        names = ["a", "b", "a", "b", "c"]
        rows = change_rows(
            [
                change(table=name, event_id=bytes([at]) * 16, after=b'{"n":"x"}', row=at)
                for at, name in enumerate(names)
            ]
        )

        done = opened("twice", tables=["shop.b"]).process(rows)
        failed = opened("strict", tables=["b", "nothing"]).process(rows)
        none = opened("strict", tables=["nothing"]).process(rows)

        assert done.origins.to_pylist() == [0, 1, 1, 2, 3, 3, 4]
        assert done.made.to_pylist() == [False, False, True, False, False, True, False]
        assert done.rows["table"].to_pylist() == ["a", "b", "b", "a", "b", "b", "c"]
        assert failed.origins.to_pylist() == [0, 2, 4]
        assert [one.event_row for one in failed.rejections] == [1, 3]
        assert none.rows is rows

    def test_an_outbox_row_is_matched_by_its_database_too(self):
        rows = change_rows([change(schema="__outbox", table="b", after=b'{"n":"x"}')])

        assert opened("twice", tables=["shop.b"]).process(rows).rows.num_rows == 2


class TestRows:
    def test_typed_columns_go_out_and_what_changed_comes_back(self):
        rows = change_rows(
            [
                change(after=b'{"id": 1, "total": "10.00", "big": 123456789012345678901234567890}'),
                change(after=None, op="d", event_id=bytes(16)),
                change(after=b'{"id":2,"total":null}', event_id=bytes([1]) * 16),
                change(after=b"{}", event_id=bytes([2]) * 16),
            ]
        )

        done = opened(
            "discounted",
            "rows",
            columns={"id": "int64", "total": "decimal128(12, 2)"},
            params={"percent": 25},
        ).process(rows)

        assert done.rows["after"].to_pylist() == [
            b'{"id": 1, "total": "7.50", "big": 123456789012345678901234567890'
            b',"discount":"25 \\"%\\""}',
            None,
            b'{"id":2,"total":null,"discount":"25 \\"%\\""}',
            b'{"discount":"25 \\"%\\""}',
        ]
        others = [name for name in rows.schema.names if name != "after"]
        assert done.rows.select(others).equals(rows.select(others))

    @pytest.mark.parametrize("payload", [b"[1]", b'"text"', b" 7", b"null", b"no JSON"])
    def test_what_is_no_object_has_no_columns_and_passes(self, payload):
        rows = change_rows([change(after=payload), change(after=b"{}", event_id=bytes(16))])
        columns = {"total": "decimal128(12, 2)"}
        worker = opened("discounted", "rows", columns=columns, params={"percent": 0})
        assert worker.process(rows).rows["after"].to_pylist() == [
            payload,
            b'{"discount":"0 \\"%\\""}',
        ]

    def test_a_batch_may_come_back_as_well(self):
        rows = rows_of({"v": 1})
        done = opened("as_batch", "rows", columns={"v": "int64"}).process(rows)
        assert done.rows.equals(rows)

    def test_rows_that_are_not_returned_are_dropped(self):
        rows = rows_of({"total": "10.00"}, {"total": "70.00"}, None, {"total": "50.01"})
        done = opened("dear_ones", "rows", columns={"total": "decimal128(12, 2)"}).process(rows)
        assert done.rows.equals(rows.take(pa.array([1, 2, 3])))
        assert done.counts == {"dropped": 1}

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("int64", -5),
            ("uint64", 18446744073709551615),
            ("float64", 1.5),
            ("bool", True),
            ("string", 'é"\n'),
            ("decimal128(20, 3)", "12345678901234567.125"),
            ("date", "2024-02-29"),
            ("timestamp", "2024-02-29T01:02:03.123456"),
            ("timestamp_utc", "2024-02-29T01:02:03Z"),
            ("json", {"a": [1.0, None]}),
            ("int64", {"_unchanged": True}),
        ],
    )
    def test_values_of_every_type_that_are_not_touched_keep_their_bytes(self, kind, value):
        rows = rows_of({"v": value}, {"v": None}, {})
        done = opened("as_given", "rows", columns={"v": kind}).process(rows)
        assert done.rows.equals(rows)

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("int32", "-5"),
            ("uint64", "18446744073709551615"),
            ("float64", "1.5"),
            ("float64", '"NaN"'),
            ("float64", '"-Infinity"'),
            ("bool", "true"),
            ("string", '"\u00e9 \\"\\n \\\\"'),
            ("string", '"plain"'),
            ("decimal128(20, 3)", '"12345678901234567.120"'),
            ("decimal128(20, 10)", '"-0.0000000100"'),
            ("date", '"2024-02-29"'),
            ("timestamp", '"2024-02-29T01:02:03.123456"'),
            ("timestamp_utc", '"2024-02-29T01:02:03.123456Z"'),
            ("json", '{"a":[1.0,null]}'),
        ],
    )
    def test_values_are_written_as_sources_write_them(self, kind, text):
        raw = pa.array([text.encode(), None], pa.binary())
        assert as_json("v", typed("v", raw, kind), kind).equals(raw)

    @pytest.mark.parametrize("text", ["", " ", "{"])
    def test_text_that_is_no_json_is_never_written_as_such(self, text):
        with pytest.raises(RowsError, match="not JSON"):
            as_json("v", pa.array(["1", None, text]), "json")

    def test_a_value_can_become_null(self):
        worker = opened("nulled", "rows", columns={"v": "int64"}, params={"column": "v"})
        rows = rows_of({"v": 1, "w": 2}, {"w": 3}, {"v": {"_unchanged": True}})
        assert images(worker.process(rows).rows) == [
            {"v": None, "w": 2},
            {"w": 3},
            {"v": {"_unchanged": True}},
        ]

    def test_a_row_that_does_not_fit_its_type_is_rejected_alone(self):
        rows = rows_of({"v": 1}, {"v": "ten"}, {"v": 3})
        done = opened("as_given", "rows", columns={"v": "int64"}).process(rows)
        assert done.origins.to_pylist() == [0, 2]
        assert done.rejections[0].reason == "column 'v' holds a value that is no int64"

    @pytest.mark.parametrize(
        ("function", "reason"),
        [("fewer", "return the column '_row'"), ("parts", "returned 'parts' as list")],
    )
    def test_a_table_that_cannot_be_matched_stops_the_pipeline(self, function, reason):
        with pytest.raises(FatalError, match=reason):
            opened(function, "rows", columns={"v": "int64"}).process(rows_of({}, {}))
