"""What outbox rows say, found in whole columns: destination, key, headers and payload."""

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.events import json_fields as j
from airflow_provider_deltaforge.events.change import ROUTING
from airflow_provider_deltaforge.processors.outbox import Outbox
from airflow_provider_deltaforge.spec.template import Template

log = logging.getLogger(__name__)

TAKEN, NON_INSERT, NULL_PAYLOAD, NON_OBJECT, LACKING = range(5)
"""What a message is."""

_REQUIRED = ("topic", "payload", "aggregate_type", "aggregate_id", "event_type")
_KIND_HEADER = "df-source-kind"
# What a source makes of a logical message that is not JSON.
_NOT_JSON = b'{"_base64":"'

Path = tuple[str, ...]


class Form:
    """What a document says, compiled once. Used by one thread."""

    def __init__(self, settings: Outbox) -> None:
        columns = settings.columns
        self.settings = settings
        self.topic = None if settings.topic is None else Template.parse(settings.topic)
        self.key = None if settings.key is None else Template.parse(settings.key)
        self.payload: Path = (columns.payload,)
        self.headers: dict[str, Path] = {
            "df-event-id": (columns.event_id,),
            "df-aggregate-type": (columns.aggregate_type,),
            "df-aggregate-id": (columns.aggregate_id,),
            "df-event-type": (columns.event_type,),
            **{name: (column,) for name, column in settings.additional_headers.items()},
        }
        wanted: list[Path] = [(), self.payload, (columns.topic,), *self.headers.values()]
        for template in (self.topic, self.key):
            wanted += [] if template is None else [path.segments for path in template.paths]
        self.paths = tuple(dict.fromkeys(wanted))
        self._warned: set[str] = set()

    def warn_lacking(self, template: Template) -> None:
        """Say once that a template names a column that some messages do not have."""
        if template.text not in self._warned:
            self._warned.add(template.text)
            log.warning(
                "processor %s: template %r names a column that some messages do not have",
                self.settings.id,
                template.text,
            )


