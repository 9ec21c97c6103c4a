"""The ``schema_sensing`` block: learning the shape of JSON columns from what flows."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from airflow_provider_deltaforge.spec.settings import Settings

Share = Annotated[float, Field(ge=0, le=1)]
"""A part of the whole, 0 to 1."""


class SensingNames(Settings):
    """Names taken and left out; leaving out wins."""

    include: tuple[str, ...] = ()
    """Patterns of names taken; empty takes all."""
    exclude: tuple[str, ...] = ()
    """Patterns of names left out."""


class DeepInspect(Settings):
    """Looking into nested JSON."""

    enabled: bool = True
    """Look below the first level."""
    max_depth: NonNegativeInt = 10
    """How deep to look."""
    max_sample_size: NonNegativeInt = 1000
    """A table stops learning after so many events; 0 never stops."""
    columns: SensingNames = SensingNames()
    """Columns looked into."""


class Tracking(Settings):
    """What is kept about each field."""

    field_statistics: bool = False
    """Keep minimum, maximum and length."""
    null_rates: bool = True
    """Keep how often a field is null or absent."""
    enum_detection: bool = True
    """Recognise fields with few distinct values."""
    enum_max_cardinality: PositiveInt = 50
    """More distinct values than this are not an enumeration."""
    detect_drift: bool = True
    """Compare what flows with what was learned."""
    drift_threshold: Share = 0.1
    """Share of events with new fields above which a table has drifted."""
    drift_samples: bool = True
    """Keep up to five values of each column that differs from the catalog."""


class Output(Settings):
    """Where the result is shown."""

    expose_api: bool = True
    """Serve the result over HTTP."""
    emit_events: bool = False
    """Send an event when a shape changes."""
    export_json_schema: bool = True
    """Offer the result as JSON Schema."""
    emit_schemas: bool = False
    """Put the learned schema into the answers of the API."""
    json_schema_format: Literal["draft-07", "2020-12"] = "2020-12"
    """Which JSON Schema is written."""


class Sampling(Settings):
    """How many events are looked at."""

    warmup_events: NonNegativeInt = 1000
    """So many events of a table are all looked at."""
    sample_rate: PositiveInt = 10
    """After that, one event in so many."""
    structure_cache: bool = True
    """Do not look twice at the same structure."""
    structure_cache_size: PositiveInt = 100
    """Structures remembered per table."""


class HighCardinality(Settings):
    """Recognising objects used as maps, whose keys are data."""

    enabled: bool = True
    """Recognise them."""
    min_events: PositiveInt = 100
    """Events needed before deciding."""
    stable_threshold: Share = 0.5
    """A key in at least this share of events is a field."""
    min_dynamic_fields: PositiveInt = 5
    """Rare keys needed to call an object a map."""
    confidence_threshold: Share = 0.7
    """How sure to be."""
    reevaluate_interval: PositiveInt = 10_000
    """Decide again after so many events."""
    hll_precision: int = Field(default=12, ge=4, le=18)
    """Precision of the estimate of distinct keys, as a power of two."""
    heavy_hitter_capacity: PositiveInt = 50
    """Frequent keys remembered."""
    sample_size: PositiveInt = 50
    """Keys kept as examples."""


class SchemaSensing(Settings):
    """Learning the shape of JSON columns."""

    enabled: bool = False
    """Learn."""
    tables: SensingNames = SensingNames()
    """Tables learned from."""
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
