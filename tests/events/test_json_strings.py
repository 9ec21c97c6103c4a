"""Text in columns, quoted as JSON quotes it."""

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.columns.json_strings import quoted

TEXTS = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('"\\\n\x00\x7fa'))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.none() | TEXTS), st.integers(0, 2))
def test_every_text_is_quoted_as_alone(texts, skipped):
    column = pa.array(texts, pa.utf8()).slice(skipped)

    alone = [None if text is None else orjson.dumps(text) for text in texts[skipped:]]
    assert quoted(column).to_pylist() == alone


@pytest.mark.parametrize("texts", [[], [None], [None, '"'], ["plain", None]])
def test_null_stays_null(texts):
    kept = [text is not None for text in texts]
    assert quoted(pa.array(texts, pa.utf8())).is_valid().to_pylist() == kept
