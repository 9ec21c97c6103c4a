"""The control record of a pipeline: what is wanted, who drives it, and what the driver says.

Three records, because they have different writers. The *control record* (a slot) is what people
and schedulers want; every change is a compare-and-swap. The *epoch* (a slot whose version is the
epoch) fences drivers: each lane raises it, and every write of a lane holds only while it is
current. The *progress* is what the lane of the current epoch says of itself.
"""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from airflow_provider_deltaforge.errors import FencedError, RetryableError, SpecError
from airflow_provider_deltaforge.storage import moments, names
from airflow_provider_deltaforge.storage.contract import Delete, Fence, Put, Store
from airflow_provider_deltaforge.storage.records.checkpoints import begins_anew
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS, LastHeard
from airflow_provider_deltaforge.storage.records.history import MinuteSample
from airflow_provider_deltaforge.storage.records.record import Record, now_ms
from airflow_provider_deltaforge.storage.records.requests import (
    ReplayRequest,
    Request,
    SnapshotRequest,
)
from airflow_provider_deltaforge.storage.records.stats import Stats

ALIVE_S = 15.0
"""A driver that is silent for longer is not counted as alive."""

Desired = Literal["running", "paused", "stopped"]
Status = Literal["starting", "snapshotting", "running", "blocked", "paused", "stopped", "failed"]


_DRAINS = "drains"


class ControlRecord(Record):
    """What is wanted of a pipeline, and by whom."""

    v: Literal[1] = 1
    desired: Desired = "stopped"
    generation: int = 0
    spec_hash: str = ""
    source_id: str = ""
    tenant: str = ""
    owner: str | None = None
    handle: dict[str, Any] | None = None
    requests: list[SnapshotRequest] = Field(default_factory=list)
    """Snapshots that were asked for and not served yet, in the order of asking."""
    replays: list[ReplayRequest] = Field(default_factory=list)
    """Replays of dead letters that were asked for and not served yet."""
    restarts: list[int] = Field(default_factory=list)
    """When drivers of this generation were started again, in ms since the epoch."""
    restarts_total: int = 0
    """Of every generation."""
    pauses: int = 0
    resumes: int = 0
    updated_at_ms: int = 0

    @property
    def is_draining(self) -> bool:
        """Return whether the driver of the handle is to end in order, and to be started again.

        Said to lanes of a process that is about to end; what is wanted of the pipeline stays.
        """
        handle = self.handle or {}
        return bool(handle.get(_DRAINS)) and handle.get("generation") == self.generation

    def draining(self, driver_generation: int) -> "ControlRecord":
        """Return the record with its driver asked to end, unless another generation has begun."""
        if self.handle is None or self.generation != driver_generation:
            return self
        return self.model_copy(update={"handle": {**self.handle, _DRAINS: True}})

    def request(self, ticket: str) -> Request | None:
        """Return a request that stands here."""
        pending: list[Request] = [*self.requests, *self.replays]
        return next((known for known in pending if known.ticket == ticket), None)

    def without(self, ticket: str) -> "ControlRecord":
        """Return the record without a request."""
        left = {
            "requests": [known for known in self.requests if known.ticket != ticket],
            "replays": [known for known in self.replays if known.ticket != ticket],
        }
        return self.model_copy(update=left)

    @model_validator(mode="before")
    @classmethod
    def _as_first_written(cls, stored: Any) -> Any:
        """Pass over a field of the first release that nothing ever wrote."""
        if not isinstance(stored, dict):
            return stored
        return {key: value for key, value in stored.items() if key != "snapshot_request"}


