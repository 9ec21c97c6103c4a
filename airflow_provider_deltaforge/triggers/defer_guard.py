"""Fire no sooner than Airflow can take it."""

import asyncio
import time

SETTLE_S = 5.0
"""Airflow 3.3 fails a task that runs again before its scheduler has read that the former process
deferred (apache/airflow issue 71580), which costs a retry, and turns a task without retries red."""


async def settled(began_s: float) -> None:
    """Return once a trigger that began at ``began_s`` of the monotonic clock may fire."""
    await asyncio.sleep(max(0.0, SETTLE_S - (time.monotonic() - began_s)))
