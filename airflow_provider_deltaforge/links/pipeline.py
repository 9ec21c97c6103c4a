"""From a task to its pipelines on the DeltaForge page."""

from typing import Any
from urllib.parse import urlencode, urlsplit

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.jobs import pipeline_name

_PAGE = "/plugin/deltaforge"


class DeltaForgePipelineLink(BaseOperatorLink):
    """The page of this provider, opened at the task's pipeline.

    Airflow keeps a link in an XCom when the task ends or defers. It is a path, so that it holds
    under every name and port by which people reach the API server.
    """

    name = "DeltaForge pipeline"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the path of the page; no link when the task names no pipeline."""
        del ti_key
        try:
            name = pipeline_name(getattr(operator, "pipeline", None), operator.document)
        except SpecError:
            return ""
        return _page(operator, pipeline=name)


class DeltaForgePipelinesLink(BaseOperatorLink):
    """The page of this provider with all pipelines of a state store, for the task of a fleet."""

    name = "DeltaForge pipelines"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the path of the page."""
        del ti_key
        return _page(operator)


def _page(operator: Any, **shown: str) -> str:
    query = urlencode({**shown, "conn_id": operator.deltaforge_conn_id})
    prefix = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    return f"{prefix}{_PAGE}?{query}"
