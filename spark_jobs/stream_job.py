"""``spark-submit stream_job.py --pipeline NAME --generation G``: run one pipeline's stream.

The state store comes from the environment variable ``DELTAFORGE_STORE``; nothing secret is an
argument. Exit codes: 0 drained or stopped, 2 the document is wrong, 3 may work again, 4 a person
must act.
"""

from airflow_provider_deltaforge.control.push import pushing_pipeline
from airflow_provider_deltaforge.engine.spark.application import main_stream

if __name__ == "__main__":
    main_stream(pushing_pipeline)
