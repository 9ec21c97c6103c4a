"""Keeps a fleet's pipelines as the documents of a folder say, beside other fleets of the store."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from traceback import format_exc

import psutil

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.document_folder import Document, DocumentFolder
from airflow_provider_deltaforge.control.fleet import REMOVED, Fleet
from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.starting import holder
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import HOPELESS, RestartBudget
from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.storage.choice import store_of
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.fleets import FleetContents
from airflow_provider_deltaforge.telemetry.redaction import redacted

_BACKOFF_S = RestartBudget().wait_max_s + 15.0
"""For so long, whoever keeps a pipeline elsewhere may be about to start its driver again."""

_log = logging.getLogger(__name__)

Report = Callable[[str, str], None]
"""Hears of a pipeline and what there is to say about it."""


class FleetKeeper:
    """Starts, replaces and stops pipelines so that they are as the documents say.

    ``tick`` is called about once a second by one thread. What takes time is done in a thread of its
    own for each pipeline, so that none waits for another.

    Args:
        fleet: starts drivers here and watches them.
        folder: the documents.
        location: the state store.
        backend: finds drivers of others.
        report: see ``Report``; the same words come once.
    """

    def __init__(
        self,
        fleet: Fleet,
        folder: DocumentFolder,
        location: StoreLocation,
        backend: Backend,
        report: Report,
    ) -> None:
        self._fleet = fleet
        self._folder = folder
        self._location = location
        self._backend = backend
        self._report = report
        self._reported: dict[str, str] = {}
        self._applied: dict[str, Document] = {}
        self._unstarted: dict[str, bool] = {}
        """Applied, and not started yet; True: their documents are back."""
        self._free_since: dict[str, float] = {}
        self._busy: dict[str, threading.Thread] = {}
        self._named: list[str] = []
        self._unreadable: str | None = None
        self._troubles: dict[str, str] = {}

    @property
    def contents(self) -> FleetContents:
        """Return the pipelines as the last ``tick`` found them, in the thread that calls it."""
        pipelines = self._named
        given_up = [name for name in self._fleet.given_up() if name in pipelines]
        troubles = {
            **({"documents": self._unreadable} if self._unreadable else {}),
            **{file: redacted(reason) for file, reason in self._folder.refused.items()},
            **{name: why for name, why in self._troubles.copy().items() if name in pipelines},
        }
        return FleetContents(pipelines=pipelines, given_up=given_up, troubles=troubles)

    def tick(self) -> None:
        """Look at the documents and the pipelines once, and begin what has to be done.

        Raises:
            SpecError: the folder cannot be read; the pipelines go on.
        """
        try:
            documents = self._folder.look()
        except SpecError as error:
            self._unreadable = redacted(str(error))
            raise
        self._named, self._unreadable = sorted(documents), None
        self._busy = {name: thread for name, thread in self._busy.items() if thread.is_alive()}
        for name in {*documents, *self._applied} - self._busy.keys():
            document = documents.get(name)
            known = self._applied.get(name)
            if document is not None and document == known and self._fleet.watches(name):
                continue
            thread = threading.Thread(
                target=self._tend, args=(name, document), name=f"tend {name}", daemon=True
            )
            self._busy[name] = thread
            thread.start()

    def _tend(self, name: str, document: Document | None) -> None:
        try:
            store = self._location.open()
            try:
                if document is None:
                    self._take_away(store, name)
                elif self._may_begin(store, name, document):
                    self._begin(store, name, document)
            finally:
                store.close()
            self._troubles.pop(name, None)
        except DeltaForgeError as error:
            self._troubles[name] = redacted(str(error))
            self._say(name, self._troubles[name])
        except Exception:  # noqa: BLE001 - the next look tries again, and the others go on
            _log.error("%s: %s", name, redacted(format_exc()))

    def _take_away(self, store: Store, name: str) -> None:
        self._say(name, "its document is gone: stopping it")
        word = "stopped" if self._fleet.remove(store, name) else "kept by somebody else; it goes on"
        del self._applied[name]
        self._unstarted.pop(name, None)
        self._say(name, word)

    def _may_begin(self, store: Store, name: str, document: Document) -> bool:
        """Return whether there is something to start here, and nobody else does so."""
        record = Control(store, name).read()
        known = self._applied.get(name)
        is_new = document != known
        if record is None:
            return is_new  # Deleted by a person, if its document was applied before.
        if name in self._unstarted:  # Nobody stopped it since there was no room.
            is_new |= record.desired != "stopped" or record.owner == REMOVED
        if record.owner == self._fleet.owner:
            is_over = self._fleet.has_given_up(name, record.generation)
            return is_new or (record.desired != "stopped" and not is_over)
        if not record.generation:
            return True
        held = holder(store, name, self._backend)
        if held is not None:
            self._free_since.pop(name, None)
            self._say(name, f"is {held.status} elsewhere, kept by {record.owner}; waiting for it")
            return False
        return is_new if record.desired == "stopped" else self._is_left(store, name, record, known)

    def _is_left(
        self, store: Store, name: str, record: ControlRecord, known: Document | None
    ) -> bool:
        """Return whether whoever kept a pipeline without a driver starts it no more."""
        present = status(store, name, self._backend)
        if present.status != "failed" or is_gone(record.owner, self._fleet.owner):
            # Once for each fleet that begins: a person may have mended what it failed of.
            return present.error_class not in HOPELESS or known is None
        if present.error_class in HOPELESS:
            self._say(name, f"has failed, kept by {record.owner}: {present.reason}")
            return False
        return time.monotonic() - self._free_since.setdefault(name, time.monotonic()) > _BACKOFF_S

    def _begin(self, store: Store, name: str, document: Document) -> None:
        self._free_since.pop(name, None)
        is_back = self._unstarted.get(name, False)
        if document != self._applied.get(name):
            store_of(document.text, self._location)  # Refuses one that names another store.
            record = pipelines.apply(store, document.text).record
            self._applied[name] = document
            is_back = record.owner == REMOVED
            if record.generation and record.desired == "stopped" and not is_back:
                self._say(name, f"was stopped; `POST /pipelines/{name}/resume` starts it")
                return
        self._unstarted[name] = is_back
        try:
            started = self._fleet.start(store, name, resume=is_back)
        except DeltaForgeError:
            if self._fleet.is_starting(name):
                del self._unstarted[name]  # The fleet tries on by itself.
            raise
        del self._unstarted[name]
        self._say(
            name, "adopted" if started.adopted else f"started, generation {started.generation}"
        )

    def _say(self, name: str, words: str) -> None:
        if self._reported.get(name) != words:
            self._reported[name] = words
            self._report(name, words)


def is_gone(owner: str | None, own: str) -> bool:
    """Return whether the process that an owner token names is known to be gone.

    Args:
        owner: a token such as ``fleet:HOST:PID:ID``; of one on another machine nothing is known.
        own: the token of this process.
    """
    parts = (owner or "").split(":")
    if len(parts) != len(own.split(":")) or parts[-3] != socket.gethostname():
        return False
    pid = int(parts[-2]) if parts[-2].isdecimal() else 0
    # In a container that was started again, the former process had our number.
    return pid == os.getpid() or not psutil.pid_exists(pid)
