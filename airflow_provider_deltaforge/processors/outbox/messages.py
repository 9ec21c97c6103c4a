"""The messages of outbox rows, read from whole columns: destination, key, headers and payload."""

import logging
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields as j
from airflow_provider_deltaforge.events.change import ROUTING
from airflow_provider_deltaforge.processors.outbox.settings import Outbox
from airflow_provider_deltaforge.spec.template import Template

log = logging.getLogger(__name__)

TAKEN, NON_INSERT, NULL_PAYLOAD, NON_OBJECT, LACKING = range(5)
"""What a message is."""

_REQUIRED = ("topic", "payload", "aggregate_type", "aggregate_id", "event_type")
_KIND_HEADER, _KIND = "df-source-kind", "outbox"
# What a source makes of a logical message that is not JSON.
_NOT_JSON = b'{"_base64":"'

Path = tuple[str, ...]


class OutboxLayout:
    """The settings of a document, compiled once. Used by one thread."""

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
        """Log once that a template names a column that some messages do not have."""
        if template.text not in self._warned:
            self._warned.add(template.text)
            log.warning(
                "processor %s: template %r names a column that some messages do not have",
                self.settings.id,
                template.text,
            )


class OutboxMessagesBatch:
    """The outbox messages of one batch.

    Args:
        form: what is looked for.
        rows: the messages' events, and no others.

    Attributes:
        fates: uint8 per message, what it is.
        topics: where each goes; null where neither row nor settings name one.
    """

    def __init__(self, form: OutboxLayout, rows: pa.RecordBatch) -> None:
        self._form = form
        self._after = rows["after"]
        self._spans = dict(zip(form.paths, j.locate_each(self._after, form.paths), strict=True))
        self._texts: dict[Path, pa.StringArray] = {}
        self._words: dict[Path, pa.StringArray] = {}
        self._found: dict[Path, Any] = {}
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
        whole, spans = self._spans[()], self._spans[self._form.payload]
        kinds = self._kinds(self._form.payload)
        absent, null = kinds == j.ABSENT, kinds == j.NULL
        if absent.any() or null.any():
            spans = j.Spans(
                np.where(null, -1, np.where(absent, whole.starts, spans.starts)),
                np.where(null, -1, np.where(absent, whole.stops, spans.stops)),
            )
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
        kinds = self._kinds(())
        fates = np.where(kinds == j.OBJECT, TAKEN, NON_OBJECT).astype(np.uint8)
        if self._after.null_count or (fates == NON_OBJECT).any():
            fates[(kinds == j.NULL) | np.asarray(self._after.is_null())] = NULL_PAYLOAD
        if (self._kinds(self._form.payload) == j.ABSENT).any():
            is_no_json = pc.fill_null(pc.starts_with(self._after, _NOT_JSON), fill_value=False)
            fates[np.asarray(is_no_json)] = NON_OBJECT
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
        words.append(pa.array([_KIND], pa.utf8()))
        names = pa.array([*self._form.headers, _KIND_HEADER], pa.utf8())
        present = np.ones((count, len(words)), np.bool_)
        for at, word in enumerate(words[:-1]):
            if word.null_count:
                present[:, at] = np.asarray(word.is_valid())
        # The last word is there once, for all rows.
        places = np.arange(len(words)) * count + np.arange(count)[:, np.newaxis]
        places[:, -1] = (len(words) - 1) * count
        columns = np.broadcast_to(np.arange(len(words)), present.shape)[present]
        ends = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
        values = pa.concat_arrays(words).take(pa.array(places[present]))
        return pa.MapArray.from_arrays(pa.array(ends), names.take(pa.array(columns)), values)

    def _find_lacks(self) -> Any:
        columns = self._form.settings.columns
        words = [
            self._word((name,))
            for name in (columns.aggregate_type, columns.aggregate_id, columns.event_type)
        ]
        # A payload that is null is there.
        payload = self._kinds(self._form.payload) == j.ABSENT
        absent = [self.topics.is_null(), payload, *(word.is_null() for word in words)]
        return sum(np.asarray(column).astype(np.int64) << bit for bit, column in enumerate(absent))

    def _filled(self, template: Template, null_handling: str) -> pa.StringArray:
        texts = {path.segments: self._text(path.segments) for path in template.paths}
        taken = pa.array(self.fates == TAKEN)
        if any(t.null_count and t.filter(taken).null_count for t in texts.values()):
            self._form.warn_lacking(template)
        # A template may have no column at all.
        nothing = pa.array([""]).take(pa.array(np.zeros(len(self._after), np.int32)))
        parts = [part if isinstance(part, str) else texts[part.segments] for part in template.parts]
        return pc.binary_join_element_wise(
            *parts, nothing, "", null_handling=null_handling, null_replacement=""
        )

    def _word(self, path: Path) -> pa.StringArray:
        """Return texts, numbers and booleans as text; null where there is anything else."""
        if path not in self._words:
            word = self._text(path)
            deep = self._kinds(path) >= j.OBJECT
            if deep.any():
                word = pc.if_else(pa.array(~deep), word, pa.nulls(len(word), pa.utf8()))
            self._words[path] = word
        return self._words[path]

    def _text(self, path: Path) -> pa.StringArray:
        if path not in self._texts:
            spans = self._spans[path]
            is_there = spans.starts.max(initial=-1) >= 0
            texts = j.text_values(self._after, spans) if is_there else None
            self._texts[path] = pa.nulls(len(self._after), pa.utf8()) if texts is None else texts
        return self._texts[path]

    def _kinds(self, path: Path) -> Any:
        if path not in self._found:
            self._found[path] = j.kinds(self._after, self._spans[path])
        return self._found[path]


def _unless_empty(texts: pa.StringArray) -> pa.StringArray:
    """Return the texts with null for the empty ones."""
    if texts.null_count == len(texts):
        return texts
    empty = pc.equal(pc.binary_length(texts), 0)
    if not empty.true_count:
        return texts
    return pc.if_else(empty, pa.nulls(len(texts), pa.utf8()), texts)
