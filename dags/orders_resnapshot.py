"""Copy again the orders that changed in a data interval, while the stream goes on.

Each night the rows of the day before; *Backfill* in the UI does the same for past days. The form
of *Trigger* takes other tables or another condition. The copy is a request that the stream's
driver serves; without one, a snapshot job is started for it. A stream is never started here.

A condition is of one table. A run whose form names several tables or none copies them whole, and
so does one that was triggered without a logical date, which has no data interval, unless the form
holds a condition.

Set ``DELTAFORGE_ORDERS_CHANGED`` to the column that tells when a row changed (``updated_at``).
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG, CronDataIntervalTimetable, Param

from airflow_provider_deltaforge.operators.group import pipeline_params
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator

DOCUMENT = os.environ.get(
    "DELTAFORGE_ORDERS_DOCUMENT", str(Path(__file__).parent / "pipelines" / "orders.yaml")
)
MASTER = os.environ.get("DELTAFORGE_ORDERS_MASTER", "local[*]")
COLUMN = os.environ.get("DELTAFORGE_ORDERS_CHANGED", "updated_at")

# Data intervals are in UTC, as the column must be; a row changed at the border is copied once. A
# run from the form has an interval, too: Airflow infers one from the logical date that it proposes.
CHANGED_IN_INTERVAL = """
{%- set form = "%Y-%m-%d %H:%M:%S" -%}
{%- if params.where -%}
{{ params.where }}
{%- elif data_interval_start is defined and data_interval_start
    and (params.tables or []) | length == 1 -%}
{%- set start, end = data_interval_start.strftime(form), data_interval_end.strftime(form) -%}
{{ params.column }} >= '{{ start }}' AND {{ params.column }} < '{{ end }}'
{%- endif -%}
"""

with DAG(
    dag_id="orders_resnapshot",
    description="Copy the orders of a data interval again, beside the stream",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    max_active_runs=4,  # They wait together; the driver serves one after the other.
    params={
        **pipeline_params(tables=["shop.orders"], mode="always"),
        "column": Param(
            COLUMN,
            type="string",
            pattern="^[A-Za-z_][A-Za-z0-9_]*$",
            title="Column that tells when a row changed",
            description="Compared with the data interval when exactly one table and no condition "
            "is given; several tables, or all, are copied whole.",
        ),
    },
    doc_md=__doc__,
    tags=["deltaforge", "cdc"],
) as dag:
    DeltaForgeSnapshotOperator(
        task_id="snapshot",
        document=DOCUMENT,
        master=MASTER,
        mode="{{ params.mode }}",
        tables="{{ (params.tables or []) | join(',') }}",
        where=CHANGED_IN_INTERVAL,
    )
