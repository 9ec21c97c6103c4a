"""An event names as unchanged what still is when the processors are done."""

from airflow_provider_deltaforge.engine.render.processor_chain import with_unchanged
from airflow_provider_deltaforge.testing.changes import change, change_rows

MARK = b'{"_unchanged":true}'


def named(*changes):
    return with_unchanged(change_rows(changes))["unchanged"].to_pylist()


def test_what_a_processor_set_or_dropped_is_named_no_more():
    whole = b'{"a":%b,"b":%b,"c":1}' % (MARK, MARK)
    assert named(
        change(after=whole, unchanged=b'["a","b"]'),
        change(after=b'{"a":"set","b":%b}' % MARK, unchanged=b'["a","b"]'),
        change(after=b'{"c":1}', unchanged=b'["a","b"]'),
        change(after=None, unchanged=b'["a"]'),
        change(after=b'{"a":{"_unchanged": true}}', unchanged=b'["a"]'),
        change(after=whole),
    ) == [b'["a","b"]', b'["b"]', None, None, None, None]


def test_rows_without_marks_are_left_alone():
    rows = change_rows([change()])
    assert with_unchanged(rows) is rows
    marked = change_rows([change(after=b'{"a":%b}' % MARK, unchanged=b'["a"]')])
    assert with_unchanged(marked) is marked
