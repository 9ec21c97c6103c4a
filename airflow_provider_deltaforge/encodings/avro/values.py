"""The values of one field of many JSON texts, in the forms that writers need."""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_fields import Spans
from airflow_provider_deltaforge.columns.marks import UNCHANGED


class Values:
    """One value per text, or none.

    Args:
        texts: JSON texts.
        spans: where the value lies in each.
    """

    def __init__(self, texts: pa.BinaryArray, spans: Spans) -> None:
        self._texts = texts
        self.spans = spans

    def __len__(self) -> int:
        return len(self._texts)

    @cached_property
    def kinds(self) -> Any:
        """What each value is, as ``json_fields`` names it; uint8."""
        return json_fields.kinds(self._texts, self.spans)

    @cached_property
    def there(self) -> Any:
        """Whether each value is there and not null."""
        return self.kinds > json_fields.NULL

    @cached_property
    def json(self) -> pa.BinaryArray:
        """Each value's own JSON text."""
        return json_fields.values(self._texts, self.spans)

    @cached_property
    def text(self) -> pa.StringArray:
        """Each value without quotes and escapes; null becomes null."""
        return json_fields.text_values(self._texts, self.spans)

    @cached_property
    def unchanged(self) -> Any:
        """Whether each stands for a value that the log does not repeat."""
        if not (self.kinds == json_fields.OBJECT).any():
            return np.zeros(len(self), np.bool_)
        texts = pc.fill_null(
            pc.equal(self.json, pa.scalar(UNCHANGED, pa.binary())), fill_value=False
        )
        return texts.to_numpy(zero_copy_only=False)

    def are(self, *kinds: int) -> Any:
        """Return which values are of one of these kinds."""
        wanted = np.zeros(json_fields.ARRAY + 1, np.bool_)
        wanted[list(kinds)] = True
        return wanted[self.kinds]


def flags(column: pa.BooleanArray) -> Any:
    """Return a column of booleans as an array; null counts as false."""
    return pc.fill_null(column, fill_value=False).to_numpy(zero_copy_only=False)
