"""The engine on Spark: lanes as long tasks, the snapshot as a batch job."""
