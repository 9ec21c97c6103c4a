"""An application of a Spark user, for tests that kill it: changes to Parquet, until it is killed.

``frame_application.py OPTIONS CHECKPOINT OUTPUT``, options as JSON.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_deltaforge.engine.spark.source import register


def query(session: Any, options: Mapping[str, str], checkpoint: object, output: object) -> Any:
    """Return what writes the changes, before it is started."""
    changes = session.readStream.format("deltaforge").options(**options).load()
    writer = changes.writeStream.format("parquet").option("path", str(output))
    return writer.option("checkpointLocation", str(checkpoint))


def main() -> None:
    options, checkpoint, output = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]").appName("frame")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "1",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    query(spark, json.loads(options), checkpoint, output).start().awaitTermination()


if __name__ == "__main__":
    main()
