"""What all stored records share: a format version, and how one that cannot be read is refused."""

import json
import time
from typing import TypeVar

from pydantic import ValidationError

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.spec.settings import Settings

R = TypeVar("R", bound="Record")

FORMAT = 1
"""The record format this release writes, and the latest it reads."""


class Record(Settings):
    """A record of the state store; each kind declares ``v: Literal[1] = 1``."""

    @classmethod
    def from_stored(cls: type[R], text: bytes, name: str) -> R:
        """Read a record.

        Args:
            text: JSON, as it was stored.
            name: names the record in an error.

        Raises:
            FatalError: a later release wrote it, or it is damaged. It was not changed.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            found = _format_of(text)
            if found is not None and found > FORMAT:
                raise FatalError(
                    f"{name} in the state store has format {found}, this release knows formats up "
                    f"to {FORMAT}: upgrade airflow-provider-deltaforge here"
                ) from None
            fields = sorted(
                {".".join(map(str, fault["loc"])) or "JSON" for fault in error.errors()}
            )
            raise FatalError(
                f"{name} in the state store cannot be read (wrong: {', '.join(fields)}): it was "
                "damaged or written by another release; restore it from a backup"
            ) from None


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return int(time.time() * 1000)


def _format_of(text: bytes) -> int | None:
    try:
        found = json.loads(text)["v"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, int) else None
