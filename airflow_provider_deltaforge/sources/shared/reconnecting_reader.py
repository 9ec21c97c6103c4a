"""The frame of a log reader: one connection, opened again where the last segment ended."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.sources.shared.backoff import Backoff
from airflow_provider_deltaforge.sources.shared.silence import ServerSilence

log = logging.getLogger(__name__)

Socket = TypeVar("Socket", bound="Closable")


class Closable(Protocol):
    """A connection that sends the log."""

    def close(self) -> None:
        """Close it."""


class ReconnectingReader(ABC, Generic[Socket]):
    """Implements most of ``sources.contract.LogReader``.

    A subclass sets ``_segmenter`` and ``_silence``.

    Args:
        source_id: seeds the event ids.
        read_timeout_s: how long a connection may bring nothing.
        stopping: called while waiting; True gives up.
        backoff: paces the attempts to open the log.
    """

    sign_of_life: ClassVar[str]
    """What the server sends from time to time while nothing is written."""

    _segmenter: Any
    _silence: ServerSilence

    def __init__(
        self,
        source_id: str,
        read_timeout_s: float,
        stopping: Callable[[], bool],
        backoff: Backoff | None = None,
    ) -> None:
        self._key = id_key(source_id)
        self._read_timeout_s = read_timeout_s
        self._stopping = stopping
        self._socket: Socket | None = None
        self._closed = False
        self._backoff = backoff or Backoff()
        self._away: str | None = None
        self._lost: PositionLostError | None = None
        self._broken_by: str | None = None
        self._heard_at = time.monotonic()

    @abstractmethod
    def _connect_log(self) -> Socket:
        """Return a connection that sends the log from where the last segment ended."""

    @abstractmethod
    def _receive(self, socket: Socket, timeout_s: float) -> int:
        """Read what the server has sent and cut it into segments; return the bytes read."""

    @property
    @abstractmethod
    def _missing(self) -> str:
        """What a silent server does not send, and how often it should."""

    @property
    def _remedy(self) -> str:
        """What else may keep a server silent, and what to do then; begins with ``; ``."""
        return ""

    @property
    def position(self) -> Position:
        """Where the next segment begins."""
        position: Position = self._segmenter.position.as_json()
        return position

    def read(self, timeout_s: float) -> Any:
        """Return the next segment, or None when nothing came in time.

        Raises:
            RetryableError: the server is away; the call may be repeated at once, it paces itself.
            ServerChangedError: another server answers; the log must be opened again.
            TableError: a table's rows cannot be decoded.
            PositionLostError, AccessError, SchemaError, FatalError: a person must act.
        """
        with self._silence.reading():
            return self._read(timeout_s)

    def _read(self, timeout_s: float) -> Any:
        ready = self._segmenter.ready
        deadline = time.monotonic() + timeout_s
        while not ready and not self._closed and not self._stopping():
            if self._lost is not None:
                raise self._lost
            left = deadline - time.monotonic()
            if not self._opened(left):
                if self._away is not None and not self._closed:
                    raise RetryableError(self._away)  # Nothing came because nobody is there.
                return None
            socket = self._socket
            try:
                received = 0 if socket is None else self._receive(socket, max(left, 0.0))
                if not received and left <= 0:
                    return None
            except (OSError, RetryableError) as error:
                self._broke(error)
            except PositionLostError as error:
                self._lost = error  # Raised behind what came before it.
                self._segmenter.cut()
        return ready.popleft() if ready else None

    @property
    def is_caught_up(self) -> bool:
        """Return whether nothing that was received waits to be read."""
        return not self._segmenter.ready

    def silence(self) -> tuple[float, str] | None:
        """Return how long the server has been silent, and why; None if all is well."""
        silent_s = self._silence.for_s
        if silent_s is None:
            return None
        reason = f"{self._missing}: its server hangs, or the network between is cut"
        if self._broken_by is not None:
            reason = f"the log connection breaks whenever it is opened: {self._broken_by}"
        return silent_s, reason + self._remedy

    def close(self) -> None:
        """Close the connection. Safe to call twice, and from another thread."""
        self._closed = True
        socket, self._socket = self._socket, None
        if socket is not None:
            self._leave(socket)
            socket.close()

    def _leave(self, socket: Socket) -> None:
        """Send the server what it should know before the connection is closed."""

    def _opened(self, left: float) -> bool:
        """Open the log if it is not open; return False if the time for it has not come."""
        if self._socket is not None:
            return True
        if self._backoff.naps(left):
            return left > 0
        try:
            socket = self._connect_log()
        except RetryableError as error:
            self._failed(error)
            if self._waits():
                return left > 0
            self._away = f"{error}; trying again"
            raise RetryableError(self._away) from error
        self._socket = socket
        self._segmenter.restart()
        self._heard_at = time.monotonic()
        self._silence.heard()
        self._away = None
        if self._closed:
            self.close()
        return not self._closed

    def _heard(self, size: int) -> None:
        """Take note of what a look at the connection brought.

        Raises:
            TimeoutError: nothing has come for too long.
        """
        if size:
            self._broken_by = None
            self._heard_at = time.monotonic()
            self._silence.heard()
            self._backoff.worked()
            return
        self._silence.nothing()
        if time.monotonic() - self._heard_at > self._read_timeout_s:
            silent_s = self._read_timeout_s
            raise TimeoutError(f"nothing came for {silent_s:g} s, no {self.sign_of_life}")

    def _broke(self, error: BaseException) -> None:
        """Close a broken connection: the next call opens another where the last segment ended."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
        if self._closed:
            return
        self._silence.broke()
        self._broken_by = str(error)
        self._check_break(error)
        self._failed(error)
        log.warning("the log connection broke (%s); reconnecting", error)

    def _check_break(self, error: BaseException) -> None:
        """Raise FatalError if opening the log again cannot help."""

    def _failed(self, error: BaseException) -> None:
        """Note a failed attempt, and wait longer before each next one."""
        self._backoff.failed()

    def _waits(self) -> bool:
        """Return whether a failed attempt is one that the server will soon let pass."""
        return False
