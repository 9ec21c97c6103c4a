"""``spark-submit snapshot_job.py --pipeline NAME --generation G [--tables a,b] [--where …]``.

Copies the captured tables of a pipeline, chunk by chunk; a killed run goes on at the next chunk.
State store and exit codes as in ``stream_job.py``.
"""

from airflow_provider_deltaforge.control.push import pushing_pipeline
from airflow_provider_deltaforge.engine.spark.application import main_snapshot

if __name__ == "__main__":
    main_snapshot(pushing_pipeline)
