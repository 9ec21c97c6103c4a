"""What all parts of the engine use: a worker's context, retries, counters, heartbeat, crash points.

``retry`` repeats a call, ``restarts`` limits how often work that died is started again; the waits
that no document sets are in ``tuning``.
"""
