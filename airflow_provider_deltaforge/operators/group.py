"""A pipeline's three tasks as one group, and the fields of its form in Airflow's UI."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Param, TaskGroup

from airflow_provider_deltaforge.hooks.jobs import Document
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator

# A DAG without these Params gets what it would get from a form that nobody touched.
TABLES = "{{ (params.get('tables') or []) | join(',') }}"
WHERE = "{{ params.get('where') or '' }}"
MODE = "{{ params.get('mode') or 'initial' }}"

_MODES = {
    "initial": "initial: copy what is there once; nothing when that is done",
    "always": "always: copy all captured tables again",
    "never": "never: copy nothing",
}


def pipeline_task_group(
    document: Document,
    *,
    group_id: str = "pipeline",
    prefix_group_id: bool = True,
    preflight: Mapping[str, Any] | None = None,
    snapshot: Mapping[str, Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    **shared: Any,
) -> TaskGroup:
    """Return ``preflight → snapshot → stream`` of one document, within the DAG of the context.

    The snapshot obeys the DAG's Params ``tables``, ``where`` and ``mode`` where there are any
    (`pipeline_params`), unless ``snapshot`` says otherwise.

    Args:
        document: the pipeline's YAML document: its path, or itself, as text or as a mapping.
        group_id: name of the group.
        prefix_group_id: name the tasks ``<group_id>.preflight`` and so on; without it a DAG can
            hold one group only.
        preflight: further arguments of `DeltaForgePreflightOperator`, such as ``fail_on``.
        snapshot: further arguments of `DeltaForgeSnapshotOperator`, such as ``tables``.
        stream: further arguments of `DeltaForgeStreamOperator`, such as ``window``.
        shared: arguments of all three, such as ``master`` or ``deltaforge_conn_id``.
    """
    all_three: dict[str, Any] = {"document": document, **shared}
    asked = {"tables": TABLES, "where": WHERE, "mode": MODE, **(snapshot or {})}
    with TaskGroup(group_id=group_id, prefix_group_id=prefix_group_id) as group:
        checked = DeltaForgePreflightOperator(
            task_id="preflight", **{**all_three, **(preflight or {})}
        )
        copied = DeltaForgeSnapshotOperator(task_id="snapshot", **{**all_three, **asked})
        streamed = DeltaForgeStreamOperator(task_id="stream", **{**all_three, **(stream or {})})
        checked >> copied >> streamed
    return group


def pipeline_params(
    *, tables: Sequence[str] | None = None, where: str | None = None, mode: str = "initial"
) -> dict[str, Param]:
    """Return the Params of a snapshot: a form in the UI, ``conf`` over REST, wrong ones refused.

    Args:
        tables: what the form proposes to copy; None for what ``mode`` says.
        where: the condition it proposes.
        mode: the mode it proposes, which is also that of scheduled runs.
    """
    return {
        "tables": Param(
            None if tables is None else list(tables),
            type=["null", "array"],
            items={"type": "string", "minLength": 1, "pattern": "^[^,]+$"},
            title="Tables to copy again",
            description="One `database.table` a line, only captured ones. Empty: see Mode.",
        ),
        "where": Param(
            where,
            type=["null", "string"],
            title="Only rows where",
            description="An SQL condition in the source's dialect, such as "
            "`updated_at >= '2026-01-01'`. It needs exactly one table above.",
        ),
        "mode": Param(
            mode,
            type="string",
            enum=list(_MODES),
            values_display=_MODES,
            title="Mode",
            description="What is copied when no table is named. A stream that runs goes on.",
        ),
    }
