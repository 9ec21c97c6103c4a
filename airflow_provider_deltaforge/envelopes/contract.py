"""What every envelope promises."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.events.schema import TypeSystem
from airflow_provider_deltaforge.events.shapes import Shape
from airflow_provider_deltaforge.spec.settings import PluginSettings


@dataclass(frozen=True, slots=True)
class Origin:
    """What the events of one pipeline share.

    Attributes:
        pipeline: The pipeline's name, shown as ``source.name``.
        tenant: Shown as ``tenant_id``.
        connector: ``mysql``, ``postgresql`` or ``turso``.
        type_system: Of the columns' types, for encodings with typed records.
        version: Of this package; ``source.version`` shows it as ``deltaforge-0.1.0``.
    """

    pipeline: str
    tenant: str
    connector: str
    version: str = __version__
    type_system: TypeSystem = "mysql"

    @property
    def source_version(self) -> str:
        """What ``source.version`` shows."""
        return f"deltaforge-{self.version}"


@dataclass(frozen=True, slots=True)
class EventPaths:
    """Where messages hold the parts of an event, for those who read them back.

    Each is a path of member names, from the message's object inward.

    Attributes:
        event: the object that holds ``before``, ``after``, ``op``, ``synthetic``, ``unchanged``.
        table: ``db``, ``schema`` and ``table``, or one path to ``schema.table``.
        pipeline: the name of the pipeline that wrote it.
        in_uri: that is the second part of a URI reference there.
    """

    event: tuple[str, ...]
    table: tuple[tuple[str, ...], ...]
    pipeline: tuple[str, ...]
    in_uri: bool = False

    def are_of(self, pipeline: str, texts: pa.StringArray) -> pa.BooleanArray:
        """Return which of the texts at ``pipeline`` name this one; false where there is none."""
        if self.in_uri:
            found = pc.starts_with(texts, quote(f"deltaforge/{pipeline}/"))
        else:
            found = pc.equal(texts, pipeline)
        return pc.fill_null(found, fill_value=False)


class Envelope(PluginSettings):
    """A description that is also the worker: it holds no connection."""

    media_types: ClassVar[tuple[str, str]] = ("application/json", "application/json")
    """What one event, and a JSON array of them, are called in ``Content-Type``."""
    splits_key_changes: ClassVar[bool] = False
    """An update that changes the key is a delete and an insert in every sink that has keys."""
    paths: ClassVar[EventPaths | None] = None
    """Where each text holds what; messages of an envelope without cannot be verified."""
    shape: ClassVar[Shape | None] = None
    """What each text looks like; encodings that write records refuse an envelope without."""

    @property
    def is_plain(self) -> bool:
        """Whether its texts are called as any JSON is."""
        return self.media_types == Envelope.media_types

    @abstractmethod
    def wrap(self, rows: pa.RecordBatch, origin: Origin) -> pa.BinaryArray:
        """Return one JSON text per row of a batch in CHANGE_SCHEMA."""
