"""How long a source waits, and how often it tries: what no document asks for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MySqlTuning:
    """The defaults are what runs; tests that wait have others. Seconds where ``_s`` says so.

    Attributes:
        settling_s: how long a transaction that was sent may not count as executed: a server with
            semi-synchronous replication sends it first and then waits for a replica, ten seconds
            by default.
        retry_max_s: the longest pause between two attempts to open the log.
        kicked_window_s: a reader whose connection the server ends six times within this has a
            rival with its server id.
        lock_wait_s: how long one attempt to lock a table may wait for writers; new writers queue
            behind it meanwhile. The server takes whole seconds.
        lock_attempts: so many attempts are made.
        quiet_views: so many views of a chunk are opened until one falls between two commits, and
            half as many of the next chunk each time that none did.
        settled_s: so long, such a chunk waits until what is being committed is executed, and half
            as long the next time that it was not.
        replica_s: so long, a copy from a replica waits until that has applied what the source's
            server has executed.
        sampled_rows: the bounds of a table's chunks are counted out below so many rows, and
            looked for by the server's estimates from there on.
    """

    settling_s: float = 15.0
    retry_max_s: float = 30.0
    kicked_window_s: float = 60.0
    lock_wait_s: int = 3
    lock_attempts: int = 10
    quiet_views: int = 32
    settled_s: float = 0.5
    replica_s: float = 60.0
    sampled_rows: int = 200_000


MYSQL_TUNING = MySqlTuning()
