"""Post to a webhook what happened to a task, and how its pipeline is."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from airflow.sdk import BaseHook, BaseNotifier
from airflow.sdk.exceptions import AirflowException

from airflow_provider_deltaforge.control import dead_letters
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import pipeline_name
from airflow_provider_deltaforge.telemetry.redaction import redacted

_TIMEOUT_S = 10.0
_REASON_LENGTH_MAX = 2000


class DeltaForgeNotifier(BaseNotifier):
    """Posts JSON to a webhook: ``text``, as Slack and Mattermost read it, and the facts.

    The body is ``{"text", "dag_id", "task_id", "run_id", "try_number", "reason", "pipeline"}``;
    ``pipeline`` is ``{"name", "status", "desired", "error_class", "reason", "generation", "lag_ms",
    "dead_letters"}``, or None when the state store cannot be asked.

    Args:
        http_conn_id: a connection of type HTTP: host, with or without ``https://`` and a path;
            schema, port; login and password for basic authentication; extras are headers.
        pipeline: the pipeline's name; None: that of the task that calls this.
        text: a template; None: which task failed, and why.
        deltaforge_conn_id: connection of the state store; None: that of the task.
    """

    template_fields: Sequence[str] = ("http_conn_id", "pipeline", "text", "deltaforge_conn_id")

    def __init__(
        self,
        http_conn_id: str,
        pipeline: str | None = None,
        text: str | None = None,
        deltaforge_conn_id: str | None = None,
    ) -> None:
        super().__init__()
        self.http_conn_id = http_conn_id
        self.pipeline = pipeline
        self.text = text
        self.deltaforge_conn_id = deltaforge_conn_id

    def notify(self, context: Any) -> None:
        """Post it."""
        import httpx

        request = self._request(context)
        try:
            answer = httpx.post(**request, timeout=_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise _refused(request["url"], type(error).__name__) from None
        if answer.is_error:
            raise _refused(request["url"], str(answer.status_code))

    async def async_notify(self, context: Any) -> None:
        """Post it without blocking the event loop, as deadline alerts need it."""
        await asyncio.to_thread(self.notify, context)

    def body(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is posted."""
        instance = context.get("ti") or context.get("task_instance")
        place = {
            key: getattr(instance, key, None)
            for key in ("dag_id", "task_id", "run_id", "try_number")
        }
        if instance is None:  # A run that ended without any task that failed.
            dag_id = getattr(context.get("dag"), "dag_id", None)
            place |= {"dag_id": dag_id, "run_id": context.get("run_id")}
        raised = context.get("exception") or context.get("reason")  # Of a task, or of a run.
        reason = redacted(str(raised))[:_REASON_LENGTH_MAX] if raised else None
        pipeline = self._facts(context)
        name = f"pipeline {pipeline['name']} of " if pipeline else ""
        where = ".".join(str(place[key]) for key in ("dag_id", "task_id") if place[key])
        failed = f"DeltaForge: {name}{where or 'a task'}: {reason or 'no error'}"
        return {"text": self.text or failed, **place, "reason": reason, "pipeline": pipeline}

    def _facts(self, context: Mapping[str, Any]) -> dict[str, Any] | None:
        task = context.get("task")
        default = getattr(task, "deltaforge_conn_id", DeltaForgeHook.default_conn_name)
        hook = DeltaForgeHook(self.deltaforge_conn_id or default)
        try:
            named = self.pipeline or getattr(task, "pipeline", None)
            document = getattr(task, "document", None)
            name = pipeline_name(named, None if named else document)
            with hook.store() as store:
                present = status(store, name, hook.backend())
                set_aside = dead_letters.count(store, name)
        except (DeltaForgeError, AirflowException) as error:
            self.log.warning("nothing is known of the pipeline: %s", redacted(str(error)))
            return None
        keys = ("name", "status", "desired", "error_class", "reason", "generation", "lag_ms")
        shown = {key: getattr(present, key) for key in keys}
        return {**shown, "dead_letters": set_aside}

    def _request(self, context: Mapping[str, Any]) -> dict[str, Any]:
        connection = BaseHook.get_connection(self.http_conn_id)
        host = connection.host or ""
        if "://" not in host:
            host = f"{connection.schema or 'https'}://{host}"
        parts = urlsplit(host)
        if connection.port and parts.port is None:
            parts = parts._replace(netloc=f"{parts.netloc}:{connection.port}")
        if not parts.hostname:
            raise AirflowException(f"connection {self.http_conn_id!r} names no host to post to")
        login = (connection.login, connection.password or "") if connection.login else None
        headers: dict[str, str] = {}
        with suppress(AttributeError):  # Extras that are no map.
            headers = {key: str(value) for key, value in connection.extra_dejson.items()}
        return {
            "url": parts.geturl(),
            "json": self.body(context),
            "headers": headers,
            "auth": login,
        }


def _refused(url: str, why: str) -> AirflowException:
    """Return the error without the URL's path, which is the secret of many webhooks."""
    return AirflowException(f"the webhook at {urlsplit(url).hostname} did not take it: {why}")
