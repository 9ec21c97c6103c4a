"""Run when orders have arrived in the pipeline's sinks, with what arrived and up to where.

The asset is updated while the stream of ``orders_pipeline`` runs, each time its checkpoints cover
further rows of ``shop.orders``; not more often than ``DELTAFORGE_ORDERS_ARRIVED_S`` (60 seconds).
Several events may be waiting when a run begins: it gets all of them.
"""

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_deltaforge.assets.tables import deltaforge_asset

ORDERS = deltaforge_asset(
    "orders",
    "shop.orders",
    interval=timedelta(seconds=float(os.environ.get("DELTAFORGE_ORDERS_ARRIVED_S", "60"))),
)

with DAG(
    dag_id="orders_arrived",
    description="Do something with the orders that arrived",
    schedule=[ORDERS],
    max_active_runs=1,
    catchup=False,
    doc_md=__doc__,
    tags=["deltaforge", "cdc"],
) as dag:

    @task
    def report(triggering_asset_events: Any = None) -> dict[str, Any]:
        """Return how many rows arrived, and the position that every sink has reached."""
        arrived = [event.extra["payload"] for event in triggering_asset_events[ORDERS]]
        return {
            "rows": sum(payload["rows"] for payload in arrived),
            "exact": all(payload["exact"] for payload in arrived),
            "position": arrived[-1]["position"],
        }

    report()
