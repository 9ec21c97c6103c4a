"""One DAG from one document: rolling or pinned supervision, and a form for copying again."""

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.operators.group import pipeline_params, pipeline_task_group
from airflow_provider_deltaforge.spec.inline_secrets import document_for_people
from airflow_provider_deltaforge.spec.yaml_text import parse

WINDOW = timedelta(hours=6)
# Without one, Airflow 3.3 gives the second run of a continuous DAG the first one's date, for ever.
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
# A continuous DAG begins its next run at once, so one that fails at once would never stop failing.
FAILURES_MAX = 5
_TAG_LENGTH_MAX = 100


def pipeline_dag(
    path: str | Path,
    *,
    dag_id: str | None = None,
    window: timedelta | None = WINDOW,
    refused: str | None = None,
    stream: Mapping[str, Any] | None = None,
    **operators: Any,
) -> DAG:
    """Return the DAG of a document, named as its file; reads the file and nothing else.

    A document that cannot be read gives a DAG that says so and whose only task fails with the
    reason: an error here would take the DAGs of all other documents away. What is wrong in the
    document's keys is found by the task ``preflight``.

    Args:
        path: the pipeline's YAML document.
        dag_id: another name, where another DAG has that of the file.
        window: how long one run supervises before the next one adopts the stream; None for one
            run without an end, started by hand (*pinned*).
        refused: why this document must not run although it can be read.
        stream: further arguments of `DeltaForgeStreamOperator`.
        operators: further arguments of `pipeline_task_group`.
    """
    path = Path(path)
    dag_id = dag_id or dag_id_of(path)
    text, document, problem = _read(path)
    problem = refused or problem
    if problem:
        return _refusing_dag(dag_id, problem, text)
    rolling = window is not None
    with DAG(
        dag_id=dag_id,
        description=_summary(document),
        schedule="@continuous" if rolling else None,
        start_date=START,
        max_active_runs=1,
        max_consecutive_failed_dag_runs=FAILURES_MAX if rolling else 0,
        catchup=False,
        params=pipeline_params(),
        default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
        tags=_tags(document),
        doc_md=_page(text),
    ) as dag:
        watched = {"window": window, **(stream or {})}
        pipeline_task_group(str(path), prefix_group_id=False, stream=watched, **operators)
    return dag


def dag_id_of(path: str | Path) -> str:
    """Return the name of a document's DAG: its file's, in the letters that Airflow takes."""
    return re.sub(r"[^\w.-]", "_", Path(path).stem)


def pipeline_name(path: str | Path) -> str | None:
    """Return the name of a document's pipeline, or None when it cannot be read."""
    name = _part(_read(Path(path))[1], "metadata").get("name")
    return name if isinstance(name, str) else None


def _read(path: Path) -> tuple[str, Any, str | None]:
    """Return a document's text, its data, and why it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        return "", None, f"{path.name} cannot be read: {reason}"
    try:
        document = parse(text).data
    except SpecError as error:
        return text, None, f"{path.name}: {error}"
    if not isinstance(document, dict):
        return text, None, f"{path.name}: not a map; begin with 'metadata' and 'spec'"
    return text, document, None


def _refusing_dag(dag_id: str, problem: str, text: str) -> DAG:
    with DAG(
        dag_id=dag_id,
        description=f"Refused: {problem}",
        schedule=None,
        catchup=False,
        tags=["deltaforge", "refused"],
        doc_md=f"**This pipeline cannot run.** {problem}\n\n{_page(text)}",
    ) as dag:
        _Refusal(task_id="preflight", reason=problem)
    return dag


class _Refusal(BaseOperator):
    """Fails with the reason why a document is not run."""

    def __init__(self, *, reason: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reason = reason

    def execute(self, context: Mapping[str, Any]) -> None:
        """Fail; an Airflow retry would not help."""
        del context
        raise AirflowFailException(self.reason)


def _summary(document: Any) -> str:
    spec = _part(document, "spec")
    sinks = spec.get("sinks")
    types = [str(_part(sink).get("type")) for sink in (sinks if isinstance(sinks, list) else ())]
    source = _part(spec, "source").get("type")
    return f"{_part(document, 'metadata').get('name')}: {source} to {', '.join(types)}"


def _tags(document: Any) -> list[str]:
    metadata = _part(document, "metadata")
    pairs = {"tenant": metadata.get("tenant"), **_part(metadata, "labels")}
    labels = {f"{key}:{value}"[:_TAG_LENGTH_MAX] for key, value in pairs.items() if value}
    return ["deltaforge", *sorted(labels)]


def _page(text: str) -> str:
    """Return the document as Markdown, a password written into it against all advice hidden."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}yaml\n{document_for_people(text).rstrip()}\n{fence}\n"


def _part(document: Any, key: str | None = None) -> Mapping[str, Any]:
    """Return a map of the document, empty when it is anything else."""
    found = document.get(key) if key is not None and isinstance(document, dict) else document
    return found if isinstance(found, dict) else {}
