"""Whatever a document holds, the answer is a pipeline or a list of problems."""

import copy

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.spec.load import check, load
from tests.spec.documents import document

BASE = yaml.safe_load(
    document(
        source="rows: 3",
        sink="envelope: {type: cloudevents, type_prefix: a}\nencoding: json\nkey: '${after.id}'\n"
        "filter: {producers: [f]}",
        spec="processors:\n- {type: filter, id: f, fields: [{path: a, op: eq, value: 1}]}\n"
        "- {type: outbox, columns: {payload: p}}\nbatch: {max_ms: 4}\n"
        "commit_policy: {mode: all}\nstorage: {backend: sqlite}",
        metadata="labels: {a: b}",
    )
)

WORDS = st.sampled_from(
    [
        "type",
        "config",
        "id",
        "http",
        "kafka",
        "nats",
        "redis",
        "envelope",
        "spec",
        "${X}",
        "${op}",
        "${",
        "",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def places(value, key=()):
    """Yield the key of every value below the top."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for part, item in items:
        yield (*key, part)
        yield from places(item, (*key, part))


PLACES = sorted(places(BASE), key=str)


@settings(max_examples=120, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3),
    rename=st.booleans(),
    expand=st.booleans(),
)
def test_a_damaged_document_gives_problems_and_never_another_error(changes, rename, expand):
    data = copy.deepcopy(BASE)
    for key, value in changes:
        around = data
        for part in key[:-1]:
            around = around[part] if _has(around, part) else {}
        if _has(around, key[-1]):
            around[key[-1]] = value
            if rename and isinstance(around, dict):
                around[f"{key[-1]}x"] = around.pop(key[-1])
    text = yaml.safe_dump(data, allow_unicode=True)

    problems = check(text, {"X": "planted-secret"}, expand=expand)

    assert "planted" not in "\n".join(map(str, problems))
    assert all(problem.message for problem in problems)
    if not problems:
        assert load(text, {"X": "planted-secret"}, expand=expand).name


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=60))
def test_any_text_gives_problems_and_never_another_error(text):
    assert isinstance(check(text, {}), list)


def _has(value, part):
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict) and part in value