class Progress(Stats, Record):
    """What the lane that holds the epoch says of itself; renewed with every heartbeat."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    v: Literal[1] = 1
    status: Status
    since_ms: int
    epoch: int
    generation: int
    heartbeat_at_ms: int
    """By the driver's clock, which may be wrong: for people. ``Control.listen`` judges."""
    beat: int = 0
    """Another number for each heartbeat."""
    boot: str = ""
    beat_s: float = 0.0
    """The moment of the heartbeat, for whoever shares the driver's machine; see ``moments``."""
    reason: str | None = None
    error_class: str | None = None
    batch_id: int = 0
    head_position: dict[str, Any] | None = None
    host: str = ""
    pid: int = 0
    application_id: str | None = None
    minute: MinuteSample | None = None
    """What was done within the minute that is not over."""

    @model_validator(mode="before")
    @classmethod
    def _from_stored(cls, stored: Any) -> Any:
        """Lift the numbers out of ``extra``; those that only a later release counts are left."""
        if not isinstance(stored, dict) or not isinstance(stored.get("extra"), dict):
            return stored
        extra = {key: value for key, value in stored["extra"].items() if key in _EXTRA}
        return {key: value for key, value in stored.items() if key != "extra"} | extra

    @model_serializer(mode="wrap")
    def _as_stored(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = dump(self)
        extra = {key: fields.pop(key) for key in _EXTRA if key in fields}
        if self.archive is None:
            extra.pop("archive", None)
        return {**fields, "extra": extra}


_BESIDE = {"position", "lag_ms", "events", "bytes", "batches", "sinks", "tables"}
_EXTRA = [*(name for name in Stats.model_fields if name not in _BESIDE), "minute"]
"""The fields that are stored under ``extra``: all but the oldest ones."""


def heartbeat(former: Progress | None) -> dict[str, Any]:
    """Return the fields of the heartbeat that follows another."""
    return {
        "heartbeat_at_ms": now_ms(),
        "beat": former.beat + 1 if former is not None else 1,
        "boot": moments.boot(),
        "beat_s": moments.now(),
    }


class Control:
    """One pipeline's records in a store."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self.store = store
        self.pipeline = pipeline

    @staticmethod
    def list_pipelines(store: Store) -> list[str]:
        """Return the names of all pipelines that were applied, sorted."""
        return [name for name, _ in store.items(names.DOCUMENTS)]

    def read(self) -> ControlRecord | None:
        """Return the record, or None before the pipeline was applied."""
        slot = self.store.slot(names.CONTROL, self.pipeline)
        return self._record(slot.state) if slot is not None and slot.state else None

    def document(self) -> str | None:
        """Return the unexpanded document."""
        text = self.store.get(names.DOCUMENTS, self.pipeline)
        return text.decode() if text is not None else None

    def apply(
        self, document: str, spec_hash: str, source_id: str, tenant: str = ""
    ) -> ControlRecord:
        """Keep a document, unexpanded, and claim its source id.

        Raises:
            SpecError: another pipeline holds the source id; the two would share server ids and
                event ids.
        """
        self._claim(source_id)
        former, text = self.read(), self.document()
        try:
            record = self._keep(document, spec_hash, source_id, tenant)
            # While this was half done the claim looked forgotten; see ``_claim``.
            self._claim(source_id, kept=True)
        except SpecError:
            if former is not None and text is not None:
                self._keep(text, former.spec_hash, former.source_id, former.tenant)
            else:
                self._keep("", "", "", "")
                self.delete()
            raise
        if former is not None and former.source_id not in ("", source_id):
            self._release(former.source_id)
        return record

    def _keep(self, document: str, spec_hash: str, source_id: str, tenant: str) -> ControlRecord:
        self.store.put(names.DOCUMENTS, self.pipeline, document.encode())
        kept = {"spec_hash": spec_hash, "source_id": source_id, "tenant": tenant}
        return self.update(lambda old: old.model_copy(update=kept))

    def update(self, change: Callable[[ControlRecord], ControlRecord]) -> ControlRecord:
        """Change the record by compare-and-swap; ``change`` may be called several times."""
        while True:
            slot = self.store.slot(names.CONTROL, self.pipeline)
            old = self._record(slot.state) if slot and slot.state else ControlRecord()
            new = change(old).model_copy(update={"updated_at_ms": now_ms()})
            version = slot.version if slot is not None else 0
            state = new.model_dump_json().encode()
            if self.store.swap(names.CONTROL, self.pipeline, version, state) is not None:
                return new

    def why_cancelled(self, ticket: str) -> str | None:
        """Return why a request is not wanted any more; None while it is."""
        record = self.read()
        request = record.request(ticket) if record is not None else None
        return request.cancelled if request is not None else "withdrawn"

    def remove_request(self, ticket: str) -> None:
        """Take a request out that was served."""
        self.update(lambda old: old.without(ticket))

    def take_epoch(self, driver: str, generation: int | None = None) -> Fence:
        """Become the driver: every earlier lane's writes stop counting now.

        Args:
            driver: a token that no other driver start uses.
            generation: take it only while the record has this generation.

        Raises:
            FencedError: the record has another generation.
        """
        while True:
            slot = self.store.slot(names.EPOCHS, self.pipeline)
            # Asked after the slot was read: if a driver of a newer generation takes the epoch
            # from here on, the swap below fails.
            if generation is not None:
                record = self.read()
                if record is None or record.generation != generation:
                    raise self._fenced()
            version = slot.version if slot is not None else 0
            taken = self.store.swap(names.EPOCHS, self.pipeline, version, driver.encode())
            if taken is not None:
                return Fence(names.EPOCHS, self.pipeline, taken)

    def renew_epoch(self, driver: str) -> Fence:
        """Raise the epoch for another lane of the same driver, or for the driver's own word.

        Spark may run a lane's task again while the first attempt still lives on a lost executor;
        the second attempt fences the first, but never a newer driver.

        Raises:
            FencedError: ``driver`` is not the driver any more.
        """
        while True:
            slot = self.store.slot(names.EPOCHS, self.pipeline)
            if slot is None or slot.state != driver.encode():
                raise self._fenced()
            # Another attempt of the same driver may have raised it meanwhile: it is fenced then.
            taken = self.store.swap(names.EPOCHS, self.pipeline, slot.version, driver.encode())
            if taken is not None:
                return Fence(names.EPOCHS, self.pipeline, taken)

    def held_epoch(self, driver: str) -> Fence:
        """Return the fence of a driver's present epoch, for tasks that work side by side.

        Raises:
            FencedError: ``driver`` is not the driver any more.
        """
        slot = self.store.slot(names.EPOCHS, self.pipeline)
        if slot is None or slot.state != driver.encode():
            raise self._fenced()
        return Fence(names.EPOCHS, self.pipeline, slot.version)

    def epoch(self) -> int:
        """Return the current epoch; 0 before the first driver."""
        slot = self.store.slot(names.EPOCHS, self.pipeline)
        return slot.version if slot is not None else 0

    def progress(self) -> Progress | None:
        """Return what the last lane said of itself."""
        text = self.store.get(names.PROGRESS, self.pipeline)
        if text is None:
            return None
        return Progress.from_stored(text, f"the progress of pipeline {self.pipeline!r}")

    def put_progress(self, progress: Progress) -> Put:
        """Return the write that renews the progress, for a fenced transaction."""
        return Put(names.PROGRESS, self.pipeline, progress.model_dump_json().encode())

    @property
    def address(self) -> str:
        """Return what identifies this pipeline among those of the same name in other stores."""
        return f"{getattr(self.store, 'identity', None) or repr(self.store)}/{self.pipeline}"

    def listen(self) -> tuple[Progress | None, LastHeard]:
        """Return what the last lane said of itself, and what this process knows of its silence.

        Two machines' clocks are never compared: on another machine than the driver's the silence
        begins when this process first finds a heartbeat.
        """
        where = self.address
        # What this process cannot hear while it is frozen itself is no silence of the driver's.
        asked_s, asked_at_s = HEARTBEATS.now(), moments.now()
        try:
            progress = self.progress()
        except RetryableError:
            HEARTBEATS.forget(where)
            raise
        if progress is None:
            return None, LastHeard()
        driver = (progress.host, progress.pid, progress.generation, progress.epoch)
        token = (progress.beat, progress.heartbeat_at_ms, progress.status)
        heard = HEARTBEATS.hear(where, driver, token, asked_s)
        ago_s = moments.since(progress.boot, progress.beat_s, asked_at_s)
        return progress, heard if ago_s is None else LastHeard(ago_s, is_sure=True)

    def alive(self) -> bool:
        """Return whether a driver did not say that it ended, and was not silent for too long."""
        progress, heard = self.listen()
        if progress is None or progress.status in ("stopped", "failed"):
            return False
        return heard.silence_s < ALIVE_S

    def delete(self) -> None:
        """Forget the pipeline: record, document, positions, snapshot, dead letters, claim.

        The epoch stays, so that a driver that is still alive somewhere remains fenced. Positions,
        snapshot and document go together: a pipeline never keeps one without the others. Killed
        after that, a second call forgets the rest.

        Raises:
            FencedError: a driver started meanwhile; stop it, and delete again.
        """
        record = self.read()
        fence = self.take_epoch("deleted")
        prefix = f"{self.pipeline}/"
        owned = [
            Delete(kind, key)
            for kind in names.OF_PIPELINES
            for key, _ in self.store.items(kind, prefix)
        ]
        whole = (names.PROGRESS, names.MEASUREMENTS, names.DOCUMENTS, names.FLEETS)
        single = [Delete(name, self.pipeline) for name in whole]
        self.store.transact([*owned, *single, begins_anew(self.pipeline)], fence)
        DeadLetterRecords(self.store, self.pipeline).purge()
        while (slot := self.store.slot(names.CONTROL, self.pipeline)) is not None and slot.state:
            if self.document() is not None:
                return  # It was applied again meanwhile.
            if self.store.swap(names.CONTROL, self.pipeline, slot.version, b"") is not None:
                break
        if record is not None:
            self._release(record.source_id)  # An `apply` that is under way makes sure of its claim.

    def _record(self, text: bytes) -> ControlRecord:
        return ControlRecord.from_stored(text, f"the control record of {self.pipeline!r}")

    def _fenced(self) -> FencedError:
        return FencedError(
            f"pipeline {self.pipeline}: a newer driver has started; this one ends without writing"
        )

    def _claim(self, source_id: str, *, kept: bool = False) -> None:
        """Become the holder of a source id, or once the record is ``kept``, make sure of it.

        A holder that was killed between claiming and keeping its document, or before it let go of
        a former id, has a record without this id: its claim is forgotten, and taken over.
        """
        while True:
            slot = self.store.slot(names.CLAIMS, source_id)
            holder = slot.state.decode() if slot is not None else ""
            mine = holder == self.pipeline
            if mine and not kept:
                return
            owner = Control(self.store, holder).read() if holder and not mine else None
            if owner is not None and owner.source_id == source_id:
                raise SpecError(
                    f"spec.source.config.id: {source_id!r} belongs to pipeline {holder!r}; two "
                    "pipelines with one source id would share its server id and event ids: "
                    f"choose another id, or first delete {holder!r}, or apply it with another one "
                    f"and let it begin anew: `deltaforge reset {holder} --confirm {holder}`"
                )
            # A holder swaps too: who saw its claim before the record was there comes too late.
            version = slot.version if slot is not None else 0
            name = self.pipeline.encode()
            if self.store.swap(names.CLAIMS, source_id, version, name) is not None:
                return

    def _release(self, source_id: str) -> None:
        slot = self.store.slot(names.CLAIMS, source_id)
        if slot is not None and slot.state.decode() == self.pipeline:
            self.store.swap(names.CLAIMS, source_id, slot.version, b"")
