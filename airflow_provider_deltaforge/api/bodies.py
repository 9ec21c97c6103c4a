"""What the bodies of requests share."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

_HALF = re.compile("[\ud800-\udfff]")


class RequestBody(BaseModel):
    """A body that a route takes: no other keys, and no text that cannot be stored."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any) -> Any:
        """Refuse half a character, which JSON can escape and UTF-8 cannot hold."""
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and _HALF.search(text):
                raise ValueError(
                    "half a surrogate pair stands for no character; write both halves, or neither"
                )
        return value
