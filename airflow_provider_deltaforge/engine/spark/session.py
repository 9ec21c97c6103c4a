"""Spark sessions for drivers, with the settings the engine relies on."""

import os

from pyspark.sql import SparkSession

_SETTINGS = {
    # A lane's task must not be repeated behind the driver's back: the driver starts another
    # query, under a new epoch.
    "spark.task.maxFailures": "1",
    "spark.speculation": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.session.timeZone": "UTC",
    # The page shows settings and plans to whoever can reach the port.
    "spark.ui.enabled": os.environ.get("DELTAFORGE_SPARK_UI", "false"),
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.killWorkerOnFlushFailure": "true",
}


def session(app_name: str) -> SparkSession:
    """Return the application's session; ``spark-submit`` decides where it runs."""
    builder = SparkSession.builder.appName(app_name)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(os.environ.get("DELTAFORGE_SPARK_LOG", "WARN"))
    return spark
