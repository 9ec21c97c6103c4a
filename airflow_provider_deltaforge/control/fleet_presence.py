"""What the process of a supervised fleet says of itself in the state store, and hears there."""

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.engine.base.log_shipper import LogOrigin, shipped_log
from airflow_provider_deltaforge.engine.base.task_context import place
from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, SpecError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import (
    Control,
    Progress,
    Status,
    heartbeat,
)
from airflow_provider_deltaforge.storage.records.fleets import (
    FleetContents,
    put_contents,
    record_name,
)
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.telemetry.redaction import redacted

_BEAT_S = 2.0
_JOIN_S = 5.0

_log = logging.getLogger(__name__)


class FleetPresence:
    """The process that is a fleet's generation.

    Attributes:
        leaving: set once the fleet is to end: it was stopped, or a newer generation has begun.
    """

    def __init__(self, location: StoreLocation, fleet: str, generation: int) -> None:
        self.leaving = threading.Event()
        self._name = record_name(fleet)
        self._generation = generation
        self._token = uuid.uuid4().hex
        self._contents = FleetContents()
        self._status: Status = "starting"
        self._since_ms = now_ms()
        self._over = threading.Event()
        self._store = location.open()
        self._control = Control(self._store, self._name)

    def show(self, contents: FleetContents) -> None:
        """Have the next heartbeat say that the fleet runs, and how its pipelines are."""
        self._contents = contents
        if self._status != "running":
            self._status, self._since_ms = "running", now_ms()

    @classmethod
    @contextmanager
    def of(cls, location: StoreLocation, fleet: str, generation: int) -> Iterator["FleetPresence"]:
        """Be the fleet of a generation while the block runs; its last words say how it ended.

        Raises:
            SpecError: a newer generation has begun.
            RetryableError: the state store is away.
        """
        present = cls(location, fleet, generation)
        try:
            present._take_over()
            origin = LogOrigin(location, present._name, present._token, generation)
            beating = threading.Thread(target=present._beat, name="fleet heartbeat", daemon=True)
            with shipped_log(origin):
                beating.start()
                try:
                    yield present
                except BaseException as error:
                    present._end(beating, "failed", error)
                    raise
                present._end(beating, "stopped")
        finally:
            present._store.close()

    def _take_over(self) -> None:
        record = existing(self._store, self._name).read()
        if record is None or record.generation != self._generation:
            raise SpecError(
                f"generation {self._generation} of {self._name!r} is over; the record says "
                f"{record.generation if record else None}"
            )
        try:
            self._control.take_epoch(self._token, self._generation)
            self._say()
        except FencedError as error:
            raise SpecError(f"{self._name!r} was started again at this moment") from error

    def _beat(self) -> None:
        shown = ""
        while not self._over.wait(_BEAT_S):
            try:
                record = self._control.read()
                is_ours = record is not None and record.generation == self._generation
                if record is None or not is_ours or record.desired == "stopped":
                    self.leaving.set()
                self._say()
                shown = ""
            except FencedError:
                self.leaving.set()
            except DeltaForgeError as error:
                if shown != str(error):
                    shown = str(error)
                    _log.warning("the fleet's heartbeat is not written: %s", redacted(shown))

    def _end(
        self, beating: threading.Thread, status: Status, error: BaseException | None = None
    ) -> None:
        self._over.set()
        beating.join(_JOIN_S)
        self._status, self._since_ms = status, now_ms()
        reason = redacted(str(error)) if error is not None else None
        error_class = error.error_class if isinstance(error, DeltaForgeError) else None
        with suppress(DeltaForgeError):  # Its supervisor sees the exit code.
            self._say(reason, error_class)

    def _say(self, reason: str | None = None, error_class: str | None = None) -> None:
        """Write a heartbeat, in one transaction with what the documents are.

        Raises:
            FencedError: another process is the fleet now.
            RetryableError: the store is away.
        """
        fence = self._control.held_epoch(self._token)
        contents = self._contents
        host, pid = place()
        progress = Progress(
            status=self._status,
            since_ms=self._since_ms,
            epoch=fence.version,
            generation=self._generation,
            reason=reason or (contents.words if self._status == "running" else None),
            error_class=error_class,
            **heartbeat(self._control.progress()),
            host=host,
            pid=pid,
        )
        writes = [self._control.put_progress(progress), put_contents(self._name, contents)]
        self._store.transact(writes, fence)
