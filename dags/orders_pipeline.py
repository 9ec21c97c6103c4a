"""Capture the ``shop`` database: check the source, copy it once, then stream its changes.

``@continuous`` with one active run is *rolling supervision*: a run ends with success after its
window while the stream goes on, and the next run adopts it. The form of *Trigger* copies tables
again; its run begins when the present window is over (``orders_resnapshot`` does it at once).

Connections: ``deltaforge_default`` (the state store). The document's variables come from the
environment of the workers, which start the drivers. ``DELTAFORGE_ORDERS_DOCUMENT`` names another
document, ``DELTAFORGE_ORDERS_WINDOW_S`` another window, ``DELTAFORGE_ORDERS_MASTER`` another Spark.
"""

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import DAG

from airflow_provider_deltaforge.operators.group import pipeline_params
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator

DOCUMENT = os.environ.get(
    "DELTAFORGE_ORDERS_DOCUMENT", str(Path(__file__).parent / "pipelines" / "orders.yaml")
)
WINDOW = timedelta(seconds=int(os.environ.get("DELTAFORGE_ORDERS_WINDOW_S", "21600")))
MASTER = os.environ.get("DELTAFORGE_ORDERS_MASTER", "local[*]")

with DAG(
    dag_id="orders_pipeline",
    description="orders: MySQL to Kafka, checked, copied once and streamed",
    schedule="@continuous",
    # Airflow 3.3 makes no second run of a continuous DAG without a start date.
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    max_active_runs=1,
    # A run that fails at once is followed by the next one at once; a person should look instead.
    max_consecutive_failed_dag_runs=5,
    catchup=False,
    params=pipeline_params(),
    default_args={"retries": 2, "retry_delay": timedelta(seconds=30)},
    doc_md=__doc__,
    tags=["deltaforge", "cdc"],
) as dag:
    preflight = DeltaForgePreflightOperator(task_id="preflight", document=DOCUMENT, master=MASTER)
    snapshot = DeltaForgeSnapshotOperator(
        task_id="snapshot",
        document=DOCUMENT,
        master=MASTER,
        mode="{{ params.mode }}",
        tables="{{ (params.tables or []) | join(',') }}",
        where="{{ params.where or '' }}",
    )
    stream = DeltaForgeStreamOperator(
        task_id="stream", document=DOCUMENT, master=MASTER, window=WINDOW
    )
    preflight >> snapshot >> stream
