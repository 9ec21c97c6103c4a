"""An application of a Spark user, for tests that kill it: changes to Parquet.

``frame_application.py OPTIONS CHECKPOINT OUTPUT TRIGGER``: options as JSON; the trigger is
``now`` (drain and end) or ``on`` (go on until killed).
"""

import json
import sys

from pyspark.sql import SparkSession

from airflow_provider_deltaforge.engine.spark.source import register


def main() -> None:
    options, checkpoint, output, trigger = sys.argv[1:]
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
    changes = spark.readStream.format("deltaforge").options(**json.loads(options)).load()
    writer = changes.writeStream.format("parquet").option("path", output)
    writer = writer.option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if trigger == "now" else writer
    writer.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
