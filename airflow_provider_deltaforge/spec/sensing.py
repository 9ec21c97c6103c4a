"""The ``schema_sensing`` block: learning what rows and JSON columns hold from what flows."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator

from airflow_provider_deltaforge.spec.patterns import check_patterns
from airflow_provider_deltaforge.spec.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]
"""A part of the whole, 0 to 1."""

PRODUCER = "schema_sensing"
"""What events of sensed schemas name as their producer (``synthetic``)."""


class SensingNames(Settings):
    """Names taken and left out; leaving out wins. ``*`` and ``%`` stand for any text."""

    include: tuple[str, ...] = ()
    """Patterns of names taken; empty takes all."""
    exclude: tuple[str, ...] = ()
    """Patterns of names left out."""

    @field_validator("include", "exclude")
    @classmethod
    def _check_patterns(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        check_patterns(value, str(info.field_name))
        return value


class DeepInspect(Settings):
    """Looking into nested JSON."""

    enabled: bool = True
    """Look below the first level."""
    max_depth: int = Field(default=10, ge=0, le=64)
    """Levels below the first that are looked into: of a row, its columns are the first."""
    max_sample_size: NonNegativeInt = 1000
    """A table, and each of its JSON columns, stops learning when so many of its events were
    looked at; 0 never stops."""
    columns: SensingNames = SensingNames()
    """Columns looked into, as ``column``, ``table.column`` or ``db.table.column``."""


class Tracking(Settings):
    """What is kept about each field."""

    field_statistics: bool = False
    """Keep minimum and maximum of numbers, and the lengths of strings."""
    null_rates: bool = True
    """Keep how often a field is null."""
    enum_detection: bool = True
    """Recognise strings with few distinct values, and keep those."""
    enum_max_cardinality: PositiveInt = 50
    """More distinct values than this are not an enumeration."""
    detect_drift: bool = True
    """Hold events to what the catalog says, and to what the warm-up saw of JSON columns."""
    drift_threshold: Share = 0.1
    """Share of events with new fields or types above which a table has drifted."""
    drift_samples: bool = True
    """Keep up to five values of each column that differs from the catalog."""


class Output(Settings):
    """Where the result is shown."""

    expose_api: bool = True
    """Show what was learned: over REST, and to commands and hooks."""
    emit_events: bool = False
    """Send every sink an event of op ``ddl`` when a sensed schema is new or changes."""
    export_json_schema: bool = True
    """Offer what was learned as JSON Schema."""
    emit_schemas: bool = False
    """Put the JSON Schema into the list of sensed schemas, too."""
    json_schema_format: Literal["draft-07", "2020-12"] = "draft-07"
    """Which JSON Schema is written when none is asked for."""


class Sampling(Settings):
    """How many events are looked at."""

    warmup_events: NonNegativeInt = 1000
    """The first events of a table are all looked at, until there were so many."""
    sample_rate: PositiveInt = 10
    """After that, one event in so many."""
    structure_cache: bool = True
    """Parse no event of a structure that was parsed; off, every event looked at is parsed."""
    structure_cache_size: int = Field(default=100, ge=1, le=100_000)
    """Structures remembered of a table, and of each JSON column."""


class HighCardinality(Settings):
    """Recognising objects used as maps, whose keys are data."""

    enabled: bool = True
    """Recognise them."""
    min_events: PositiveInt = 100
    """Objects needed before deciding."""
    stable_threshold: Share = 0.5
    """A key in at least this share of the objects is a field."""
    min_dynamic_fields: PositiveInt = 5
    """Rare keys needed to call an object a map."""
    confidence_threshold: Share = 0.7
    """How sure to be, 0 to 1."""
    reevaluate_interval: PositiveInt = 10_000
    """Decide again after so many objects."""
    hll_precision: int = Field(default=12, ge=4, le=18)
    """Precision of the estimate of distinct keys, as a power of two: 12 errs by 2 %."""
    heavy_hitter_capacity: int = Field(default=50, ge=1, le=10_000)
    """Frequent keys remembered."""
    sample_size: int = Field(default=50, ge=1, le=1000)
    """Keys kept as examples."""


class SchemaSensing(Settings):
    """Learning what rows and JSON columns hold."""

    enabled: bool = False
    """Learn."""
    tables: SensingNames = SensingNames()
    """Tables learned from, as ``table`` or ``db.table``."""
    deep_inspect: DeepInspect = DeepInspect()
    """Looking into nested JSON."""
    tracking: Tracking = Tracking()
    """What is kept about each field."""
    output: Output = Output()
    """Where the result is shown."""
    sampling: Sampling = Sampling()
    """How many events are looked at."""
    high_cardinality: HighCardinality = HighCardinality()
    """Recognising objects used as maps."""
