"""Send events that were set aside to the sinks that miss them, and wait until that is done."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control import conditions, replays
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import (
    Document,
    document_label,
    owner_token,
    pipeline_name,
)
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelineLink
from airflow_provider_deltaforge.operators.deferral import DeferringOperator
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.requests import Overtaken, new_ticket
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from airflow_provider_deltaforge.triggers.store import STORE_BACK
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_from_worker

_KEPT = "replay"
_POLL_S = 1.0
_OVERTAKEN = ("skip", "send", "drop")


class DeltaForgeReplayOperator(DeferringOperator):
    """Send dead letters to the sinks that miss them, as ``deltaforge dlq replay`` does.

    The pipeline's driver does it, or the next one that starts. A retry goes on waiting for what an
    earlier attempt requested. Without a filter every entry is meant.

    Args:
        pipeline: name of the pipeline; or give
        document: its YAML document: a path, or the document itself.
        only: which entries are meant, as in ``{"sink": "cache", "table": "shop.orders"}``: by
            ``sink`` or ``processor`` that refused them, ``kind`` of error, ``table``, and ``first``
            and ``last`` sequence number. Empty texts are passed over.
        overtaken: what becomes of entries whose row has newer events in the sink: ``skip``,
            ``send`` (an old state is then the last one), or ``drop``.
        wait: succeed only once it is done, and fail if an entry could not be sent and was not just
            overtaken; otherwise succeed as soon as it is requested.
        timeout: how long to wait, for a driver too; what was not sent by then is withdrawn.
        deltaforge_conn_id: connection of the state store.
    """

    template_fields: Sequence[str] = (
        *("pipeline", "document", "only", "overtaken", "deltaforge_conn_id"),
    )
    ui_color = "#cfe8dc"
    operator_extra_links = (DeltaForgePipelineLink(),)

    def __init__(
        self,
        *,
        pipeline: str | None = None,
        document: Document | None = None,
        only: Mapping[str, Any] | None = None,
        overtaken: Overtaken = "skip",
        wait: bool = True,
        timeout: timedelta = timedelta(hours=1),
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline, self.document = pipeline, document
        self.only = only
        self.overtaken = overtaken
        self.wait, self.timeout = wait, timeout
        self.deltaforge_conn_id = deltaforge_conn_id
        self._requested: tuple[str, Mapping[str, str], Any] | None = None

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Ask for the replay, and wait."""
        return self._act(context, int((time.time() + self.timeout.total_seconds()) * 1000))

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Return the counts, or fail with the reason."""
        if event.get("event") == STORE_BACK:
            return self._act(context, event.get("until_ms"))
        name, result = event["pipeline"], event["value"]
        if event["met"] is False:
            ticket = _awaited_ticket(event, self.kept(context, _KEPT) or {})
            self._withdraw(name, ticket, "its task did not wait any longer")
        if not event["met"]:
            raise AirflowFailException(f"the replay of {name}: {event['words']}")
        stays = sum(result[what] for what in ("refused", "behind", "away", "unfit"))
        if result["state"] != "done" or stays:
            reason = result["reason"] or f"{stays} entries could not be sent"
            raise AirflowFailException(f"the replay of {name}: {event['words']}: {reason}")
        return result

    def on_kill(self) -> None:
        """Withdraw what was not sent if a user ended the task while its process runs."""
        super().on_kill()
        if self._requested is not None:
            withdraw_from_worker(self.deltaforge_conn_id, *self._requested)

    def _act(self, context: Mapping[str, Any], until_ms: int | None) -> Any:
        named = self.pipeline or document_label(self.document or "")
        return self.retry_until_done(context, named, partial(self._begin, until_ms), until_ms)

    def _begin(self, until_ms: int | None, context: Mapping[str, Any]) -> Any:
        try:
            name = pipeline_name(self.pipeline, self.document)
            which = _filter(self.only or {})
            _check_overtaken(self.overtaken)
            with DeltaForgeHook(self.deltaforge_conn_id).store() as store:
                ticket = self._ticket(context, store, name, which)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        if not self.wait:
            return {"ticket": ticket}
        request = {"replay": ticket}
        self._requested = (name, request, context["ti"])
        trigger = ConditionTrigger(
            self.deltaforge_conn_id,
            name,
            conditions.replayed(ticket),
            until_ms,
            poll_s=_POLL_S,
            withdraw=request,
        )
        return self.hand_over(context, trigger)

    def _ticket(
        self, context: Mapping[str, Any], store: Store, name: str, which: DeadLetterFilter
    ) -> str:
        """Return the ticket of what an earlier attempt requested and is not done, or a new one."""
        kept = self.kept(context, _KEPT) or {}
        if _is_open(store, name, kept.get("ticket", "")):
            return str(kept["ticket"])
        ticket = new_ticket()
        self.keep(context, _KEPT, {"ticket": ticket})
        return replays.request(store, name, which, self.overtaken, owner_token(context), ticket)

    def _withdraw(self, name: str, ticket: str, reason: str) -> None:
        hook = DeltaForgeHook(self.deltaforge_conn_id)
        with suppress(DeltaForgeError), hook.store() as store:
            replays.cancel(store, name, ticket, reason)


def _is_open(store: Store, name: str, ticket: str) -> bool:
    """Return whether a replay was requested, and neither ended nor withdrawn."""
    record = existing(store, name).read()
    request = record.request(ticket) if record is not None else None
    return request is not None and request.cancelled is None


def _filter(chosen: Mapping[str, Any]) -> DeadLetterFilter:
    only = {key: value for key, value in chosen.items() if value not in ("", None)}
    unknown = sorted(only.keys() - {key.name for key in fields(DeadLetterFilter)})
    if unknown:
        raise SpecError(f"only: {', '.join(unknown)}: nothing of a dead letter is called that")
    try:
        only.update({key: int(only[key]) for key in ("first", "last") if key in only})
    except ValueError as error:
        raise SpecError(f"only: first and last are sequence numbers: {error}") from error
    return DeadLetterFilter(**only)


def _check_overtaken(value: str) -> None:
    if value not in _OVERTAKEN:
        raise SpecError(f"overtaken must be one of {_OVERTAKEN}: {value!r}")


def _awaited_ticket(event: Mapping[str, Any], kept: Mapping[str, Any]) -> str:
    """Return the ticket of what was waited for; a former release's trigger does not send it.

    What the task keeps is only a copy, which may have failed to be written.
    """
    awaited = event.get("withdraw") or {}
    return str(awaited.get("replay") or kept.get("ticket", ""))
