"""What is compiled ahead is all that processors need."""

from tests.compiling import compiled_late

PROGRAM = """
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.processors.precompile import precompile
from tests.processors.rows import rows

precompile()
precompiled()
batch = rows(
    {"op": "u", "before": b'{"a":0,"tags":["x"]}', "after": b'{"a":"b","tags":["y"],"o":{"p":1}}'},
    {"op": "d", "before": b'{"a":1}', "key": b'{"a":1}'},
    {"after": b"{}", "db": "other"},
    {"schema": "__outbox", "table": "outbox", "after": b'{"id":1,"payload":{"o":{"p":[1]}}}'},
)
fields = [("changed", None), ("eq", {"p": 1}), ("contains", "x"), ("in", ["a", "b"]), ("gt", 1)]
conditions = [
    {"path": path, "op": op, **({} if value is None else {"value": value})}
    for op, value in fields
    for path in ("a", "tags", "o", "o.p")
]
for name, settings in {
    "filter": {"fields": conditions, "match": "any", "tables": {"include": ["shop.*"]}},
    "flatten": {"lists": "index", "on_collision": "error", "max_depth": 2},
    "mask": {
        "rules": [{"columns": ["*.*.a", "*.*.o.p"], "action": "tokenise"}],
        "secret": "s" * 32,
    },
    "outbox": {"topic": "${id}", "additional_headers": {"x": "id"}},
    "contract": {"tables": [{"table": "orders", "columns": {"a": {"type": "string"}}}]},
}.items():
    worker = PROCESSORS.load(name)(**settings).open()
    for rows_given in (batch, batch.slice(1, 2)):
        worker.process(rows_given)
"""


def test_no_kernel_is_compiled_while_rows_wait():
    assert compiled_late(PROGRAM) == []
