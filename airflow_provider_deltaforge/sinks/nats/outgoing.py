"""Messages as NATS takes them: a subject, headers and a payload each."""

import logging
import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.header_text import ENCODED, header_text
from airflow_provider_deltaforge.sinks.nats.subjects import illegal

log = logging.getLogger(__name__)

ID = "Nats-Msg-Id"
LAST_ID = "Nats-Expected-Last-Msg-Id"
LAST_SEQ = "Nats-Expected-Last-Sequence"
KEY = "df-key"
OWNER = "df-owner"
POSITION = "df-position"
BEHIND = "df-position-at"
CHUNK = "df-chunk"

_AT_ONCE = 1024
_HEADERS_BYTES_MAX = 65_535
# What ids and the names of our headers take at most.
_ROOM = 1024
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class UnfitMessage(Exception):  # noqa: N818 - becomes a rejection
    """One message cannot be delivered; arguments are the kind and the reason."""


@dataclass(frozen=True, slots=True)
class NatsMessage:
    """One message, ready to be sent."""

    subject: str
    headers: dict[str, str]
    payload: bytes


@dataclass
class Outgoing:
    """A batch; its columns become objects a slice at a time.

    Attributes:
        messages: the batch.
        template: the document's subject.
        where: names the sink in reasons.
        warned: names of headers that were left out, each logged once.
    """

    messages: Messages
    template: str
    where: str
    warned: set[str]
    _start: int = 0
    _columns: tuple[Any, ...] = ()
    _illegal: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    def subject(self, index: int) -> str:
        """Return the subject of one message.

        Raises:
            Unfit: nothing can be published to it.
        """
        name = self._columns_of(index)[0][index - self._start]
        if name not in self._illegal:
            self._illegal[name] = illegal(name, self.template)
        if self._illegal[name]:
            raise UnfitMessage("routing", f"the subject {name!r} is illegal: {self._illegal[name]}")
        return str(name)

    def message(self, index: int, suffix: str, more: dict[str, str], bytes_max: int) -> NatsMessage:
        """Return one message.

        Args:
            index: which.
            suffix: follows the event's id in ``Nats-Msg-Id``.
            more: further headers of ours.
            bytes_max: how long it may be, headers included.

        Raises:
            Unfit: it cannot be delivered.
        """
        subject = self.subject(index)
        place = index - self._start
        _, keys, values, header_lists, ids = self._columns
        key, payload = keys[place], values[place] or b""
        headers = {ID: f"{ids[place]}:{suffix}", **more}
        if key is not None:
            headers[KEY] = key
        for name, text in (header_lists[place] if header_lists else None) or ():
            self._add(headers, name, text)
        # Measured in full only where it may matter; a character has at most four bytes.
        about = _ROOM + 4 * (len(key or "") + sum(map(len, more.values())))
        if header_lists or about > _HEADERS_BYTES_MAX or about + len(payload) > bytes_max:
            _measure(headers, payload, bytes_max)
        return NatsMessage(subject, headers, payload)

    def surely_fits(self, more: dict[str, str], bytes_max: int) -> bool:
        """Return True if no message can be refused but for its subject; asked of whole columns."""
        batch = self.messages
        if batch.headers is not None:
            return False
        about = _ROOM + 4 * (_longest(batch.keys) + sum(map(len, more.values())))
        return about <= _HEADERS_BYTES_MAX and about + _longest(batch.values) <= bytes_max

    def rejection(self, index: int, unfit: UnfitMessage) -> Rejection:
        """Return the rejection of a message that cannot be delivered."""
        kind, reason = unfit.args
        return Rejection(self.messages.event_rows[index].as_py(), kind, f"{self.where}: {reason}")

    def _add(self, headers: dict[str, str], name: str, text: str) -> None:
        lower = name.lower()
        if lower.startswith("nats-") or lower in (KEY, OWNER, POSITION, BEHIND, CHUNK):
            # Nats-Rollup, for one, would empty the stream.
            if name not in self.warned:
                self.warned.add(name)
                log.warning("this header belongs to the sink", extra={"header": name})
            return
        if not _NAME.fullmatch(name):
            raise UnfitMessage("routing", f"{name!r} is not the name of a header")
        headers[name] = header_text((text or "").encode())

    def _columns_of(self, index: int) -> tuple[Any, ...]:
        if not self._start <= index < self._start + _AT_ONCE or not self._columns:
            self._start = index - index % _AT_ONCE
            self._columns = self._load(slice(self._start, self._start + _AT_ONCE))
        return self._columns

    def _load(self, these: slice) -> tuple[Any, ...]:
        batch = self.messages
        names = batch.topics.dictionary.to_pylist()
        keys = batch.keys[these]
        if pc.any(pc.match_substring_regex(keys, ENCODED)).as_py():
            texts = [None if key is None else header_text(key) for key in keys.to_pylist()]
        else:
            texts = keys.cast(pa.string()).to_pylist()
        return (
            [names[code] for code in batch.topics.indices[these].to_pylist()],
            texts,
            batch.values[these].to_pylist(),
            None if batch.headers is None else batch.headers[these].to_pylist(),
            uuid_texts(batch.event_ids[these]).cast(pa.string()).to_pylist(),
        )


def _longest(texts: pa.Array) -> int:
    """Return how many bytes the longest text has."""
    return pc.max(pc.binary_length(texts)).as_py() or 0


def _measure(headers: dict[str, str], payload: bytes, bytes_max: int) -> None:
    length = sum(len(name) + len(text.encode()) + 4 for name, text in headers.items()) + 12
    if length > _HEADERS_BYTES_MAX:
        raise UnfitMessage(
            "message_too_large", f"its headers have {length} bytes, at most 65535 fit"
        )
    if length + len(payload) > bytes_max:
        raise UnfitMessage(
            "message_too_large",
            f"it has {length + len(payload)} bytes with its headers, and {bytes_max} fit; "
            "raise max_payload of the server, or the stream's max_msg_size",
        )
