"""Which stream takes which subject, and whether it is fit for us."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sinks.nats.client import NatsClient
from airflow_provider_deltaforge.sinks.nats.error_codes import (
    WITHOUT_JETSTREAM,
    JetStreamCode,
    JetStreamRefusal,
    to_error,
)
from airflow_provider_deltaforge.sinks.nats.sink import NatsSink
from airflow_provider_deltaforge.sinks.nats.subjects import covering, may_take, takes

log = logging.getLogger(__name__)

_NANOSECONDS = 1_000_000_000
_WINDOW_S = 30
_KNOWN_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Stream:
    """The settings of a stream, as the server returns them."""

    name: str
    subjects: tuple[str, ...]
    last_seq: int
    settings: Mapping[str, Any]

    @property
    def message_bytes_max(self) -> int:
        """How long a message may be, headers included; -1 for any length."""
        return int(self.settings.get("max_msg_size") or -1)

    def answers_for(self, subject: str) -> bool:
        """Return whether it takes a subject and says so; with ``no_ack`` it only listens."""
        return not self.settings.get("no_ack") and takes(self.subjects, subject)


@dataclass
class Streams:
    """What one connection knows of the server's streams.

    Attributes:
        client: the connection.
        sink: the description.
        former: streams that this and earlier connections have found, by name.
    """

    client: NatsClient
    sink: NatsSink
    former: dict[str, Stream]
    _known: dict[str, Stream] = field(default_factory=dict)
    _by_subject: dict[str, str | None] = field(default_factory=dict)

    @property
    def _where(self) -> str:
        return f"nats sink {self.sink.id}"

    async def check(self) -> None:
        """Look at the stream that the document names.

        Raises:
            FatalError: it is missing, cannot take the subject, or is not fit for us.
            RetryableError, AccessError: the server does not answer, or refuses us.
        """
        if self.sink.stream is None:
            return
        stream = await self.look(self.sink.stream)
        if not may_take(stream.subjects, self.sink.subject):
            raise FatalError(
                f"{self._where}: stream {stream.name!r} does not take the subject "
                f"{self.sink.subject!r}, but {', '.join(stream.subjects) or 'none'}; run: "
                f"nats stream edit {stream.name} --subjects …, or change 'subject'"
            )
        if stream.settings.get("no_ack"):
            raise FatalError(
                f"{self._where}: stream {stream.name!r} acknowledges nothing; "
                "make one without no_ack"
            )
        window_s = (stream.settings.get("duplicate_window") or 0) / _NANOSECONDS
        if window_s < _WINDOW_S and not self.sink.exactly_once:
            log.warning(
                "a short duplicate_window lets a lost connection repeat messages",
                extra={"sink": self.sink.id, "stream": stream.name, "window_s": window_s},
            )

    async def look(self, name: str) -> Stream:
        """Return a stream as it is now."""
        try:
            found = await self._ask(f"STREAM.INFO.{name}", {})
        except JetStreamRefusal as refusal:
            raise self._refused(refusal, name) from refusal
        config = found["config"]
        subjects = tuple(config.get("subjects") or ())
        stream = Stream(config["name"], subjects, found["state"]["last_seq"], config)
        self._known[name] = self.former[name] = stream
        return stream

    async def of(self, subject: str) -> Stream | None:
        """Return the stream that takes a subject; None if there is none.

        Raises:
            Refusal: the document names a stream, which does not take it.
            RetryableError: a stream took it that is gone; subscribers would get what is for it.
        """
        if subject not in self._by_subject:
            if len(self._by_subject) >= _KNOWN_MAX:
                self._by_subject.clear()
            self._by_subject[subject] = await self._find(subject)
        name = self._by_subject[subject]
        return None if name is None else self._known[name]

    async def _find(self, subject: str) -> str | None:
        for stream in self._known.values():
            if stream.answers_for(subject):
                return stream.name
        named = self.sink.stream
        if named is not None:
            if not takes((await self.look(named)).subjects, subject):
                subjects = ", ".join(self._known[named].subjects) or "none"
                raise JetStreamRefusal(0, f"stream {named!r} does not take it, but {subjects}")
            return named
        for name in await self._names(subject):
            if (await self.look(name)).answers_for(subject):
                return name
        for stream in self.former.values():
            if stream.answers_for(subject):
                raise RetryableError(
                    f"{self._where}: stream {stream.name!r}, which took {subject!r}, is gone or "
                    f"takes it no more; make it again: nats stream add {stream.name}, or stop and "
                    "start the pipeline to reach subscribers alone"
                )
        return None

    async def have_come(self, subjects: Collection[str]) -> bool:
        """Return whether a stream takes one of these subjects by now, which had none.

        Args:
            subjects: at least one; all are asked for in one request.

        Raises:
            RetryableError, AccessError, FatalError: as ``look`` does.
        """
        late: set[str] = set()
        for name in await self._names(covering(subjects)):
            stream = await self.look(name)
            late.update(subject for subject in subjects if stream.answers_for(subject))
        for subject in late:
            self._by_subject.pop(subject, None)
        return bool(late)

    async def _names(self, pattern: str) -> list[str]:
        """Return the streams that take a subject which the pattern covers."""
        try:
            found = await self._ask("STREAM.NAMES", {"subject": pattern})
        except JetStreamRefusal as refusal:
            if refusal.code in WITHOUT_JETSTREAM or self._without_jetstream(refusal):
                return []
            raise to_error(refusal, self._where) from refusal
        return found.get("streams") or []

    async def _ask(self, what: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self.client.ask(what, request, self.sink.send_timeout_secs)
        except RetryableError as error:
            # A lone server says at once that it has none; one of a cluster asks the others, and
            # silence does not show whether they have none either or are without a leader.
            if self.client.has_jetstream or not self.client.fit:
                raise
            raise RetryableError(
                f"{self._where}: {self.client.server} does not run JetStream, and no server of its "
                f"cluster answers $JS.API.{what} within {self.sink.send_timeout_secs:g} s; if "
                "JetStream is off in the cluster, enable it there; if it is on, check that it has "
                "a leader: nats server report jetstream"
            ) from error

    def _without_jetstream(self, refusal: JetStreamRefusal) -> bool:
        return refusal.code == 0 and not self.client.has_jetstream

    def _refused(self, refusal: JetStreamRefusal, name: str) -> Exception:
        if refusal.code == JetStreamCode.STREAM_NOT_FOUND and self.sink.stream is None:
            return RetryableError(f"{self._where}: stream {name!r} was removed just now")
        if refusal.code == JetStreamCode.STREAM_NOT_FOUND:
            return FatalError(
                f"{self._where}: there is no stream {name!r}; run: nats stream add {name} "
                f"--subjects '{_example(self.sink.subject)}', or remove 'stream' from the document"
            )
        if self._without_jetstream(refusal):
            return FatalError(
                f"{self._where}: {self.client.server} does not run JetStream; enable it there, or "
                "remove 'stream' from the document"
            )
        if refusal.code == 0:
            return RetryableError(f"{self._where}: {self.client.server}: {refusal.text} yet")
        return to_error(refusal, self._where)


def _example(template: str) -> str:
    fixed = template.partition("${")[0]
    return template if fixed == template else f"{fixed.rpartition('.')[0]}.>".lstrip(".")
