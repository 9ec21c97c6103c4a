"""What schema sensing has learned of a table's rows, or of one of its JSON columns.

A driver writes a record some seconds after it changed, under its fence. Killed in between, its
successor goes on with an older state and learns the rest again: people never saw what was lost.
"""

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_serializer, field_validator

from airflow_provider_deltaforge.spec.settings import Settings
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record

JSON_TYPES = ("null", "boolean", "integer", "number", "string", "bytes", "array", "object")
"""What a value may be; ``bytes`` is an object ``{"_base64": …}``. Types stand in this order."""


@dataclass(slots=True)
class SensedValue:
    """What was seen at one place of a JSON structure: a field, an element, or the whole.

    ``late`` is what came when the warm-up was over.
    """

    types: list[str] = field(default_factory=list)
    """See ``JSON_TYPES``."""
    optional: bool = False
    """An object was seen without this field."""
    pending: bool = False
    """Its object may be a map: it becomes a field, or one of the map's keys, when that is decided.
    Until then the fingerprint leaves it out."""
    fields: dict[str, "SensedValue"] = field(default_factory=dict)
    """Of an object, but for the keys of a map."""
    dynamic: "SensedValue | None" = None
    """What the keys of a map hold, whatever they are; None: no map."""
    elements: "SensedValue | None" = None
    """Of an array; None: every array was empty, or none was looked into."""
    seen: int = 0
    """Events in which the place is there. 0 inside arrays and maps, where nobody counts."""
    nulls: int = 0
    """Events in which null stands there."""
    late: bool = False
    late_types: list[str] = field(default_factory=list)
    late_optional: bool = False
    is_cut: bool = False
    """There are more fields here than are kept."""
    minimum: float | int | None = None
    maximum: float | int | None = None
    """Of numbers."""
    shortest: int | None = None
    longest: int | None = None
    """Characters of strings."""
    values: dict[str, int] | None = field(default_factory=dict)
    """How often each string was seen; None: there are too many for an enumeration."""


class SensedMap(Settings):
    """What is known of the keys of the objects at one place."""

    path: list[str]
    """Keys from the whole to the objects; ``[]`` for an element, ``<*>`` for a map's value."""
    objects: int
    """Objects that were looked at."""
    keys: int = 0
    """Their keys, all together."""
    additions: int = 0
    next_decision: int = 0
    decided: Literal["fields", "map"] | None = None
    confidence: float = 0.0
    stable: list[str] = Field(default_factory=list)
    """Keys that are fields, also of a map."""
    unique_keys: int = 0
    """Estimate of how many different keys there were."""
    distinct: bytes = b""
    """Sketch of the distinct keys, as its library writes it."""
    frequent: bytes = b""
    """Sketch of the frequent keys."""
    examples: list[str] = Field(default_factory=list)

    @field_serializer("distinct", "frequent")
    def _as_text(self, sketch: bytes) -> str:
        return base64.b64encode(sketch).decode()

    @field_validator("distinct", "frequent", mode="before")
    @classmethod
    def _as_bytes(cls, text: Any) -> Any:
        return base64.b64decode(text) if isinstance(text, str) else text


class Evolution(Settings):
    """A schema came to be another one."""

    sequence: int
    fingerprint: str
    at_ms: int
    added: list[str] = Field(default_factory=list)
    """Places that were not there before."""
    is_late: bool = False
    """The warm-up was over."""
    changed: list[str] = Field(default_factory=list)
    """Places where something of another type was seen, or nothing."""


class SensedTable(Record):
    """What is known of the events of one table, or of the values of one of its JSON columns."""

    model_config = ConfigDict(frozen=False)

    v: Literal[1] = 1
    tenant: str
    table: str
    """Its full name, ``shop.orders``."""
    column: str | None = None
    """The JSON column; None: the whole row, as sinks receive it in ``after``."""
    fingerprint: str = ""
    """16 hex digits."""
    sequence: int = 0
    event_count: int = 0
    sampled: int = 0
    """Events that were looked at."""
    sampled_late: int = 0
    """Those of them when the warm-up was over."""
    drifted: int = 0
    """Those of the latter that have fields or types which the warm-up did not see."""
    unreadable: int = 0
    """Those that are no JSON, or too long or too deep to be read."""
    passed_over: int = 0
    """Events that were due to be looked at while sensing was over its share of the time."""
    stabilized: bool = False
    first_seen_ms: int
    last_seen_ms: int
    cached_structures: int = 0
    max_cache_size: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    root: SensedValue = Field(default_factory=SensedValue)
    maps: list[SensedMap] = Field(default_factory=list)
    evolutions: list[Evolution] = Field(default_factory=list)
    """The latest; the first of all is how it began."""

    @property
    def name(self) -> str:
        """``shop.orders``, or ``shop.orders:metadata``."""
        return self.table if self.column is None else f"{self.table}:{self.column}"


class SensedTables:
    """The records of one pipeline under one tenant."""

    def __init__(self, store: Store, pipeline: str, tenant: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/{tenant}/"

    def all(self) -> list[SensedTable]:
        """Return every record, in the order of their names."""
        found = self._store.items(names.SENSING, self._prefix)
        return [SensedTable.from_stored(text, f"the sensed schema {key}") for key, text in found]

    def put(self, table: SensedTable) -> Put:
        """Return the write that keeps a record."""
        # What has its default stays out: most of a tree is defaults.
        fields = table.model_dump(mode="json", exclude_defaults=True)
        text = json.dumps({"v": table.v, **fields}, separators=(",", ":"))
        return Put(names.SENSING, f"{self._prefix}{table.name}", text.encode())


class SentSchema(Record):
    """Up to which evolution of a sensed schema sinks were sent an event."""

    v: Literal[1] = 1
    sequence: int


class SentSchemas:
    """Which evolutions of sensed schemas the sinks of one pipeline were sent."""

    def __init__(self, store: Store, pipeline: str, tenant: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}//{tenant}/"

    def all(self) -> dict[str, int]:
        """Return the sequence of the last one that was sent, by the schema's name."""
        found = self._store.items(names.SENSING, self._prefix)
        return {
            key.removeprefix(self._prefix): SentSchema.from_stored(
                text, f"what was sent of {key}"
            ).sequence
            for key, text in found
        }

    def put(self, name: str, sequence: int) -> Put:
        """Return the write that keeps the sequence of a schema."""
        sent = SentSchema(sequence=sequence)
        return Put(names.SENSING, f"{self._prefix}{name}", sent.model_dump_json().encode())
