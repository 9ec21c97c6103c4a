"""Messages as NATS takes them: a subject, headers and a payload each."""

import logging
import re
import uuid
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.nats.subjects import illegal

log = logging.getLogger(__name__)

ID = "Nats-Msg-Id"
LAST_ID = "Nats-Expected-Last-Msg-Id"
LAST_SEQ = "Nats-Expected-Last-Sequence"
KEY = "df-key"
OWNER = "df-owner"
POSITION = "df-position"
BEHIND = "df-position-at"

_AT_ONCE = 1024
_HEADERS_BYTES_MAX = 65_535
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAK = re.compile(r"[\r\n]")


class Unfit(Exception):  # noqa: N818 - becomes a rejection
    """One message cannot be delivered; arguments are the kind and the reason."""


@dataclass(frozen=True, slots=True)
class Message:
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
        warned: names of headers that were left out, each told once.
    """

    messages: Messages
    template: str
    where: str
    warned: set[str]
    _slice: int = -1
    _columns: tuple[list[Any], ...] = ()
    _illegal: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    def subject(self, index: int) -> str:
        """Return the subject of one message.

        Raises:
            Unfit: nothing can be published to it.
        """
        name = str(self._row(index)[0])
        if name not in self._illegal:
            self._illegal[name] = illegal(name, self.template)
        if self._illegal[name]:
            raise Unfit("routing", f"the subject {name!r} is illegal: {self._illegal[name]}")
        return name

    def message(self, index: int, suffix: str, more: dict[str, str], bytes_max: int) -> Message:
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
        _, key, value, given, event_id = self._row(index)
        headers = {ID: f"{uuid.UUID(bytes=event_id)}:{suffix}", **more}
        if key is not None:
            headers[KEY] = _header(key)
        for name, text in given or ():
            self._add(headers, name, text)
        payload = value or b""
        length = sum(len(name) + len(text.encode()) + 4 for name, text in headers.items()) + 12
        if length > _HEADERS_BYTES_MAX:
            raise Unfit("message_too_large", f"its headers have {length} bytes, at most 65535 fit")
        if length + len(payload) > bytes_max:
            raise Unfit(
                "message_too_large",
                f"it has {length + len(payload)} bytes with its headers, and {bytes_max} fit; "
                "raise max_payload of the server, or the stream's max_msg_size",
            )
        return Message(subject, headers, payload)

    def event_id(self, index: int) -> bytes:
        """Return the id of one message's event."""
        return bytes(self._row(index)[4])

    def rejection(self, index: int, unfit: Unfit) -> Rejection:
        """Return what the engine is told of a message that cannot be delivered."""
        kind, reason = unfit.args
        return Rejection(self.messages.event_rows[index].as_py(), kind, f"{self.where}: {reason}")

    def _add(self, headers: dict[str, str], name: str, text: str) -> None:
        lower = name.lower()
        if lower.startswith("nats-") or lower in (KEY, OWNER, POSITION, BEHIND):
            # Nats-Rollup, for one, would empty the stream.
            if name not in self.warned:
                self.warned.add(name)
                log.warning("this header belongs to the sink", extra={"header": name})
            return
        if not _NAME.fullmatch(name):
            raise Unfit("routing", f"{name!r} is not the name of a header")
        headers[name] = _header(text.encode() if text is not None else b"")

    def _row(self, index: int) -> tuple[Any, ...]:
        start = index - index % _AT_ONCE
        if start != self._slice:
            self._slice, self._columns = start, self._load(start)
        return tuple(column[index - start] for column in self._columns)

    def _load(self, start: int) -> tuple[list[Any], ...]:
        these, batch = slice(start, start + _AT_ONCE), self.messages
        names = batch.topics.dictionary.to_pylist()
        topics = [names[code] for code in batch.topics.indices[these].to_pylist()]
        given = batch.headers
        return (
            topics,
            batch.keys[these].to_pylist(),
            batch.values[these].to_pylist(),
            [None] * len(topics) if given is None else given[these].to_pylist(),
            batch.event_ids[these].to_pylist(),
        )


def _header(text: bytes) -> str:
    try:
        found = text.decode()
    except UnicodeDecodeError:
        raise Unfit("routing", "a header or the key is not text in UTF-8") from None
    if _BREAK.search(found):
        raise Unfit("routing", "a header or the key holds a line break")
    return found