class Messages:
    """The outbox messages of one batch.

    Args:
        form: what is looked for.
        rows: the messages' events, and no others.

    Attributes:
        fates: uint8 per message, what it is.
        topics: where each goes; null where nothing says so.
    """

    def __init__(self, form: Form, rows: pa.RecordBatch) -> None:
        self._form = form
        self._after = rows["after"]
        self._spans = dict(zip(form.paths, j.locate_each(self._after, form.paths), strict=True))
        self._texts: dict[Path, pa.StringArray] = {}
        self.fates = self._fates(rows["op"])
        self.topics = self._topics()
        self._lacks = np.zeros(len(self._after), np.int64)
        if form.settings.strict:
            self._lacks = self._find_lacks()
            self.fates[(self.fates == TAKEN) & (self._lacks > 0)] = LACKING

    def lacks(self, row: int) -> str:
        """Return what a message lacks."""
        bits = int(self._lacks[row])
        return ", ".join(name for bit, name in enumerate(_REQUIRED) if bits >> bit & 1)

    def payloads(self) -> pa.BinaryArray:
        """Return what each message is about; the whole row where it has no such column."""
        whole, found = self._spans[()], self._spans[self._form.payload]
        kinds = self._kinds(self._form.payload)
        absent, null = kinds == j.ABSENT, kinds == j.NULL
        starts, stops = np.where(absent, whole.starts, found.starts), found.stops
        spans = j.Spans(np.where(null, -1, starts), np.where(absent, whole.stops, stops))
        spans.stops[null] = -1
        payloads = j.values(self._after, spans)
        texts = kinds == j.STRING
        if not self._form.settings.parse_payload or not texts.any():
            return payloads
        inside = j.as_text(payloads).cast(pa.binary())
        read = j.values(inside, j.locate(inside, ()))
        return pc.if_else(pa.array(texts), pc.coalesce(read, payloads), payloads)

    def routing(self) -> pa.StructArray:
        """Return where each message goes, under which key, with which headers."""
        count = len(self._after)
        raw = pa.array(np.full(count, self._form.settings.raw_payload))
        columns = [self.topics, self._keys(), self._headers(), raw]
        return pa.StructArray.from_arrays(columns, fields=list(ROUTING))

    def _fates(self, op: pa.DictionaryArray) -> Any:
        fates = np.full(len(op), NON_OBJECT, np.uint8)
        kinds = self._kinds(())
        fates[kinds == j.OBJECT] = TAKEN
        fates[(kinds == j.NULL) | np.asarray(self._after.is_null())] = NULL_PAYLOAD
        fates[
            np.asarray(pc.fill_null(pc.starts_with(self._after, _NOT_JSON), fill_value=False))
        ] = NON_OBJECT
        inserts = np.array([letter == "c" for letter in op.dictionary.to_pylist()], np.bool_)
        fates[~inserts[op.indices.to_numpy()]] = NON_INSERT
        return fates

    def _topics(self) -> pa.StringArray:
        settings = self._form.settings
        found = _unless_empty(self._word((settings.columns.topic,)))
        if self._form.topic is not None:
            # Half a destination would be a wrong one: such a message takes the next way.
            filled = self._filled(self._form.topic, "emit_null")
            found = pc.coalesce(_unless_empty(filled), found)
        if settings.default_topic:
            found = pc.fill_null(found, settings.default_topic)
        return found

    def _keys(self) -> pa.StringArray:
        default = self._word((self._form.settings.columns.aggregate_id,))
        if self._form.key is None:
            return default
        return pc.coalesce(_unless_empty(self._filled(self._form.key, "replace")), default)

    def _headers(self) -> pa.MapArray:
        """Return each message's headers, in order, without those it has no value for."""
        count = len(self._after)
        words = [self._word(path) for path in self._form.headers.values()]
        words.append(pa.array(["outbox"], pa.utf8()).take(pa.array(np.zeros(count, np.int32))))
        names = pa.array([*self._form.headers, _KIND_HEADER], pa.utf8())
        present = np.stack([np.asarray(word.is_valid()) for word in words], axis=1)
        row, column = np.nonzero(present)
        ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
        values = pa.concat_arrays(words).take(pa.array(column * count + row))
        return pa.MapArray.from_arrays(pa.array(ends), names.take(pa.array(column)), values)

    def _find_lacks(self) -> Any:
        columns = self._form.settings.columns
        words = [
            self._word((name,))
            for name in (columns.aggregate_type, columns.aggregate_id, columns.event_type)
        ]
        # A payload that is null is there.
        payload = self._kinds(self._form.payload) == j.ABSENT
        absent = [self.topics.is_null(), payload, *(word.is_null() for word in words)]
        return sum(np.asarray(one).astype(np.int64) << bit for bit, one in enumerate(absent))

    def _filled(self, template: Template, null_handling: str) -> pa.StringArray:
        texts = {path.segments: self._text(path.segments) for path in template.paths}
        if any(text.filter(pa.array(self.fates == TAKEN)).null_count for text in texts.values()):
            self._form.warn_lacking(template)
        # A template may have no column at all.
        nothing = pa.repeat(pa.scalar("", pa.utf8()), len(self._after))
        parts = [part if isinstance(part, str) else texts[part.segments] for part in template.parts]
        return pc.binary_join_element_wise(
            *parts, nothing, "", null_handling=null_handling, null_replacement=""
        )

    def _word(self, path: Path) -> pa.StringArray:
        """Return texts, numbers and booleans as text; null where there is anything else."""
        kinds = self._kinds(path)
        deep = (kinds == j.OBJECT) | (kinds == j.ARRAY)
        text = self._text(path)
        return (
            pc.if_else(pa.array(~deep), text, pa.nulls(len(text), pa.utf8()))
            if deep.any()
            else text
        )

    def _text(self, path: Path) -> pa.StringArray:
        if path not in self._texts:
            self._texts[path] = j.text_values(self._after, self._spans[path])
        return self._texts[path]

    def _kinds(self, path: Path) -> Any:
        return j.kinds(self._after, self._spans[path])


def _unless_empty(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts with null for the empty ones."""
    if not pc.any(pc.equal(texts, "")).as_py():
        return texts
    return pc.if_else(pc.equal(texts, ""), pa.nulls(len(texts), pa.utf8()), texts)
