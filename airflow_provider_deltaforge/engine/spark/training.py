"""``spark-submit training.py``: an application that does once what drivers have Spark do.

Its JVM's classes are kept for those of drivers (``control/launching/class_archive.py``).
"""

import tempfile
import threading

from pyspark.sql import DataFrame

from airflow_provider_deltaforge.engine.spark.session import session

_LOOK_S = 0.1


def main() -> None:
    """Run a lane's job in a streaming query, and a copy's in a batch."""
    spark = session("deltaforge-training")
    context = spark.sparkContext
    done = threading.Event()

    def window(_rows: DataFrame, _batch_id: int) -> None:
        context.setLocalProperty("spark.scheduler.pool", "training")
        context.parallelize([0.0], 1).map(lambda seconds: seconds).collect()
        done.set()

    with tempfile.TemporaryDirectory(prefix="deltaforge-training-") as scratch:
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        query = rows.writeStream.foreachBatch(window).option("checkpointLocation", scratch).start()
        context.setJobGroup("training", "a copy")
        list(context.parallelize([[0]], 1).mapPartitions(iter).toLocalIterator())
        context.cancelJobGroup("training")
        while query.isActive and not done.wait(_LOOK_S):
            pass
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
