"""Columns of text as JSON strings."""

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = r'["\\\x00-\x1f]'


def quoted(texts: pa.StringArray) -> pa.BinaryArray:
    """Return each text as a JSON string, with its quotes; null stays null."""
    plain = pc.binary_join_element_wise(b'"', texts.cast(pa.binary()), b'"', b"")
    hard = pc.match_substring_regex(texts, _ESCAPED)
    if not pc.any(hard, min_count=0).as_py():
        return plain
    escaped = [orjson.dumps(text) for text in texts.filter(hard).to_pylist()]
    return pc.replace_with_mask(plain, hard, pa.array(escaped, pa.binary()))
