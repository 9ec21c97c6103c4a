"""The worker: one per sink and lane; turns JSON messages into Avro with a schema id before each."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.encodings.avro import frames
from airflow_provider_deltaforge.encodings.avro.column_types import AvroType, Modes, type_of
from airflow_provider_deltaforge.encodings.avro.names import dotted
from airflow_provider_deltaforge.encodings.avro.rows import EXTRA_MAX, RowRecord, UnreadableError
from airflow_provider_deltaforge.encodings.avro.subjects import SchemaRefused, Subjects
from airflow_provider_deltaforge.encodings.contract import (
    Bodies,
    Encoded,
    EncoderRequest,
    UnaskedError,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.events.shapes import Shape

KIND = "serialization"

Strategy: TypeAlias = Literal["topic_name", "record_name", "topic_record_name"]

_MAGIC = 0
_KNOWN_MAX = 2000
_NO_RECORD = (
    "the message is no JSON object of the shape that its record has; a raw payload must be one, too"
)

_UNREADABLE = (
    "a row has a key with half a surrogate pair, or is nested too deep: Avro has no name for it, "
    "so use the json encoding for this sink"
)

_Column: TypeAlias = tuple[pa.BinaryArray, Callable[[int], str]]
"""Messages, null where one is refused, and why that is."""


@dataclass(frozen=True, slots=True)
class _SchemaGroup:
    """What messages of one schema share.

    Attributes:
        db: of the table.
        schema: of the table.
        table: its name.
        version: its fingerprint.
        topic: of payloads without an envelope, whose keys are a matter of their topic; else None.
    """

    db: str
    schema: str | None
    table: str
    version: str | None
    topic: str | None = None

    @property
    def table_name(self) -> tuple[str, str | None, str]:
        return self.db, self.schema, self.table


@dataclass(frozen=True, slots=True)
class _GroupMessages:
    """The messages of one place, with where they go; see ``Bodies``."""

    place: _SchemaGroup
    texts: pa.BinaryArray
    topics: pa.DictionaryArray
    asks: bool

    def slice(self, begin: int, end: int | None = None) -> "_GroupMessages":
        return replace(self, texts=self.texts[begin:end], topics=self.topics[begin:end])


@dataclass(slots=True)
class _GroupState:
    """What is known of a place's messages until now.

    Attributes:
        columns: of the table; None for one that nobody knows.
        row: the record of its rows.
        name: full name of the message's record.
        schema: of the message, as text.
    """

    columns: list[tuple[str, AvroType]]
    row: RowRecord
    name: str = ""
    schema: str = ""
    extra: set[str] = field(default_factory=set)


class AvroEncoder:
    """Encodes batches. Used by one thread at a time.

    Args:
        request: what the messages are.
        shape: what each looks like.
        subjects: the registry.
        strategy: how subjects are named.
        modes: which types columns have.
    """

    def __init__(
        self,
        request: EncoderRequest,
        shape: Shape,
        subjects: Subjects,
        strategy: Strategy,
        modes: Modes,
    ) -> None:
        self._request = request
        self._shape = shape
        self._subjects = subjects
        self._subject: Callable[[str, str], str] = _SUBJECTS[strategy]
        self._modes = modes
        self._known: dict[_SchemaGroup, _GroupState] = {}

    def encode(self, bodies: Bodies) -> Encoded:
        """See ``encodings.contract.Encoder``.

        Raises:
            UnaskedError: a schema is not known yet, and the registry must not be asked.
            RetryableError: the registry is away, and a schema is not known yet.
            AccessError: it does not let us in.
        """
        written: list[pa.BinaryArray] = []
        order: list[np.ndarray] = []
        rejections: list[Rejection] = []
        for part, rows in _parts(bodies):
            column, reasons = self._encode_part(part)
            written.append(column)
            order.append(rows)
            lost = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
            rejections += [Rejection(int(rows[at]), KIND, reasons(int(at))) for at in lost]
        if not written:
            return Encoded(bodies.values, ())
        if len(written) == 1:
            return Encoded(written[0], rejections)
        back = np.argsort(np.concatenate(order), kind="stable")
        return Encoded(pa.concat_arrays(written).take(pa.array(back)), rejections)

    def close(self) -> None:
        """Close the connection to the registry."""
        self._subjects.close()

    def _encode_part(self, part: _GroupMessages) -> _Column:
        """Write messages; those that cannot even be read are searched for by halves."""
        try:
            return self._written(part)
        except UnreadableError:
            if len(part.texts) == 1:
                reason = f"{self._where(part.place)}: {_UNREADABLE}"
                return pa.nulls(1, pa.binary()), lambda _: reason
        half = len(part.texts) // 2
        column, reasons = self._encode_part(part.slice(0, half))
        behind, reasons_behind = self._encode_part(part.slice(half))
        return pa.concat_arrays(
            [column, behind]
        ), lambda at: reasons(at) if at < half else reasons_behind(at - half)

    def _written(self, part: _GroupMessages) -> _Column:
        place, texts, topics = part.place, part.texts, part.topics
        where = self._where(place)
        known = self._known.get(place) or self._learn(place)
        message = frames.MessageLayout(None if place.topic is not None else self._shape, texts)
        keys = (known.row.unknown(images) for images in message.images())
        extra = known.extra.union(*keys)
        if len(extra) > EXTRA_MAX:
            reason = (
                f"{where}: its rows have had more than {EXTRA_MAX} keys that are no columns; an "
                "Avro record cannot follow that, so use the json encoding for this sink"
            )
            return pa.nulls(len(texts), pa.binary()), lambda _: reason
        if extra != known.extra or not known.schema:
            self._describe(place, known, extra)
        try:
            found = self._ids(known, part)
        except UnaskedError:
            raise  # It is asked later.
        except RetryableError:
            self._request.counts["failed:sr_unavailable"] += len(texts)
            raise
        heads = [
            None if isinstance(schema_id, SchemaRefused) else struct.pack(">bI", _MAGIC, schema_id)
            for schema_id in found
        ]
        column = pa.array(heads, pa.binary()).take(topics.indices)

        def reasons(at: int) -> str:
            schema_id = found[topics.indices[at].as_py()]
            return (
                schema_id.reason
                if isinstance(schema_id, SchemaRefused)
                else f"{where}: {_NO_RECORD}"
            )

        written = pc.binary_join_element_wise(column, message.write(known.row), b"")
        self._count(len(texts), written.null_count, column.null_count, known)
        return written, reasons

    def _count(self, messages: int, refused: int, mismatched: int, known: _GroupState) -> None:
        counts = self._request.counts
        counts["encoded:ddl" if known.columns else "encoded:inferred"] += messages - refused
        counts["failed:schema_mismatch"] += mismatched
        counts["failed:unreadable"] += refused - mismatched

    def _ids(self, known: _GroupState, part: _GroupMessages) -> list[int | SchemaRefused]:
        """Return the schema's id by topic, 0 for a topic that no message has."""
        topics = part.topics
        used = np.zeros(len(topics.dictionary), np.bool_)
        used[topics.indices.to_numpy()] = True
        names = zip(topics.dictionary.to_pylist(), used.tolist(), strict=True)
        return [
            self._subjects.id_of(self._subject(topic, known.name), known.schema, asks=part.asks)
            if is_used
            else 0
            for topic, is_used in names
        ]

    def _where(self, place: _SchemaGroup) -> str:
        return f"sink {self._request.sink}: {place.db}.{place.table}"

    def _learn(self, place: _SchemaGroup) -> _GroupState:
        table = None
        if place.topic is None:
            # A record without the columns, as of a truncation, would be the one that the registry
            # compares the next schema with, and let every change pass.
            table = self._request.schemas(*place.table_name, place.version)
        columns = [
            (column.name, type_of(column, self._request.type_system, self._modes))
            for column in (table.columns if table is not None else ())
        ]
        known = _GroupState(columns, RowRecord(columns))
        siblings = [
            other.extra
            for at, other in self._known.items()
            if (at.topic, at.table_name) == (place.topic, place.table_name)
        ]
        # Keys that scripts add are still added after the table changed.
        known.extra = set().union(*siblings)
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]  # It may come again, and is learned again.
        self._known[place] = known
        return known

    def _describe(self, place: _SchemaGroup, known: _GroupState, extra: set[str]) -> None:
        known.extra = extra
        known.row = RowRecord(known.columns, extra)
        connector = self._request.connector
        parts = [place.db, *([place.schema] if place.schema is not None else []), place.table]
        if not known.columns:
            namespace = dotted(["deltaforge", connector, *parts])
        else:
            namespace = dotted(["deltaforge", "cdc", connector, *parts])
        if place.topic is not None:
            known.name = f"{namespace}.{frames.ROW_NAME}"
            known.schema = frames.text_of(frames.row_schema(known.row, namespace))
            return
        known.name = f"{namespace}.{self._shape.name}"
        schema = frames.schema_of(self._shape, known.row, namespace)
        known.schema = frames.text_of(schema)


_SUBJECTS: dict[str, Callable[[str, str], str]] = {
    "topic_name": lambda topic, _record: f"{topic}-value",
    "record_name": lambda _topic, record: record,
    "topic_record_name": lambda topic, record: f"{topic}-{record}",
}


def _parts(bodies: Bodies) -> Iterator[tuple[_GroupMessages, np.ndarray]]:
    """Yield each place's messages, and which of the batch they are."""
    if not len(bodies.values):
        return
    rows = bodies.rows
    columns = [rows["db"], rows["schema"], rows["table"], rows["schema_version"]]
    if bodies.bare is not None and bodies.bare.true_count:
        topics = bodies.topics.cast(pa.utf8())
        own = pc.if_else(bodies.bare, topics, pa.scalar(None, pa.utf8()))
        columns.append(own.dictionary_encode())
    codes, found = combinations(columns)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(found)))
    for values, begin, end in zip(found, [0, *ends[:-1]], ends, strict=True):
        chosen = order[begin:end]
        texts, topics = bodies.values, bodies.topics
        if len(chosen) != len(texts):
            texts, topics = texts.take(pa.array(chosen)), topics.take(pa.array(chosen))
        yield _GroupMessages(_SchemaGroup(*values), texts, topics, bodies.asks), chosen
